package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/worker"
)

// roleVariable makes this test binary play another process: its value is the
// role's JSON configuration.
const roleVariable = "VIDFORGE_E2E_ROLE"

// role is what a child process is told.
type role struct {
	Worker  *worker.Config
	Gateway *gateway.Config
	// Bound is a file that a gateway writes its address into.
	Bound string
}

func TestMain(m *testing.M) {
	if config := os.Getenv(roleVariable); config != "" {
		if err := play(config); err != nil {
			slog.Error("child process", "error", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func play(config string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	flush, err := telemetry.Setup(ctx, "vidforge-e2e", "test")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, flush(context.WithoutCancel(ctx))) }()
	var r role
	if err := json.Unmarshal([]byte(config), &r); err != nil {
		return fmt.Errorf("read the role: %w", err)
	}
	if r.Worker != nil {
		return worker.Run(ctx, *r.Worker)
	}
	if r.Gateway != nil {
		r.Gateway.Ready = func(b gateway.Bound) {
			if err := os.WriteFile(r.Bound+".part", []byte(b.Listen), 0o600); err == nil {
				_ = os.Rename(r.Bound+".part", r.Bound)
			}
		}
		return gateway.Run(ctx, *r.Gateway)
	}
	return errors.New("no role")
}

// process is a child that plays a role.
type process struct {
	cmd  *exec.Cmd
	done chan error
}

// spawn starts a child; env is added to its environment.
func spawn(t *testing.T, r role, env ...string) *process {
	t.Helper()
	config, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), done: make(chan error, 1)}
	p.cmd.Env = append(append(os.Environ(), roleVariable+"="+string(config)), env...)
	var log strings.Builder
	p.cmd.Stderr = &log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("child %d:\n%s", p.cmd.Process.Pid, log.String())
		}
	})
	return p
}

// kill ends the process as a crash would, and waits for its end.
func (p *process) kill() {
	if p.cmd.ProcessState != nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		panic(err)
	}
	<-p.done
	p.done <- nil
}

// crew is a farm in this process whose workers are child processes.
type crew struct {
	*line
	share embeddedtest.Farm
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	share := embeddedtest.Servers(t)
	c := &crew{line: &line{Farm: farm.New(share.Dial(t).Stores, farm.Config{Logger: quiet()}), tenant: "acme", t: t}, share: share}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.Run(ctx); err != nil {
			t.Errorf("farm: %v", err)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return c
}

func (c *crew) hire(id, scratch string, env ...string) *process {
	return spawn(c.t, role{Worker: &worker.Config{Endpoints: c.share.Endpoints, ID: id, ScratchDir: scratch}}, env...)
}

// begin submits a render and waits until its encoder has made a frame.
func (c *crew) begin(a *render.Asset) render.ID {
	c.t.Helper()
	v, _, err := c.Submit(c.t.Context(), c.tenant, farm.Submission{Request: render.Request{
		SourceAssetURI: a.ID.URI(), OutputFormat: "mp4", Resolution: "1080p", Quality: new("high")}})
	if err != nil {
		c.t.Fatal(err)
	}
	c.untilFrames(v.Record.ID)
	return v.Record.ID
}

func (c *crew) untilFrames(id render.ID) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	seen := errors.New("seen")
	err := c.Watch(ctx, c.tenant, id, func(v *farm.View) error {
		if n := v.Progress.FramesDone; n != nil && *n > 0 && v.Record.State == render.StateRendering {
			return seen
		}
		return nil
	})
	if !errors.Is(err, seen) {
		c.t.Fatalf("no progress was seen: %v", err)
	}
}

func (c *crew) checkVideo(id render.ID, frames string) {
	c.t.Helper()
	content, err := c.Video(c.t.Context(), c.tenant, id)
	if err != nil {
		c.t.Fatal(err)
	}
	if got := look(c.t, c.save(content, string(id)+".mp4")); got.Streams[0].Frames != frames {
		c.t.Errorf("the video has %s frames, want %s", got.Streams[0].Frames, frames)
	}
}

func TestRenderSurvivesTheDeathOfItsWorker(t *testing.T) {
	c := newCrew(t)
	scratch := t.TempDir()
	hold := programs.NewHold(t)
	hold.On()
	first := c.hire("w1", scratch, hold.Env...)
	id := c.begin(c.put(clip(t, 6, "320x240"), "video/mp4"))
	first.kill()
	second := c.hire("w2", scratch)
	c.until(id, render.StateSucceeded)
	c.checkVideo(id, "180")
	if err := second.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-second.done; err != nil {
		t.Errorf("a worker that was asked to stop: %v", err)
	}
	second.done <- nil
	left, err := os.ReadDir(scratch)
	if err != nil || len(left) != 0 {
		t.Errorf("scratch still holds %v, %v", left, err)
	}
}

func TestRenderSurvivesFlushAll(t *testing.T) {
	c := newCrew(t)
	hold := programs.NewHold(t)
	hold.On()
	c.hire("w1", t.TempDir(), hold.Env...)
	id := c.begin(c.put(clip(t, 6, "320x240"), "video/mp4"))
	client, err := progress.Connect(c.share.Endpoints.RedisURL)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	flush(t, client)
	if v, err := c.Get(t.Context(), c.tenant, id); err != nil || v.Record.State != render.StateRendering {
		t.Fatalf("after FLUSHALL: %+v, %v", v, err)
	}
	c.untilFrames(id) // the numbers come back
	hold.Release()
	c.until(id, render.StateSucceeded)
	c.checkVideo(id, "180")
}

func flush(t *testing.T, client redis.UniversalClient) {
	t.Helper()
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
}

// hangUp sends the beginning of a request and closes the connection.
func hangUp(t *testing.T, address, request string) {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}
