package render

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Event is something that happened to a render. Apply is the only way in which
// a record changes.
type Event interface{ event() string }

// Claimed says that a worker began the first piece of work.
type Claimed struct{}

// PreviewReady says that the preview stage has a result.
type PreviewReady struct{ Result StageResult }

// InputMinted says that an elicitation was made for a client that can show it.
type InputMinted struct{ Input InputRequest }

// InputAnswered says that a client answered an elicitation without deciding
// (decline, cancel, consent to open a page).
type InputAnswered struct{ Key, Action string }

// Decided says that somebody decided on the preview.
type Decided struct{ Decision Decision }

// ApprovalTimedOut says that the deadline passed.
type ApprovalTimedOut struct{}

// Planned says that the plan stage has a result.
type Planned struct{ Result StageResult }

// Encoded says that every segment of the generation, and the audio where there
// is one, has a result.
type Encoded struct{ Generation uint32 }

// Assembled says that the assemble stage has a result.
type Assembled struct{ Result StageResult }

// Failed says that the render cannot be finished.
type Failed struct{ Failure Failure }

// Cancelled says that a client asked for the end.
type Cancelled struct{ By string }

// Restarted says that the generation's encoding is given up and begins again
// under a new one, for instance because a hardware encoder failed. Of several
// workers that find this out only the first restarts anything.
type Restarted struct {
	Generation uint32
	Reason     string
}

func (Claimed) event() string          { return "claimed" }
func (PreviewReady) event() string     { return "preview ready" }
func (InputMinted) event() string      { return "input minted" }
func (InputAnswered) event() string    { return "input answered" }
func (Decided) event() string          { return "decided" }
func (ApprovalTimedOut) event() string { return "approval timed out" }
func (Planned) event() string          { return "planned" }
func (Encoded) event() string          { return "encoded" }
func (Assembled) event() string        { return "assembled" }
func (Failed) event() string           { return "failed" }
func (Cancelled) event() string        { return "cancelled" }
func (Restarted) event() string        { return "restarted" }

// EventName is the event's name in words, such as "preview ready".
func EventName(ev Event) string { return ev.event() }

// ErrNoChange is returned when the event is legal and says what the record
// says already: a repeated decision, a second claim, a cancel of a cancelled
// render. Nothing has to be written.
var ErrNoChange = errors.New("render: the record says so already")

// ErrIllegal is returned when the event cannot happen in the record's state: a
// late result, a decision on what is not paused. Nothing may be written.
var ErrIllegal = errors.New("render: not possible in this state")

// New makes the record of an accepted request.
func New(id ID, tenant Tenant, spec Spec, source SourceRef, logo *SourceRef, now time.Time) *Record {
	r := &Record{
		ID: id, Tenant: tenant, Spec: spec, SpecHash: spec.Hash(), Source: source, Logo: logo,
		State: StateQueued, Step: StepPlan, Generation: 1, Created: now, Updated: now,
	}
	if spec.NeedsApproval() {
		r.Step = StepPreview
	}
	return r
}

// Apply returns the record after the event, leaving rec untouched. Errors are
// ErrNoChange, ErrIllegal (both wrapped with state and event), or an *Error
// that a client is told (approval codes).
func Apply(rec *Record, ev Event, now time.Time) (*Record, error) {
	next := *rec
	r := &next
	r.Inputs = slices.Clone(rec.Inputs)
	if err := apply(r, ev, now); err != nil {
		if errors.Is(err, ErrIllegal) || errors.Is(err, ErrNoChange) {
			return nil, fmt.Errorf("%s while %s at step %s: %w", ev.event(), rec.State, rec.Step, err)
		}
		return nil, err
	}
	r.Updated = now
	return r, nil
}

func apply(r *Record, ev Event, now time.Time) error {
	switch e := ev.(type) {
	case Claimed:
		return applyClaimed(r, now)
	case PreviewReady:
		return applyPreviewReady(r, e, now)
	case InputMinted:
		return applyInputMinted(r, e)
	case InputAnswered:
		return applyInputAnswered(r, e)
	case Decided:
		return applyDecided(r, e, now)
	case ApprovalTimedOut:
		return applyApprovalTimedOut(r, now)
	case Planned:
		return applyPlanned(r, e, now)
	case Encoded:
		return applyEncoded(r, e)
	case Assembled:
		return applyAssembled(r, e, now)
	case Failed:
		return applyFailed(r, e, now)
	case Cancelled:
		return applyCancelled(r, e, now)
	case Restarted:
		return applyRestarted(r, e)
	default:
		return fmt.Errorf("unknown event %T: %w", ev, ErrIllegal)
	}
}

func applyClaimed(r *Record, now time.Time) error {
	switch {
	case r.State.Terminal():
		return ErrIllegal
	case r.State != StateQueued:
		return ErrNoChange
	}
	start(r, now)
	r.State = StateRendering
	return nil
}

func applyPreviewReady(r *Record, e PreviewReady, now time.Time) error {
	if r.Step != StepPreview || e.Result.Work.Generation != r.Generation {
		return ErrIllegal
	}
	start(r, now)
	r.State, r.Step = StateAwaitingApproval, StepApproval
	r.Preview = &Preview{Object: e.Result.Object, Width: e.Result.Width, Height: e.Result.Height, Ready: now, Deadline: now.Add(ApprovalWindow)}
	if e.Result.Overlay.Key != "" {
		overlay := e.Result.Overlay
		r.Overlay = &overlay
	}
	return nil
}

func applyInputMinted(r *Record, e InputMinted) error {
	if r.State != StateAwaitingApproval {
		return ErrIllegal
	}
	for _, in := range r.Inputs {
		if in.Key == e.Input.Key {
			return ErrNoChange
		}
	}
	r.Inputs = append(r.Inputs, e.Input)
	return nil
}

func applyInputAnswered(r *Record, e InputAnswered) error {
	if r.State != StateAwaitingApproval {
		return ErrIllegal
	}
	for i, in := range r.Inputs {
		if in.Key != e.Key {
			continue
		}
		if in.Answered != "" {
			return ErrNoChange
		}
		r.Inputs[i].Answered = e.Action
		return nil
	}
	return ErrNoChange // unknown keys are ignored
}

func applyDecided(r *Record, e Decided, now time.Time) error {
	if r.Decision != nil {
		if r.Decision.Approved == e.Decision.Approved {
			return ErrNoChange
		}
		return Errorf(CodeApprovalAlreadyRecorded, BlameCaller, "The watermark was %s before; that decision stands.", decisionWord(r.Decision.Approved))
	}
	if r.State != StateAwaitingApproval || r.ApprovalOverdue(now) {
		return ApprovalNotPending(r.State)
	}
	d := e.Decision
	d.At = now
	r.Decision = &d
	if !d.Approved {
		end(r, StateFailed, now)
		r.Failure = &Failure{Code: CodeWatermarkRejected, Message: "The watermark preview was rejected, which ended the render. Submit again with another watermark."}
		return nil
	}
	r.State, r.Step = StateRendering, StepPlan
	return nil
}

// ApprovalOverdue reports whether the render still waits for a decision whose
// time is over.
func (r *Record) ApprovalOverdue(now time.Time) bool {
	return r.State == StateAwaitingApproval && !now.Before(r.Preview.Deadline)
}

// ApprovalNotPending is the error of a decision that a render in this state
// does not wait for.
func ApprovalNotPending(s State) *Error {
	if s == StateAwaitingApproval {
		return Errorf(CodeApprovalNotPending, BlameCaller, "The 30 minutes for a decision are over, and the render ends.")
	}
	return Errorf(CodeApprovalNotPending, BlameCaller, "The render is %s and does not wait for an approval.", s)
}

func decisionWord(approved bool) string {
	if approved {
		return "approved"
	}
	return "rejected"
}

func applyApprovalTimedOut(r *Record, now time.Time) error {
	if !r.ApprovalOverdue(now) {
		return ErrIllegal
	}
	end(r, StateFailed, now)
	r.Failure = &Failure{Code: CodeWatermarkApprovalTimeout, Message: "Nobody decided on the watermark preview within 30 minutes, which ended the render. Submit again when somebody can decide."}
	return nil
}

func applyPlanned(r *Record, e Planned, now time.Time) error {
	if r.Step != StepPlan || e.Result.Plan == nil || e.Result.Work.Generation != r.Generation {
		return ErrIllegal
	}
	start(r, now)
	r.State, r.Step = StateRendering, StepEncode
	r.Plan = e.Result.Plan
	if e.Result.Overlay.Key != "" {
		overlay := e.Result.Overlay
		r.Overlay = &overlay
	}
	return nil
}

func applyEncoded(r *Record, e Encoded) error {
	if r.Step != StepEncode || e.Generation != r.Generation {
		return ErrIllegal
	}
	r.Step = StepAssemble
	return nil
}

func applyAssembled(r *Record, e Assembled, now time.Time) error {
	if r.Step != StepAssemble || e.Result.Output == nil || e.Result.Work.Generation != r.Generation {
		return ErrIllegal
	}
	end(r, StateSucceeded, now)
	r.Output = e.Result.Output
	return nil
}

func applyFailed(r *Record, e Failed, now time.Time) error {
	if r.State.Terminal() {
		return ErrIllegal
	}
	end(r, StateFailed, now)
	f := e.Failure
	r.Failure = &f
	return nil
}

func applyCancelled(r *Record, e Cancelled, now time.Time) error {
	if r.State == StateCancelled {
		return ErrNoChange
	}
	if r.State.Terminal() {
		return ErrIllegal
	}
	end(r, StateCancelled, now)
	r.CancelledBy = e.By
	return nil
}

func applyRestarted(r *Record, e Restarted) error {
	if (r.Step != StepEncode && r.Step != StepAssemble) || e.Generation != r.Generation {
		return ErrIllegal
	}
	r.Generation++
	r.Step, r.Plan, r.RestartReason = StepPlan, nil, e.Reason
	return nil
}

// start notes the first sign of a worker: a result may be seen before the claim
// that led to it.
func start(r *Record, now time.Time) {
	if r.Started.IsZero() {
		r.Started = now
	}
}

// end makes the record terminal. Its step is StepDone then, at which no event
// but a repeated decision or cancel is understood.
func end(r *Record, s State, now time.Time) {
	r.State, r.Step, r.Ended = s, StepDone, now
}
