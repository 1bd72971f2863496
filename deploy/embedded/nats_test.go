package embedded

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/jobs/jobstest"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/ledger/ledgertest"
	"github.com/vidforge/vidforge/pkg/render"
)

// natsConnector starts one server for a suite and returns a function that gives
// each of its tests a connection.
func natsConnector(t *testing.T) func(*testing.T) *nats.Conn {
	t.Helper()
	s, err := StartNATS(t.Context(), NATSOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Shutdown(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return func(t *testing.T) *nats.Conn {
		t.Helper()
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
}

func TestLedger(t *testing.T) {
	t.Parallel()
	ledgertest.Run(t, natsConnector(t))
}

func TestJobs(t *testing.T) {
	t.Parallel()
	jobstest.Run(t, natsConnector(t))
}

// TestNATSRestart: what was acknowledged is there after a restart, timers and
// lifetimes included.
func TestNATSRestart(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	rec := render.New(render.NewID(), "t", render.Spec{}, render.SourceRef{}, nil, time.Now())
	work := jobs.Message{Work: render.Work{Tenant: "t", Task: rec.ID, Generation: 1, Stage: render.StagePlan}}
	for restarted := range 2 {
		s, err := StartNATS(ctx, NATSOptions{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		nc, err := nats.Connect(s.URL())
		if err != nil {
			t.Fatal(err)
		}
		led, err := ledger.Open(ctx, nc, ledger.Config{})
		if err != nil {
			t.Fatal(err)
		}
		queue, err := jobs.Open(ctx, nc, jobs.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if restarted == 0 {
			if _, err := led.CreateRender(ctx, rec); err != nil {
				t.Fatal(err)
			}
			if err := queue.Enqueue(ctx, work); err != nil {
				t.Fatal(err)
			}
			if err := queue.Schedule(ctx, jobs.Timer{Tenant: "t", Task: rec.ID, Name: "x", At: time.Now().Add(time.Second)}); err != nil {
				t.Fatal(err)
			}
		} else {
			if _, err := led.GetRender(ctx, "t", rec.ID); err != nil {
				t.Errorf("the record is lost: %v", err)
			}
			if d, err := queue.Depth(ctx, render.ClassPreview); err != nil || d.Backlog != 1 {
				t.Errorf("the message is lost: %+v %v", d, err)
			}
			if _, _, err := queue.FetchTimer(ctx, 30*time.Second); err != nil {
				t.Errorf("the timer is lost: %v", err)
			}
		}
		nc.Close()
		if err := s.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNATSIsClosedToOthers(t *testing.T) {
	t.Parallel()
	s, err := StartNATS(t.Context(), NATSOptions{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	if host := u.Hostname(); host != "127.0.0.1" {
		t.Errorf("listens on %s", host)
	}
	u.User = nil
	if nc, err := nats.Connect(u.String()); err == nil {
		nc.Close()
		t.Error("a stranger connected")
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if nc, err := nats.Connect(s.URL()); err == nil {
		nc.Close()
		t.Error("the server still runs")
	}
}

func TestNATSRefusals(t *testing.T) {
	t.Parallel()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	addr, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("listens on %v", l.Addr())
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]NATSOptions{
		"no directory":  {},
		"a file":        {Dir: file},
		"port is taken": {Dir: t.TempDir(), Port: addr.Port},
	} {
		if _, err := StartNATS(t.Context(), o); err == nil {
			t.Errorf("%s: it started", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// BenchmarkDispatch measures what a worker waits for its next message, and for
// the acknowledgement of it, out of a backlog of 5000 of one tenant.
func BenchmarkDispatch(b *testing.B) {
	ctx, cancel := context.WithCancel(b.Context())
	s, err := StartNATS(ctx, NATSOptions{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	nc, err := nats.Connect(s.URL())
	if err != nil {
		b.Fatal(err)
	}
	queue, err := jobs.Open(ctx, nc, jobs.Config{})
	if err != nil {
		b.Fatal(err)
	}
	msgs := make([]jobs.Message, 5000)
	task := render.NewID()
	for i := range msgs {
		msgs[i].Work = render.Work{Tenant: "t", Task: task, Generation: 1, Stage: render.StageSegment, Index: i}
	}
	if err := queue.Enqueue(ctx, msgs...); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- queue.Dispatch(ctx, render.ClassCPU) }()
	for b.Loop() {
		d, err := queue.Fetch(ctx, render.ClassCPU, time.Minute)
		if err != nil {
			b.Fatal(err)
		}
		if err := d.Ack(ctx); err != nil {
			b.Fatal(err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	nc.Close()
	if err := s.Shutdown(context.WithoutCancel(ctx)); err != nil {
		b.Error(err)
	}
}
