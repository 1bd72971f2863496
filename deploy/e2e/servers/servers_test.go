package servers_test

import (
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// TestRestart: what each server acknowledged is there after it was killed, at
// the same address, and the connections of a farm come back by themselves.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	b := servers.Dial(t, s.Endpoints(), farm.DialOptions{})
	ctx := t.Context()
	rec := render.New(render.NewID(), "t", render.Spec{}, render.SourceRef{}, nil, time.Now())
	if _, err := b.Ledger.CreateRender(ctx, rec); err != nil {
		t.Fatal(err)
	}
	if err := b.Progress.Beat(ctx, render.Worker{ID: "w"}); err != nil {
		t.Fatal(err)
	}
	object, err := b.Blobs.Put(ctx, "k", strings.NewReader("text"), blob.PutOptions{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*servers.Process{s.NATS.Process, s.Redis.Process, s.S3.Process} {
		p.Restart(t)
	}
	if _, err := b.Ledger.GetRender(ctx, "t", rec.ID); err != nil {
		t.Errorf("the record: %v", err)
	}
	if workers, err := b.Progress.Workers(ctx); err != nil || len(workers) != 1 {
		t.Errorf("the worker: %v, %v", workers, err)
	}
	if got, err := b.Blobs.Stat(ctx, "k"); err != nil || got.ETag != object.ETag {
		t.Errorf("the object: %+v, %v", got, err)
	}
}

// TestStopped: a stopped server answers nobody until it goes on.
func TestStopped(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	b := servers.Dial(t, s.Endpoints(), farm.DialOptions{})
	s.Redis.Stop(t)
	got := make(chan error, 1)
	go func() { got <- b.Progress.Ping(t.Context()) }()
	select {
	case err := <-got:
		t.Errorf("a stopped server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	s.Redis.Continue(t)
	if err := <-got; err != nil {
		t.Errorf("after going on: %v", err)
	}
}
