package servers_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// TestLeaderKilled kills the leaders of the records and of the backlog while
// both are written. Nothing acknowledged may be lost, nothing stored twice, and
// the only writer of a record must never be told that it lost a compare-and-set
// to its own earlier try.
func TestLeaderKilled(t *testing.T) {
	t.Parallel()
	const writers, updates = 6, 150
	c := servers.StartCluster(t, servers.NATSOptions{})
	nc := c.Connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	led, err := ledger.Open(ctx, nc, ledger.Config{Replicas: 3, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	queue, err := jobs.Open(ctx, nc, jobs.Config{Replicas: 3, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	third := make(chan struct{}, writers) // each writer has done a third
	var wg sync.WaitGroup
	for n := range writers {
		wg.Go(func() {
			if err := hammer(ctx, led, queue, render.Tenant(fmt.Sprintf("tenant %d", n)), updates, func() { third <- struct{}{} }); err != nil {
				t.Errorf("writer %d: %v", n, err)
				cancel()
			}
		})
	}
	t.Cleanup(wg.Wait)
	select {
	case <-third:
	case <-ctx.Done():
		t.Fatal("nobody has done a third")
	}
	for _, stream := range []string{"KV_vidforge_renders_0", "vidforge_backlog"} {
		node := c.Leader(t, nc, stream)
		node.Kill(t)
		t.Logf("killed %s, the leader of %s", node.Name, stream)
		node.Restart(t)
	}
	wg.Wait()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
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
		next.Generation = uint32(i + 1)
		if e, err = led.UpdateRender(ctx, e, &next); err != nil {
			return fmt.Errorf("update %d: %w", i, err)
		}
		got, err := led.GetRender(ctx, tenant, rec.ID)
		if err != nil {
			return fmt.Errorf("read %d: %w", i, err)
		}
		if got.Revision != e.Revision || got.Record.Generation != uint32(i+1) {
			return fmt.Errorf("read %d at revision %d after writing %d at %d", got.Record.Generation, got.Revision, i+1, e.Revision)
		}
		m := jobs.Message{Work: render.Work{Tenant: tenant, Task: rec.ID, Generation: 1, Stage: render.StageSegment, Index: i}}
		if err := queue.Enqueue(ctx, m); err != nil {
			return fmt.Errorf("enqueue %d: %w", i, err)
		}
	}
	return nil
}
