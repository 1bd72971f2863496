package render

import (
	"cmp"
	"encoding/json"
	"slices"
	"time"
)

// State is what clients see of a render.
type State string

// States. The last three are terminal.
const (
	StateQueued           State = "queued"
	StateRendering        State = "rendering"
	StateAwaitingApproval State = "awaiting_watermark_approval"
	StateSucceeded        State = "succeeded"
	StateFailed           State = "failed"
	StateCancelled        State = "cancelled"
)

// States lists every state.
func States() []State {
	return []State{StateQueued, StateRendering, StateAwaitingApproval, StateSucceeded, StateFailed, StateCancelled}
}

// Terminal reports whether nothing can happen to the render any more.
func (s State) Terminal() bool {
	return s == StateSucceeded || s == StateFailed || s == StateCancelled
}

// Step is where in its way a render is; it decides which messages are due.
type Step string

// Steps, in order. A render without a pause skips preview and approval.
const (
	StepPreview  Step = "preview"
	StepApproval Step = "approval"
	StepPlan     Step = "plan"
	StepEncode   Step = "encode"
	StepAssemble Step = "assemble"
	StepDone     Step = "done"
)

// Lifetimes of the contract, section 2.
const (
	// TaskRetention is how long a task answers after its end, unless its
	// submitter asked for less.
	TaskRetention = 24 * time.Hour
	// MinTaskRetention is the least that one can ask for.
	MinTaskRetention = time.Hour
	// RenderRetention is how long a render and its objects are kept after
	// its end.
	RenderRetention = 7 * 24 * time.Hour
	// ApprovalWindow is how long a preview waits for a decision.
	ApprovalWindow = 30 * time.Minute
	// IdempotencyWindow is how long a key is bound to its render.
	IdempotencyWindow = 24 * time.Hour
)

// TaskRetentionFor is what a record keeps of the retention that a submitter
// asked for: at least MinTaskRetention, at most TaskRetention, zero for no wish.
func TaskRetentionFor(asked time.Duration) time.Duration {
	if asked == 0 {
		return 0
	}
	return min(max(asked, MinTaskRetention), TaskRetention)
}

// Channel is how a decision reached the farm.
type Channel string

// Channels.
const (
	ChannelElicitation Channel = "elicitation"
	ChannelTool        Channel = "tool"
	ChannelPage        Channel = "page"
)

// Decision is who decided what on a watermark preview, how and when.
type Decision struct {
	Approved bool
	Note     string // up to 500 characters
	By       string // subject of the credential, never a secret
	Channel  Channel
	At       time.Time
}

// InputRequest is an elicitation that was minted for this render. Its
// parameters are stored, so that every poll sends the same bytes.
type InputRequest struct {
	Key    string          // such as watermark-approval-1
	Params json.RawMessage // the elicitation's params as sent
	// Answered is "" while open, else accept, decline or cancel.
	Answered string
}

// Preview is the picture that waits for approval.
type Preview struct {
	Object   Object
	Width    int
	Height   int
	Ready    time.Time
	Deadline time.Time
}

// Output describes the finished video.
type Output struct {
	Object           Object
	Duration         time.Duration
	Width            int
	Height           int
	Frames           int64
	VideoCodec       string
	AudioCodec       string // "" when silent
	WatermarkApplied bool
	Encoder          string
	FallbackReason   string
	SegmentsTotal    int
	SegmentsReused   int
}

// Failure is why a render ended without a video.
type Failure struct {
	Code      Code
	Message   string
	Temporary bool
	Field     string // the argument to change, if one
	Reason    string
	Stage     Stage
	LogTail   []string
}

// Error makes the client's error of a failure.
func (f *Failure) Error() *Error {
	e := Errorf(f.Code, BlameJob, "%s", f.Message)
	e.Temporary = f.Temporary
	if f.Field != "" || f.Reason != "" {
		e.Details = &Details{Field: f.Field, Reason: f.Reason}
	}
	return e
}

// TraceContext is the caller's W3C context.
type TraceContext struct{ Traceparent, Tracestate, Baggage string }

// SourceRef pins an asset at submit: what the render uses is what was there
// then, even when the asset is deleted later in its retention.
type SourceRef struct {
	Asset    AssetID
	Name     string
	MIMEType string
	Object   Object
	Facts    *Facts
}

// Record is the record of truth of one render.
type Record struct {
	ID       ID
	Tenant   Tenant
	Spec     Spec
	SpecHash string
	Source   SourceRef
	Logo     *SourceRef // the watermark's image asset

	State      State
	Step       Step
	Generation uint32
	// RestartReason is why the present generation is not the first.
	RestartReason string

	Created time.Time
	Updated time.Time // last change
	Started time.Time // first claim; zero while queued
	Ended   time.Time // zero until terminal

	Preview  *Preview
	Overlay  *Object // the drawn watermark
	Inputs   []InputRequest
	Decision *Decision
	Plan     *Plan
	Output   *Output
	Failure  *Failure
	// CancelledBy is the subject that cancelled.
	CancelledBy string

	// IdempotencyKeyHash is the key's HMAC in hex, "" without a key.
	IdempotencyKeyHash string
	// Slot is the number of the concurrency slot that the render holds.
	Slot  int
	Trace TraceContext
	// TaskRetention is how long the id answers as a task after the end; zero is
	// the constant of that name.
	TaskRetention time.Duration
}

// TaskFor is how long the id answers as a task after the end.
func (r *Record) TaskFor() time.Duration { return cmp.Or(r.TaskRetention, TaskRetention) }

// Expires is when the render is forgotten: seven days from submit while it is
// accepted, from the end when it is finished.
func (r *Record) Expires() time.Time {
	if r.State.Terminal() {
		return r.Ended.Add(RenderRetention)
	}
	return r.Created.Add(RenderRetention)
}

// TaskExpired reports whether the id no longer answers as a task.
func (r *Record) TaskExpired(now time.Time) bool {
	return r.State.Terminal() && now.After(r.Ended.Add(r.TaskFor()))
}

// FollowUps names the messages that the record's present step needs. It is the
// outbox: whoever wrote the record publishes them before the acknowledgement,
// and whoever finds the record later may publish them again, because a message
// that waits or runs already is refused. It is derived from the record rather
// than stored in it, so that it cannot disagree with it.
func (r *Record) FollowUps() []Work {
	if r.State.Terminal() {
		return nil
	}
	w := Work{Tenant: r.Tenant, Task: r.ID, Generation: r.Generation}
	switch r.Step {
	case StepPreview:
		w.Stage = StagePreview
	case StepPlan:
		w.Stage = StagePlan
	case StepAssemble:
		w.Stage = StageAssemble
	case StepEncode:
		var all []Work
		for i := range r.Plan.Segments {
			w.Stage, w.Index = StageSegment, i
			all = append(all, w)
		}
		if r.Plan.HasAudio {
			w.Stage, w.Index = StageAudio, 0
			all = append(all, w)
		}
		return all
	default:
		return nil
	}
	return []Work{w}
}

// Wants reports whether the render still waits for this work.
func (r *Record) Wants(w Work) bool {
	return slices.Contains(r.FollowUps(), w)
}

// OpenInputs returns the minted input requests that nobody answered yet.
func (r *Record) OpenInputs() []InputRequest {
	if r.State != StateAwaitingApproval {
		return nil
	}
	var open []InputRequest
	for _, in := range r.Inputs {
		if in.Answered == "" {
			open = append(open, in)
		}
	}
	return open
}
