package render

import (
	"slices"
	"time"
)

// MaxSegments bounds a plan that is believed. A real one has far fewer.
const MaxSegments = 10_000

// Join makes the record of a render from its three parts: its state, which
// workers move on, and what only a gateway may say, its submission and, when
// there is one, its approval.
//
// The submission has what a client asked for and what was pinned then. The
// approval has Inputs, Decision and, once the pause is over, State: rendering
// after an approval, else the end that the render came to, with Ended, Failure
// and CancelledBy.
//
// The state counts only as far as the other parts allow, and as far as it
// makes sense: a worker that was taken over may have written it. A render that
// claims to be past a pause that nobody ended is still paused; one that claims
// a step without what the step stands on is at the step before.
func Join(state, submission, approval *Record) *Record {
	r := *state
	r.ID, r.Tenant, r.Spec, r.SpecHash = submission.ID, submission.Tenant, submission.Spec, submission.SpecHash
	r.Source, r.Logo, r.Created = submission.Source, submission.Logo, submission.Created
	r.IdempotencyKeyHash, r.Slot, r.Trace, r.TaskRetention = submission.IdempotencyKeyHash, submission.Slot, submission.Trace, submission.TaskRetention
	r.Inputs, r.Decision = nil, nil
	r.Generation = max(r.Generation, 1)
	var ended State
	if approval != nil {
		r.Inputs, r.Decision, ended = approval.Inputs, approval.Decision, approval.State
		if approval.Updated.After(r.Updated) {
			r.Updated = approval.Updated
		}
	}
	switch {
	case ended.Terminal():
		r.State, r.Step, r.Ended = ended, StepDone, approval.Ended
		r.Failure, r.CancelledBy, r.Output = approval.Failure, approval.CancelledBy, nil
		return &r
	case r.Spec.NeedsApproval() && ended == "" && r.pastPause():
		r.backTo(StepApproval)
	case (!r.Spec.NeedsApproval() || ended != "") && (r.Step == StepPreview || r.Step == StepApproval):
		r.backTo(StepPlan)
	}
	r.makeSound()
	return &r
}

// Step of a render that waits for its first worker is no different from that of
// one that runs: only a step that is left again changes the state.
func (r *Record) backTo(s Step) {
	if r.State != StateQueued || s == StepApproval {
		r.State = StateRendering
	}
	if s == StepApproval {
		r.State = StateAwaitingApproval
	}
	r.Step, r.Ended = s, time.Time{}
	r.Plan, r.Output, r.Failure, r.CancelledBy = nil, nil, nil, ""
}

func (r *Record) pastPause() bool {
	switch r.Step {
	case StepPlan, StepEncode, StepAssemble:
		return true
	default:
		return r.State == StateSucceeded
	}
}

// makeSound takes back what a state claims without ground.
func (r *Record) makeSound() {
	first := StepPlan
	if r.Spec.NeedsApproval() && r.Decision == nil {
		first = StepPreview
	}
	switch {
	case r.State == StateSucceeded && r.Output == nil,
		!r.State.Terminal() && !slices.Contains([]Step{StepPreview, StepApproval, StepPlan, StepEncode, StepAssemble}, r.Step):
		r.backTo(first)
	case r.State.Terminal():
		r.Step = StepDone
		if r.State == StateFailed && r.Failure == nil {
			r.Failure = &Failure{Code: CodeRenderFailed, Temporary: true, Message: "The farm could not finish this render; submitting it again may succeed."}
		}
		return
	}
	if r.Plan != nil && (len(r.Plan.Segments) == 0 || len(r.Plan.Segments) > MaxSegments) {
		r.Plan = nil
	}
	switch {
	case (r.Step == StepEncode || r.Step == StepAssemble) && r.Plan == nil:
		r.backTo(StepPlan)
	case r.Step == StepApproval && r.Preview == nil:
		r.backTo(StepPreview)
	case r.Step == StepApproval:
		r.State = StateAwaitingApproval
	case r.State != StateQueued:
		r.State = StateRendering
	}
}
