package farm

import (
	"context"
	"errors"
	"fmt"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

const approvalTimer = "approval"

// change applies an event to a record by compare-and-set, reading again when it
// lost, and makes the event anew from each record that it finds (nil: nothing to
// do). It returns the record as it then is; changed tells whether this call
// wrote it. Errors of the state machine come as they are, those of the ledger
// as unavailable, an unknown render as render_not_found.
func (f *Farm) change(ctx context.Context, tenant render.Tenant, id render.ID, event func(*render.Record) render.Event) (entry ledger.RenderEntry, changed bool, err error) {
	for {
		entry, err = f.entry(ctx, tenant, id)
		if err != nil {
			return entry, false, err
		}
		ev := event(entry.Record)
		if ev == nil {
			return entry, false, nil
		}
		next, err := render.Apply(entry.Record, ev, f.now())
		if errors.Is(err, render.ErrNoChange) {
			return entry, false, nil
		}
		if err != nil {
			return entry, false, err
		}
		written, err := f.stores.Ledger.UpdateRender(ctx, entry, next)
		if errors.Is(err, ledger.ErrConflict) {
			if ctx.Err() != nil {
				return entry, false, unavailable("write the render", ctx.Err())
			}
			continue
		}
		if err != nil {
			return entry, false, unavailable("write the render", err)
		}
		failpoint.HitFor(failpoint.RecordChanged, render.EventName(ev))
		f.log.InfoContext(ctx, "render changed", "render_id", id, "tenant", tenant.Key(), "state", next.State, "step", next.Step)
		if next.State.Terminal() && f.cfg.Metrics != nil {
			f.cfg.Metrics.RenderEnded(ctx, string(next.State))
		}
		return written, true, nil
	}
}

func (f *Farm) entry(ctx context.Context, tenant render.Tenant, id render.ID) (ledger.RenderEntry, error) {
	if _, ok := render.ParseID(string(id)); !ok {
		return ledger.RenderEntry{}, renderNotFound()
	}
	entry, err := f.stores.Ledger.GetRender(ctx, tenant, id)
	if errors.Is(err, ledger.ErrNotFound) {
		return entry, renderNotFound()
	}
	if err != nil {
		return entry, unavailable("read the render", err)
	}
	return entry, nil
}

func renderNotFound() *render.Error {
	return render.Errorf(render.CodeRenderNotFound, render.BlameCaller, "No render of yours has this id; it may be past its retention of 7 days after the end.")
}

// settle does what a record's state asks for beside itself: publish the step's
// messages, set the timer of a pause, give back what a finished render held. It
// may be done any number of times, by anybody.
//
// A worker only publishes. A gateway does the rest when it hears of the end,
// or at its next reconciliation, since the render holds a slot until then.
func (f *Farm) settle(ctx context.Context, rec *render.Record) error {
	if f.worker() && (rec.State.Terminal() || rec.Step == render.StepApproval) {
		return nil
	}
	if rec.State.Terminal() {
		return f.settleEnd(ctx, rec)
	}
	if rec.Step == render.StepApproval {
		err := f.stores.Jobs.Schedule(ctx, jobs.Timer{Tenant: rec.Tenant, Task: rec.ID, Name: approvalTimer, At: rec.Preview.Deadline})
		if err != nil {
			return fmt.Errorf("schedule the approval's deadline: %w", err)
		}
		failpoint.Hit(failpoint.PauseTimed)
		return nil
	}
	works := rec.FollowUps()
	if len(works) > 1 {
		var err error
		if works, err = f.unfinished(ctx, rec, works); err != nil {
			return err
		}
	}
	msgs := make([]jobs.Message, 0, len(works))
	for _, w := range works {
		msgs = append(msgs, jobs.Message{Work: w, Class: rec.ClassOf(w), Trace: rec.Trace})
	}
	if err := f.stores.Jobs.Enqueue(ctx, msgs...); err != nil {
		return fmt.Errorf("publish stage %s: %w", rec.Step, err)
	}
	return nil
}

// unfinished leaves out the works that have a result.
func (f *Farm) unfinished(ctx context.Context, rec *render.Record, works []render.Work) ([]render.Work, error) {
	results, err := f.stores.Ledger.Results(ctx, rec.Tenant, rec.ID, rec.Generation)
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	done := make(map[render.Work]bool, len(results))
	for _, r := range results {
		done[r.Work] = true
	}
	open := works[:0:0]
	for _, w := range works {
		if !done[w] {
			open = append(open, w)
		}
	}
	return open, nil
}

func (f *Farm) settleEnd(ctx context.Context, rec *render.Record) error {
	var errs []error
	if rec.State != render.StateSucceeded {
		errs = append(errs, f.stores.Jobs.Cancel(ctx, rec.ID))
		failpoint.Hit(failpoint.EndBroadcast)
	}
	errs = append(errs, f.removeLeftovers(ctx, rec))
	failpoint.Hit(failpoint.EndRemoved)
	errs = append(errs, f.settleTime(ctx, rec))
	failpoint.Hit(failpoint.EndSettled)
	// The slot last: as long as it is taken, reconciliation finds the render.
	// What a store refused just now is left to the sweep all the same, since
	// the tenant wants the slot.
	errs = append(errs, f.stores.Ledger.FreeSlot(ctx, rec.Tenant, rec.Slot, rec.ID))
	failpoint.Hit(failpoint.EndSlotFreed)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("settle the end of %s: %w", rec.ID, err)
	}
	return nil
}

// removeLeftovers deletes a finished render's intermediate objects: everything
// that its record does not name. A straggler may still write one afterwards.
func (f *Farm) removeLeftovers(ctx context.Context, rec *render.Record) error {
	return f.removeExcept(ctx, rec, named(rec))
}

// named are the keys of the objects that a finished render keeps.
func named(rec *render.Record) map[string]bool {
	keys := map[string]bool{}
	if rec.Output != nil {
		keys[rec.Output.Object.Key] = true
	}
	if rec.Preview != nil {
		keys[rec.Preview.Object.Key] = true
	}
	return keys
}

// advance moves a record on as far as the results that exist allow, and settles
// it after each move. again settles also a record that did not move: a message
// that came twice may mean that somebody died between the write and the publish.
func (f *Farm) advance(ctx context.Context, tenant render.Tenant, id render.ID, again bool) error {
	for {
		var lookErr error
		entry, changed, err := f.change(ctx, tenant, id, func(rec *render.Record) render.Event {
			ev, err := f.due(ctx, rec)
			lookErr = err
			return ev
		})
		if err == nil {
			err = lookErr
		}
		if err != nil {
			return err
		}
		if changed || again {
			if err := f.settle(ctx, entry.Record); err != nil {
				return unavailable("settle the render", err)
			}
		}
		if !changed {
			return nil
		}
		again = false
	}
}

// due returns the event that the stored results, or the time, make due; nil if
// none.
func (f *Farm) due(ctx context.Context, rec *render.Record) (render.Event, error) {
	if rec.State.Terminal() {
		return nil, nil
	}
	switch rec.Step {
	case render.StepApproval:
		if f.worker() || !rec.ApprovalOverdue(f.now()) {
			return nil, nil
		}
		return render.ApprovalTimedOut{}, nil
	case render.StepEncode:
		n, err := f.stores.Ledger.CountResults(ctx, rec.Tenant, rec.ID, rec.Generation)
		if err != nil {
			return nil, unavailable("count results", err)
		}
		if n < rec.Plan.EncodeWorks() {
			return f.withoutHardware(ctx, rec), nil
		}
		return render.Encoded{Generation: rec.Generation}, nil
	case render.StepPreview, render.StepPlan, render.StepAssemble:
		res, err := f.stores.Ledger.GetResult(ctx, rec.FollowUps()[0])
		if errors.Is(err, ledger.ErrNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, unavailable("read a result", err)
		}
		switch rec.Step {
		case render.StepPreview:
			return render.PreviewReady{Result: *res}, nil
		case render.StepPlan:
			return render.Planned{Result: *res}, nil
		default:
			return render.Assembled{Result: *res}, nil
		}
	default:
		return nil, nil
	}
}

// changeAndSettle is change, then settle whatever came out, also when this call
// changed nothing but the record is where the event wanted it.
func (f *Farm) changeAndSettle(ctx context.Context, tenant render.Tenant, id render.ID, event func(*render.Record) render.Event) (*View, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	entry, changed, err := f.change(ctx, tenant, id, event)
	if err != nil {
		return nil, err
	}
	if changed {
		if err := f.settle(ctx, entry.Record); err != nil {
			f.log.WarnContext(ctx, "settle", "render_id", id, "error", err)
		}
	}
	return f.view(ctx, entry.Record), nil
}

// Decide records a decision on a watermark preview. The same decision again
// succeeds; the opposite is approval_already_recorded; what is not paused is
// approval_not_pending, and so is what nobody decided in time: a decision that
// comes late ends the render itself when no timer has yet.
func (f *Farm) Decide(ctx context.Context, tenant render.Tenant, id render.ID, d render.Decision) (*View, error) {
	late := false
	v, err := f.changeAndSettle(ctx, tenant, id, func(rec *render.Record) render.Event {
		if late = rec.ApprovalOverdue(f.now()); late {
			return render.ApprovalTimedOut{}
		}
		return render.Decided{Decision: d}
	})
	if err == nil && late {
		return nil, render.ApprovalNotPending(v.Record.State)
	}
	return v, err
}

// MintInput stores an elicitation once. The view holds the stored one, which
// may be an earlier one of the same key.
func (f *Farm) MintInput(ctx context.Context, tenant render.Tenant, id render.ID, in render.InputRequest) (*View, error) {
	entry, changed, err := f.change(ctx, tenant, id, func(rec *render.Record) render.Event {
		if rec.State != render.StateAwaitingApproval {
			return nil
		}
		return render.InputMinted{Input: in}
	})
	if err != nil {
		return nil, err
	}
	if changed { // the worker that began the pause could not set its timer
		if err := f.settle(ctx, entry.Record); err != nil {
			f.log.WarnContext(ctx, "settle", "render_id", id, "error", err)
		}
	}
	return f.view(ctx, entry.Record), nil
}

// AnswerInput records an answer that decides nothing: decline, cancel, or the
// consent to open a page. Unknown and answered keys are ignored.
func (f *Farm) AnswerInput(ctx context.Context, tenant render.Tenant, id render.ID, key, action string) (*View, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	entry, _, err := f.change(ctx, tenant, id, func(rec *render.Record) render.Event {
		if rec.State != render.StateAwaitingApproval {
			return nil
		}
		return render.InputAnswered{Key: key, Action: action}
	})
	if err != nil {
		return nil, err
	}
	return f.view(ctx, entry.Record), nil
}

// Cancel ends a render, by one compare-and-set: whatever finishes later loses.
// Cancelling a finished render succeeds and changes nothing.
func (f *Farm) Cancel(ctx context.Context, tenant render.Tenant, id render.ID, by string) (*View, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	entry, changed, err := f.change(ctx, tenant, id, func(rec *render.Record) render.Event {
		if rec.State.Terminal() {
			return nil
		}
		return render.Cancelled{By: by}
	})
	if err != nil {
		return nil, err
	}
	if changed {
		if err := f.settle(ctx, entry.Record); err != nil {
			f.log.WarnContext(ctx, "settle", "render_id", id, "error", err)
		}
	}
	return f.view(ctx, entry.Record), nil
}
