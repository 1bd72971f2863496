package render

import (
	"reflect"
	"testing"
	"time"
)

// parts splits a record as the ledger does.
func parts(r *Record, paused bool) (state, submission, approval *Record) {
	state = &Record{
		ID: r.ID, Tenant: r.Tenant, Updated: r.Updated, State: r.State, Step: r.Step, Generation: r.Generation,
		RestartReason: r.RestartReason, Started: r.Started, Ended: r.Ended, Preview: r.Preview, Overlay: r.Overlay,
		Plan: r.Plan, Output: r.Output, Failure: r.Failure, CancelledBy: r.CancelledBy,
	}
	submission = &Record{
		ID: r.ID, Tenant: r.Tenant, Created: r.Created, Spec: r.Spec, SpecHash: r.SpecHash, Source: r.Source, Logo: r.Logo,
		IdempotencyKeyHash: r.IdempotencyKeyHash, Slot: r.Slot, Trace: r.Trace, TaskRetention: r.TaskRetention,
	}
	if paused || r.Decision != nil {
		approval = &Record{ID: r.ID, Tenant: r.Tenant, Updated: r.Updated, Inputs: r.Inputs, Decision: r.Decision}
		if r.Step != StepApproval {
			approval.State = StateRendering
			if r.Decision == nil || !r.Decision.Approved {
				approval.State, approval.Ended, approval.Failure, approval.CancelledBy = r.State, r.Ended, r.Failure, r.CancelledBy
			}
		}
	}
	return state, submission, approval
}

// way is a render from its submission on, one event after the other.
func way(t *testing.T, needsApproval bool, events ...Event) []*Record {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	spec := Spec{Source: NewAssetID(), Format: "mp4", Resolution: "720p", Quality: "standard"}
	if needsApproval {
		spec.Watermark, spec.RequireApproval = &Watermark{Mode: WatermarkText, Text: "x"}, true
	}
	r := New(NewID(), "t", spec, SourceRef{Asset: spec.Source}, nil, now)
	all := []*Record{r}
	for _, ev := range events {
		now = now.Add(time.Second)
		next, err := Apply(r, ev, now)
		if err != nil {
			t.Fatal(err)
		}
		r = next
		all = append(all, r)
	}
	return all
}

func previewReady() Event {
	return PreviewReady{Result: StageResult{Work: Work{Generation: 1}, Object: Object{Key: "p"}}}
}

func planned() Event {
	return Planned{Result: StageResult{Work: Work{Generation: 1}, Plan: &Plan{Segments: []Segment{{To: 5}}}}}
}

func assembled() Event {
	return Assembled{Result: StageResult{Work: Work{Generation: 1}, Output: &Output{Frames: 5}}}
}

// TestJoinIsTheRecord: what the state machine makes is what its parts make.
func TestJoinIsTheRecord(t *testing.T) {
	t.Parallel()
	approve, reject := Decided{Decision: Decision{Approved: true, By: "a"}}, Decided{Decision: Decision{By: "a"}}
	mint := InputMinted{Input: InputRequest{Key: "k"}}
	for name, records := range map[string][]*Record{
		"no pause":         way(t, false, Claimed{}, planned(), Encoded{Generation: 1}, assembled()),
		"approved":         way(t, true, Claimed{}, previewReady(), mint, InputAnswered{Key: "k", Action: "accept"}, approve, planned(), Encoded{Generation: 1}, assembled()),
		"rejected":         way(t, true, Claimed{}, previewReady(), reject),
		"cancelled paused": way(t, true, previewReady(), Cancelled{By: "b"}),
		"cancelled before": way(t, true, Claimed{}, Cancelled{By: "b"}),
		"cancelled after":  way(t, true, Claimed{}, previewReady(), approve, planned(), Cancelled{By: "b"}),
		"failed":           way(t, false, Claimed{}, Failed{Failure: Failure{Code: CodeRenderFailed}}),
		"restarted":        way(t, false, Claimed{}, planned(), Restarted{Generation: 1, Reason: "r"}),
	} {
		paused := false
		for i, want := range records {
			paused = paused || want.Step == StepApproval
			state, submission, approval := parts(want, paused)
			if got := Join(state, submission, approval); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, record %d:\n got %+v\nwant %+v", name, i, got, want)
			}
		}
	}
}

// TestJoinMakesUpForAStateThatDidNotFollow: the approval is written first.
func TestJoinMakesUpForAStateThatDidNotFollow(t *testing.T) {
	t.Parallel()
	for name, ev := range map[string]Event{
		"approved":  Decided{Decision: Decision{Approved: true}},
		"rejected":  Decided{Decision: Decision{}},
		"cancelled": Cancelled{By: "b"},
	} {
		records := way(t, true, Claimed{}, previewReady(), ev)
		before, want := records[2], records[3]
		state, submission, _ := parts(before, true)
		_, _, approval := parts(want, true)
		if got := Join(state, submission, approval); !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, want)
		}
	}
}

// TestJoinBelievesNoForgedState gives states that a worker may write and nobody
// may act upon.
func TestJoinBelievesNoForgedState(t *testing.T) {
	t.Parallel()
	records := way(t, true, Claimed{}, previewReady())
	paused, submission, approval := parts(records[2], true)
	rejected := way(t, true, Claimed{}, previewReady(), Decided{Decision: Decision{}})
	_, _, rejection := parts(rejected[3], true)
	queued, _, _ := parts(records[0], false)
	plain := way(t, false)
	_, noPause, _ := parts(plain[0], false)
	for name, c := range map[string]struct {
		state                *Record
		submission, approval *Record
		forge                func(*Record)
		wantState            State
		wantStep             Step
	}{
		"planned without a decision":   {paused, submission, approval, func(r *Record) { r.State, r.Step = StateRendering, StepPlan }, StateAwaitingApproval, StepApproval},
		"encoding without a decision":  {paused, submission, nil, func(r *Record) { r.State, r.Step, r.Plan = StateRendering, StepEncode, &Plan{Segments: []Segment{{}}} }, StateAwaitingApproval, StepApproval},
		"succeeded without a decision": {paused, submission, nil, func(r *Record) { r.State, r.Step, r.Output = StateSucceeded, StepDone, &Output{} }, StateAwaitingApproval, StepApproval},
		"its own decision":             {paused, submission, nil, func(r *Record) { r.State, r.Step, r.Decision = StateRendering, StepPlan, &Decision{Approved: true} }, StateAwaitingApproval, StepApproval},
		"no preview, no decision":      {queued, submission, nil, func(r *Record) { r.State, r.Step = StateRendering, StepAssemble }, StateRendering, StepPreview},
		"goes on after a rejection":    {paused, submission, rejection, func(r *Record) { r.State, r.Step = StateRendering, StepPlan }, StateFailed, StepDone},
		"pauses where none is":         {queued, noPause, nil, func(r *Record) { r.State, r.Step = StateAwaitingApproval, StepApproval }, StateRendering, StepPlan},
		"paused without a preview":     {paused, submission, nil, func(r *Record) { r.Preview = nil }, StateRendering, StepPreview},
		"encodes without a plan":       {queued, noPause, nil, func(r *Record) { r.State, r.Step = StateRendering, StepEncode }, StateRendering, StepPlan},
		"a plan without segments":      {queued, noPause, nil, func(r *Record) { r.State, r.Step, r.Plan = StateRendering, StepEncode, &Plan{} }, StateRendering, StepPlan},
		"a plan of a million": {queued, noPause, nil, func(r *Record) {
			r.State, r.Step, r.Plan = StateRendering, StepEncode, &Plan{Segments: make([]Segment, 1e6)}
		}, StateRendering, StepPlan},
		"succeeded without a video": {queued, noPause, nil, func(r *Record) { r.State, r.Step = StateSucceeded, StepDone }, StateRendering, StepPlan},
		"done but not ended":        {queued, noPause, nil, func(r *Record) { r.State, r.Step = StateRendering, StepDone }, StateRendering, StepPlan},
		"ended but not done":        {queued, noPause, nil, func(r *Record) { r.State, r.Step = StateFailed, StepEncode }, StateFailed, StepDone},
		"nothing at all":            {queued, noPause, nil, func(r *Record) { *r = Record{} }, StateRendering, StepPlan},
	} {
		state := *c.state
		c.forge(&state)
		// What is not the worker's to say it may say as it likes.
		state.Tenant, state.ID, state.Spec, state.Slot, state.Inputs = "other", "other", Spec{}, 99, []InputRequest{{Key: "evil"}}
		got := Join(&state, c.submission, c.approval)
		if got.State != c.wantState || got.Step != c.wantStep {
			t.Errorf("%s: %s at step %s, want %s at %s", name, got.State, got.Step, c.wantState, c.wantStep)
		}
		if got.Tenant != "t" || got.ID != c.submission.ID || got.Spec.Source != c.submission.Spec.Source || got.Slot != 0 || len(got.Inputs) > 0 {
			t.Errorf("%s: the state changed what only a gateway says: %+v", name, got)
		}
		if (got.Decision != nil) != (c.approval == rejection) {
			t.Errorf("%s: decision %+v", name, got.Decision)
		}
		if got.Generation == 0 || got.State == StateFailed && got.Failure == nil {
			t.Errorf("%s: unsound %+v", name, got)
		}
		got.FollowUps() // must not panic
	}
}
