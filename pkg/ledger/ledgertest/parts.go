package ledgertest

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
)

// paused makes a render that waits for an approval.
func (b *bench) paused(t *testing.T) ledger.RenderEntry {
	t.Helper()
	spec := newRecord(alice).Spec
	spec.Watermark, spec.RequireApproval = &render.Watermark{Mode: render.WatermarkText, Text: "x"}, true
	rec := render.New(render.NewID(), alice, spec, render.SourceRef{Asset: spec.Source}, nil, time.Now().UTC())
	e, err := b.CreateRender(t.Context(), rec)
	ok(t, err)
	return b.apply(t, e, render.PreviewReady{Result: render.StageResult{Work: render.Work{Generation: 1}, Object: render.Object{Key: "p", ETag: "e"}}})
}

func (b *bench) apply(t *testing.T, e ledger.RenderEntry, ev render.Event) ledger.RenderEntry {
	t.Helper()
	next, err := render.Apply(e.Record, ev, time.Now().UTC())
	ok(t, err)
	e, err = b.UpdateRender(t.Context(), e, next)
	ok(t, err)
	return e
}

func (b *bench) reread(t *testing.T, e ledger.RenderEntry) ledger.RenderEntry {
	t.Helper()
	e, err := b.GetRender(t.Context(), e.Record.Tenant, e.Record.ID)
	ok(t, err)
	return e
}

func decision(approved bool) render.Event {
	return render.Decided{Decision: render.Decision{Approved: approved, By: "me", Channel: render.ChannelTool}}
}

// testStateAlone: a state whose submission is missing, because its maker died or
// may make no renders, is no render, and is in nobody's way.
func testStateAlone(t *testing.T, b *bench) {
	ctx := t.Context()
	rec := newRecord(alice)
	_, err := b.CreateRender(ctx, rec)
	ok(t, err)
	template := b.raw(t, string(rec.ID))
	for range 8 { // some of them in the shard where they belong
		lone := newRecord(alice)
		data, err := wire.Marshal(wire.FromRender(lone))
		ok(t, err)
		subject := template.Subject[:len(template.Subject)-len(rec.ID)] + string(lone.ID)
		_, err = b.js.Publish(ctx, subject, data)
		ok(t, err)
		_, err = b.GetRender(ctx, alice, lone.ID)
		wantErr(t, err, ledger.ErrNotFound)
		for e, err := range b.Renders(ctx) {
			ok(t, err)
			if e.Record.ID == lone.ID {
				t.Error("a state alone is among the renders")
			}
		}
		_, err = b.CreateRender(ctx, lone)
		ok(t, err)
		got, err := b.GetRender(ctx, alice, lone.ID)
		ok(t, err)
		if got.Record.SpecHash != lone.SpecHash {
			t.Errorf("read %+v", got.Record)
		}
		_, err = b.CreateRender(ctx, lone)
		wantErr(t, err, ledger.ErrExists)
		b.wantTTL(t, string(lone.ID)+".submission", 2*render.RenderRetention)
	}
}

// testSameRenderAtOnce: of many that create a render one does.
func testSameRenderAtOnce(t *testing.T, b *bench) {
	rec := newRecord(bob)
	var wg sync.WaitGroup
	made := make(chan bool, 20)
	for range 20 {
		wg.Go(func() {
			switch _, err := b.CreateRender(t.Context(), rec); {
			case err == nil:
				made <- true
			case !errors.Is(err, ledger.ErrExists):
				t.Errorf("create: %v", err)
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Errorf("%d made it, want 1", len(made))
	}
}

// testForgedState: what a state says that only a gateway may say does not count.
func testForgedState(t *testing.T, b *bench) {
	ctx := t.Context()
	e := b.paused(t)
	msg := b.raw(t, string(e.Record.ID))
	forged := *e.Record
	forged.State, forged.Step, forged.Slot, forged.SpecHash = render.StateRendering, render.StepPlan, 7, "forged"
	forged.Decision = &render.Decision{Approved: true, By: "forged", Channel: render.ChannelPage}
	data, err := wire.Marshal(wire.FromRender(&forged))
	ok(t, err)
	_, err = b.js.Publish(ctx, msg.Subject, data)
	ok(t, err)
	e = b.reread(t, e)
	if r := e.Record; r.Step != render.StepApproval || r.Decision != nil || r.Slot != 0 || r.SpecHash == "forged" {
		t.Errorf("a forged state is read as %+v", r)
	}
	e = b.apply(t, e, decision(true))
	if e = b.reread(t, e); e.Record.Step != render.StepPlan || e.Record.Decision == nil || e.Record.Decision.By != "me" {
		t.Errorf("approved: %+v", e.Record)
	}
}

// testPauseEndsInTheApproval: what ended a pause stands, also when the state did
// not follow, and only one end wins.
func testPauseEndsInTheApproval(t *testing.T, b *bench) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		end   render.Event
		state render.State
		step  render.Step
	}{
		"approved":  {decision(true), render.StateRendering, render.StepPlan},
		"rejected":  {decision(false), render.StateFailed, render.StepDone},
		"cancelled": {render.Cancelled{By: "me"}, render.StateCancelled, render.StepDone},
	} {
		e := b.paused(t)
		e = b.apply(t, e, render.InputMinted{Input: render.InputRequest{Key: "k", Params: []byte(`{}`)}})
		state := b.raw(t, string(e.Record.ID))
		if e = b.reread(t, e); len(e.Record.Inputs) != 1 {
			t.Errorf("%s: inputs %+v", name, e.Record.Inputs)
		}
		var wg sync.WaitGroup
		won := make(chan bool, 10)
		for range 10 {
			wg.Go(func() {
				next, err := render.Apply(e.Record, c.end, time.Now().UTC())
				if err == nil {
					_, err = b.UpdateRender(ctx, e, next)
				}
				if err == nil {
					won <- true
				} else if !errors.Is(err, ledger.ErrConflict) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Errorf("%s: %d won, want 1", name, len(won))
		}
		b.wantTTL(t, string(e.Record.ID)+".approval", 2*render.RenderRetention)
		// As if whoever ended it had died before the state was written.
		_, err := b.js.Publish(ctx, state.Subject, state.Data)
		ok(t, err)
		if e = b.reread(t, e); e.Record.State != c.state || e.Record.Step != c.step || len(e.Record.Inputs) != 1 {
			t.Errorf("%s: read %+v", name, e.Record)
		}
		if c.step != render.StepPlan {
			continue
		}
		plan := &render.Plan{Segments: []render.Segment{{To: 5}}}
		e = b.apply(t, e, render.Planned{Result: render.StageResult{Work: render.Work{Generation: 1}, Plan: plan}})
		if e = b.reread(t, e); e.Record.Step != render.StepEncode || e.Record.Decision == nil {
			t.Errorf("%s: went on to %+v", name, e.Record)
		}
	}
}
