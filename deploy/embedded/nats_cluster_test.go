//go:build nightly

package embedded

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// cluster is three NATS servers in this process.
type cluster struct {
	nodes [3]*server.Server
	opts  [3]*server.Options
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	var routes []*url.URL
	var ports [3][2]int
	for i := range c.nodes {
		ports[i] = [2]int{freePort(t), freePort(t)}
		routes = append(routes, &url.URL{Scheme: "nats", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[i][1]))})
	}
	for i := range c.nodes {
		c.opts[i] = &server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: ports[i][0], JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i][1]}, Routes: routes,
		}
		c.start(t, i)
	}
	t.Cleanup(func() {
		for i := range c.nodes {
			c.stop(i)
		}
	})
	return c
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
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
	return addr.Port
}

func (c *cluster) start(t *testing.T, i int) {
	t.Helper()
	s, err := server.NewServer(c.opts[i].Clone())
	if err != nil {
		t.Fatal(err)
	}
	c.nodes[i] = s
	s.Start()
}

func (c *cluster) stop(i int) {
	c.nodes[i].Shutdown()
	c.nodes[i].WaitForShutdown()
}

func (c *cluster) connect(t *testing.T) *nats.Conn {
	t.Helper()
	urls := make([]string, len(c.opts))
	for i, o := range c.opts {
		urls[i] = fmt.Sprintf("nats://127.0.0.1:%d", o.Port)
	}
	nc, err := nats.Connect(strings.Join(urls, ","), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.RetryOnFailedConnect(true))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// leader returns the node that leads a stream.
func (c *cluster) leader(t *testing.T, js jetstream.JetStream, stream string) int {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range c.opts {
		if o.ServerName == s.CachedInfo().Cluster.Leader {
			return i
		}
	}
	t.Fatalf("stream %s has no leader", stream)
	return 0
}

// TestLeaderKilled stops the leaders of the records and of the backlog while
// both are written. Nothing acknowledged may be lost, nothing stored twice, and
// the only writer of a record must never be told that it lost a compare-and-set
// to its own earlier try.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	const writers, updates = 6, 150
	ctx, cancel := context.WithTimeout(t.Context(), 80*time.Second)
	defer cancel()
	c := startCluster(t)
	nc := c.connect(t)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	var led *ledger.JetStream
	var queue *jobs.JetStream
	for { // until the cluster has a leader
		led, err = ledger.Open(ctx, nc, ledger.Config{Replicas: 3, Timeout: 2 * time.Second})
		if err == nil {
			queue, err = jobs.Open(ctx, nc, jobs.Config{Replicas: 3, Timeout: 2 * time.Second})
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("open: %v", err)
		}
	}
	third := make(chan struct{}, writers) // each writer has done a third
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			if err := hammer(ctx, led, queue, render.Tenant(fmt.Sprintf("tenant %d", n)), updates, func() { third <- struct{}{} }); err != nil {
				t.Errorf("writer %d: %v", n, err)
			}
		})
	}
	<-third
	for _, stream := range []string{"KV_vidforge_renders_0", "vidforge_backlog"} {
		i := c.leader(t, js, stream)
		c.stop(i)
		t.Logf("stopped the leader of %s", stream)
		c.start(t, i)
	}
	wg.Wait()
	stream, err := js.Stream(ctx, "vidforge_backlog")
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(info.State.Subjects); n != writers*updates || info.State.Msgs != writers*updates {
		t.Errorf("%d messages of %d works, want %d", info.State.Msgs, n, writers*updates)
	}
}

// hammer writes one record and one message again and again, alone.
func hammer(ctx context.Context, led ledger.Ledger, queue jobs.Queue, tenant render.Tenant, updates int, third func()) error {
	now := time.Now()
	rec := render.New(render.NewID(), tenant, render.Spec{}, render.SourceRef{}, nil, now)
	e, err := led.CreateRender(ctx, rec)
	if err != nil {
		return err
	}
	for i := range updates {
		if i == updates/3 {
			third()
		}
		next := *e.Record
		next.Slot = i + 1
		if e, err = led.UpdateRender(ctx, e, &next); err != nil {
			return fmt.Errorf("update %d: %w", i, err)
		}
		got, err := led.GetRender(ctx, tenant, rec.ID)
		if err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if got.Revision != e.Revision || got.Record.Slot != i+1 {
			return fmt.Errorf("read %d at revision %d after writing %d at %d", got.Record.Slot, got.Revision, i+1, e.Revision)
		}
		m := jobs.Message{Work: render.Work{Tenant: tenant, Task: rec.ID, Generation: 1, Stage: render.StageSegment, Index: i}}
		if err := queue.Enqueue(ctx, m); err != nil {
			return fmt.Errorf("enqueue %d: %w", i, err)
		}
	}
	return nil
}
