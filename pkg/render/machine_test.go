package render_test

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

const (
	testTenant = render.Tenant("acme")
	testTask   = render.ID("task_aaaaaaaaaaaaaaaaaaaaaaaaaa")
	testSource = render.AssetID("a_bbbbbbbbbbbbbbbbbbbbbbbbbb")
	testLogo   = render.AssetID("a_cccccccccccccccccccccccccc")
)

// testTime is when the test's render was submitted; the n-th event after it
// happens n seconds later.
func testTime(n int) time.Time {
	return time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC).Add(time.Duration(n) * time.Second)
}

func testSpec(watermark bool) render.Spec {
	s := render.Spec{Source: testSource, Format: render.FormatMP4, Resolution: render.Resolution720p, Quality: render.QualityStandard}
	if watermark {
		s.Watermark = &render.Watermark{Mode: render.WatermarkText, Text: "©", Position: render.PositionCenter, Opacity: 1}
		s.RequireApproval = true
	}
	return s
}

func testPlan(generation uint32) *render.Plan {
	return &render.Plan{
		Generation: generation, Width: 1280, Height: 720, FrameRate: render.Rational{Num: 25, Den: 1}, Frames: 100,
		Segments: []render.Segment{{From: 0, To: 50, Seek: -1}, {From: 50, To: 100, Seek: 1.5}}, HasAudio: true,
	}
}

// result is a stage's result as the stage leaves it.
func result(stage render.Stage, generation uint32) render.StageResult {
	r := render.StageResult{Work: render.Work{Tenant: testTenant, Task: testTask, Generation: generation, Stage: stage}}
	switch stage {
	case render.StagePreview:
		r.Object, r.Overlay, r.Width, r.Height = render.Object{Key: "preview"}, render.Object{Key: "overlay"}, 640, 360
	case render.StagePlan:
		r.Plan, r.Overlay = testPlan(generation), render.Object{Key: "overlay2"}
	case render.StageAssemble:
		r.Output = &render.Output{Object: render.Object{Key: "final"}, Frames: 100}
	default: // leaves nothing that the state machine looks at
	}
	return r
}

// events are all that can happen, by the name of their row in the table. gen is
// the record's generation.
func events(gen uint32) map[string]render.Event {
	planless := result(render.StagePlan, gen)
	planless.Plan = nil
	outputless := result(render.StageAssemble, gen)
	outputless.Output = nil
	return map[string]render.Event{
		"claimed":             render.Claimed{},
		"preview-ready":       render.PreviewReady{Result: result(render.StagePreview, gen)},
		"preview-ready-stale": render.PreviewReady{Result: result(render.StagePreview, gen-1)},
		"input-minted":        render.InputMinted{Input: render.InputRequest{Key: "new", Params: []byte(`{}`)}},
		"input-minted-again":  render.InputMinted{Input: render.InputRequest{Key: "open", Params: []byte(`{"other":1}`)}},
		"input-answered":      render.InputAnswered{Key: "open", Action: "decline"},
		"input-answered-2nd":  render.InputAnswered{Key: "answered", Action: "cancel"},
		"input-unknown":       render.InputAnswered{Key: "never minted", Action: "decline"},
		"approved":            render.Decided{Decision: render.Decision{Approved: true, By: "ann", Channel: render.ChannelPage, Note: "ok"}},
		"rejected":            render.Decided{Decision: render.Decision{By: "bob", Channel: render.ChannelTool}},
		"timed-out":           render.ApprovalTimedOut{},
		"planned":             render.Planned{Result: result(render.StagePlan, gen)},
		"planned-stale":       render.Planned{Result: result(render.StagePlan, gen-1)},
		"planned-nothing":     render.Planned{Result: planless},
		"encoded":             render.Encoded{Generation: gen},
		"encoded-stale":       render.Encoded{Generation: gen - 1},
		"assembled":           render.Assembled{Result: result(render.StageAssemble, gen)},
		"assembled-stale":     render.Assembled{Result: result(render.StageAssemble, gen-1)},
		"assembled-nothing":   render.Assembled{Result: outputless},
		"failed":              render.Failed{Failure: render.Failure{Code: render.CodeRenderFailed, Message: "m", Temporary: true}},
		"cancelled":           render.Cancelled{By: "eve"},
		"restarted":           render.Restarted{Generation: gen, Reason: "the hardware encoder failed"},
		"restarted-stale":     render.Restarted{Generation: gen - 1},
	}
}

// transitions says what every event does at every place. Places:
//
//	QV queued, preview due     QP queued, plan due
//	RV rendering the preview   A  awaiting approval
//	P E M  planning, encoding, assembling
//	S F C  succeeded, failed, cancelled
//
// A place with + was approved before, F- was rejected. A cell is the place
// after the event, or
//
//	=   nothing changes (ErrNoChange)
//	x   illegal (ErrIllegal)
//	np  approval_not_pending
//	ar  approval_already_recorded
const transitions = `
event                QV  QP  RV  A   P   E   M   P+  E+  M+  S   S+  F   F+  F-  C   C+
claimed              RV  P   =   =   =   =   =   =   =   =   x   x   x   x   x   x   x
preview-ready        A   x   A   x   x   x   x   x   x   x   x   x   x   x   x   x   x
preview-ready-stale  x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
input-minted         x   x   x   A   x   x   x   x   x   x   x   x   x   x   x   x   x
input-minted-again   x   x   x   =   x   x   x   x   x   x   x   x   x   x   x   x   x
input-answered       x   x   x   A   x   x   x   x   x   x   x   x   x   x   x   x   x
input-answered-2nd   x   x   x   =   x   x   x   x   x   x   x   x   x   x   x   x   x
input-unknown        x   x   x   =   x   x   x   x   x   x   x   x   x   x   x   x   x
approved             np  np  np  P+  np  np  np  =   =   =   np  =   np  =   ar  np  =
rejected             np  np  np  F-  np  np  np  ar  ar  ar  np  ar  np  ar  =   np  ar
timed-out            x   x   x   F   x   x   x   x   x   x   x   x   x   x   x   x   x
planned              x   E   x   x   E   x   x   E+  x   x   x   x   x   x   x   x   x
planned-stale        x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
planned-nothing      x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
encoded              x   x   x   x   x   M   x   x   M+  x   x   x   x   x   x   x   x
encoded-stale        x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
assembled            x   x   x   x   x   x   S   x   x   S+  x   x   x   x   x   x   x
assembled-stale      x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
assembled-nothing    x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
failed               F   F   F   F   F   F   F   F+  F+  F+  x   x   x   x   x   x   x
cancelled            C   C   C   C   C   C   C   C+  C+  C+  x   x   x   x   x   =   =
restarted            x   x   x   x   x   P   P   x   P+  P+  x   x   x   x   x   x   x
restarted-stale      x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x   x
`

// paths are the events that lead from a new record to each place; a w in front
// marks a render with a watermark.
func paths() map[string][]string {
	await := []string{"w", "claimed", "preview-ready", "open", "answered", "answer"}
	to := func(start []string, more ...string) []string { return append(slices.Clone(start), more...) }
	return map[string][]string{
		"QV": {"w"}, "QP": {}, "RV": {"w", "claimed"}, "A": await,
		"P": {"claimed"}, "E": {"claimed", "planned"}, "M": {"claimed", "planned", "encoded"},
		"P+": to(await, "approved"), "E+": to(await, "approved", "planned"), "M+": to(await, "approved", "planned", "encoded"),
		"S": {"claimed", "planned", "encoded", "assembled"}, "S+": to(await, "approved", "planned", "encoded", "assembled"),
		"F": {"claimed", "failed"}, "F+": to(await, "approved", "failed"), "F-": to(await, "rejected"),
		"C": {"cancelled"}, "C+": to(await, "approved", "cancelled"),
	}
}

// at makes the record of a place.
func at(t *testing.T, place string) *render.Record {
	t.Helper()
	path, ok := paths()[place]
	if !ok {
		t.Fatalf("no path to place %q", place)
	}
	watermark := len(path) > 0 && path[0] == "w"
	if watermark {
		path = path[1:]
	}
	rec := render.New(testTask, testTenant, testSpec(watermark), render.SourceRef{Asset: testSource}, nil, testTime(0))
	for i, name := range path {
		var ev render.Event
		switch name {
		case "open", "answered":
			ev = render.InputMinted{Input: render.InputRequest{Key: name, Params: []byte(`{"a":1}`)}}
		case "answer":
			ev = render.InputAnswered{Key: "answered", Action: "decline"}
		default:
			ev = events(rec.Generation)[name]
		}
		next, err := render.Apply(rec, ev, testTime(i+1))
		if err != nil {
			t.Fatalf("on the way to %s: %s: %v", place, name, err)
		}
		rec = next
	}
	return rec
}

// placeOf names the place of a record.
func placeOf(r *render.Record) string {
	place := map[string]string{
		"queued/preview": "QV", "queued/plan": "QP", "rendering/preview": "RV", "awaiting_watermark_approval/approval": "A",
		"rendering/plan": "P", "rendering/encode": "E", "rendering/assemble": "M",
		"succeeded/done": "S", "failed/done": "F", "cancelled/done": "C",
	}[string(r.State)+"/"+string(r.Step)]
	if place == "" {
		place = "unknown " + string(r.State) + "/" + string(r.Step)
	}
	if r.Decision != nil {
		place += map[bool]string{true: "+", false: "-"}[r.Decision.Approved]
	}
	return place
}

// outcome names what Apply answered.
func outcome(next *render.Record, err error) string {
	switch {
	case err == nil:
		return placeOf(next)
	case errors.Is(err, render.ErrNoChange):
		return "="
	case errors.Is(err, render.ErrIllegal):
		return "x"
	case render.CodeOf(err) == render.CodeApprovalNotPending:
		return "np"
	case render.CodeOf(err) == render.CodeApprovalAlreadyRecorded:
		return "ar"
	default:
		return err.Error()
	}
}

// table reads transitions into event → place → outcome.
func table(t *testing.T) (places []string, cells map[string]map[string]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(transitions), "\n")
	places = strings.Fields(lines[0])[1:]
	cells = map[string]map[string]string{}
	for _, line := range lines[1:] {
		f := strings.Fields(line)
		if len(f) != len(places)+1 {
			t.Fatalf("row %q has %d cells, want %d", f[0], len(f)-1, len(places))
		}
		cells[f[0]] = map[string]string{}
		for i, place := range places {
			cells[f[0]][place] = f[i+1]
		}
	}
	return places, cells
}

func TestTransitions(t *testing.T) {
	t.Parallel()
	places, cells := table(t)
	if got, want := slices.Sorted(slices.Values(places)), slices.Sorted(maps.Keys(paths())); !slices.Equal(got, want) {
		t.Errorf("the table has the places %v, the paths lead to %v", got, want)
	}
	if got, want := slices.Sorted(maps.Keys(cells)), slices.Sorted(maps.Keys(events(1))); !slices.Equal(got, want) {
		t.Errorf("the table has the events %v, the test makes %v", got, want)
	}
	for event, row := range cells {
		for place, want := range row {
			rec, untouched := at(t, place), at(t, place)
			if got := placeOf(rec); got != place {
				t.Fatalf("the path to %s leads to %s", place, got)
			}
			now := testTime(1000)
			if event == "timed-out" {
				now = now.Add(render.ApprovalWindow)
			}
			next, err := render.Apply(rec, events(rec.Generation)[event], now)
			if got := outcome(next, err); got != want {
				t.Errorf("%s at %s: got %s, want %s", event, place, got, want)
			}
			if (next == nil) == (err == nil) {
				t.Errorf("%s at %s: record %v with error %v", event, place, next, err)
			}
			if !reflect.DeepEqual(rec, untouched) {
				t.Errorf("%s at %s changed the record that it was given", event, place)
			}
			if err == nil && !next.Updated.Equal(now) {
				t.Errorf("%s at %s: updated %v, want %v", event, place, next.Updated, now)
			}
		}
	}
}

// Every type of event has a row, and every place that events can lead to is a
// column.
func TestTransitionsAreComplete(t *testing.T) {
	t.Parallel()
	places, _ := table(t)
	seen := map[string]bool{}
	var walk func(rec *render.Record, depth int)
	walk = func(rec *render.Record, depth int) {
		place := placeOf(rec)
		if !slices.Contains(places, place) {
			t.Errorf("place %s is reachable and not in the table", place)
		}
		if seen[place] || depth == 0 {
			return
		}
		seen[place] = true
		for _, ev := range events(rec.Generation) {
			if next, err := render.Apply(rec, ev, testTime(0).Add(2*render.ApprovalWindow)); err == nil {
				walk(next, depth-1)
			}
		}
	}
	for _, watermark := range []bool{false, true} {
		walk(render.New(testTask, testTenant, testSpec(watermark), render.SourceRef{}, nil, testTime(0)), 20)
	}
	for _, place := range places {
		if !seen[place] {
			t.Errorf("place %s is in the table and cannot be reached", place)
		}
	}

	types := map[string]bool{}
	for _, ev := range events(1) {
		types[reflect.TypeOf(ev).Name()] = true
	}
	for _, name := range eventTypes(t) {
		if !types[name] {
			t.Errorf("event %s has no row", name)
		}
	}
	type alien struct{ render.Event }
	if _, err := render.Apply(at(t, "QP"), alien{render.Claimed{}}, testTime(1)); !errors.Is(err, render.ErrIllegal) {
		t.Errorf("an unknown event: got %v, want ErrIllegal", err)
	}
}

func TestTerminalRecordsNeverChange(t *testing.T) {
	t.Parallel()
	for place := range paths() {
		rec := at(t, place)
		if !rec.State.Terminal() {
			continue
		}
		for name, ev := range events(rec.Generation) {
			if next, err := render.Apply(rec, ev, testTime(9999)); err == nil {
				t.Errorf("%s at %s made %+v", name, place, next)
			}
		}
	}
}

// What the events leave in the record.
func TestRecordAfterEvents(t *testing.T) {
	t.Parallel()
	check := func(what string, got, want any) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", what, got, want)
		}
	}
	fresh := at(t, "QV")
	check("new: times", []time.Time{fresh.Created, fresh.Updated, fresh.Started, fresh.Ended}, []time.Time{testTime(0), testTime(0), {}, {}})
	check("new: generation", fresh.Generation, uint32(1))
	check("new: hash", fresh.SpecHash, fresh.Spec.Hash())

	claimed := at(t, "P")
	check("claimed: started", claimed.Started, testTime(1))
	late, err := render.Apply(fresh, events(1)["preview-ready"], testTime(7))
	check("a result before the claim: error", err, nil)
	check("a result before the claim: started", late.Started, testTime(7))

	paused := at(t, "A")
	check("paused: preview", *paused.Preview, render.Preview{
		Object: render.Object{Key: "preview"}, Width: 640, Height: 360, Ready: testTime(2), Deadline: testTime(2).Add(30 * time.Minute),
	})
	check("paused: overlay", paused.Overlay, &render.Object{Key: "overlay"})
	check("paused: inputs", paused.Inputs, []render.InputRequest{
		{Key: "open", Params: []byte(`{"a":1}`)}, {Key: "answered", Params: []byte(`{"a":1}`), Answered: "decline"},
	})
	check("paused: open inputs", paused.OpenInputs(), paused.Inputs[:1])

	for _, early := range []time.Duration{0, render.ApprovalWindow - 1} {
		_, err := render.Apply(paused, render.ApprovalTimedOut{}, paused.Preview.Ready.Add(early))
		check("timed out early", errors.Is(err, render.ErrIllegal), true)
	}
	for _, approved := range []bool{true, false} {
		decided := render.Decided{Decision: render.Decision{Approved: approved}}
		_, err := render.Apply(paused, decided, paused.Preview.Deadline.Add(-1))
		check("decided in time", err, nil)
		_, err = render.Apply(paused, decided, paused.Preview.Deadline)
		check("decided late", render.CodeOf(err), render.CodeApprovalNotPending)
	}
	timedOut, err := render.Apply(paused, render.ApprovalTimedOut{}, paused.Preview.Deadline)
	check("timed out: error", err, nil)
	check("timed out: code", timedOut.Failure.Code, render.CodeWatermarkApprovalTimeout)
	check("timed out: open inputs", timedOut.OpenInputs(), []render.InputRequest(nil))

	approved := at(t, "P+")
	check("approved: decision", *approved.Decision, render.Decision{Approved: true, By: "ann", Channel: render.ChannelPage, Note: "ok", At: testTime(6)})
	rejected := at(t, "F-")
	check("rejected: code", rejected.Failure.Code, render.CodeWatermarkRejected)
	check("rejected: by", rejected.Decision.By, "bob")
	check("rejected: ended", rejected.Ended, testTime(6))

	encoding := at(t, "E")
	check("planned: plan", encoding.Plan, testPlan(1))
	check("planned: overlay", encoding.Overlay, &render.Object{Key: "overlay2"})
	again, err := render.Apply(encoding, events(1)["restarted"], testTime(5))
	check("restarted: error", err, nil)
	check("restarted: generation", again.Generation, uint32(2))
	check("restarted: plan", again.Plan, (*render.Plan)(nil))
	check("restarted: reason", again.RestartReason, "the hardware encoder failed")
	check("restarted: started", again.Started, encoding.Started)
	_, err = render.Apply(again, events(1)["restarted"], testTime(6))
	check("restarted by a second worker", errors.Is(err, render.ErrIllegal), true)
	_, err = render.Apply(again, events(1)["planned"], testTime(6))
	check("planned for the old generation", errors.Is(err, render.ErrIllegal), true)

	done := at(t, "S")
	check("succeeded: output", done.Output.Object.Key, "final")
	check("succeeded: ended", done.Ended, testTime(4))
	failed := at(t, "F")
	check("failed: failure", failed.Failure, &render.Failure{Code: render.CodeRenderFailed, Message: "m", Temporary: true})
	cancelled := at(t, "C")
	check("cancelled: by", cancelled.CancelledBy, "eve")
	check("cancelled: ended", cancelled.Ended, testTime(1))
}

// A task answers for a day after its end, or for as long as was asked for within
// bounds; a render for a week.
func TestLifetimes(t *testing.T) {
	t.Parallel()
	open, done := at(t, "E"), at(t, "S")
	const week = 7 * 24 * time.Hour
	if got, want := open.Expires(), open.Created.Add(week); !got.Equal(want) {
		t.Errorf("accepted: expires %v, want %v", got, want)
	}
	if got, want := done.Expires(), done.Ended.Add(week); !got.Equal(want) {
		t.Errorf("finished: expires %v, want %v", got, want)
	}
	for after, want := range map[time.Duration]bool{0: false, 24 * time.Hour: false, 24*time.Hour + 1: true} {
		if got := done.TaskExpired(done.Ended.Add(after)); got != want {
			t.Errorf("task expired %v after the end: %v, want %v", after, got, want)
		}
	}
	for asked, want := range map[time.Duration]time.Duration{
		-time.Hour: time.Hour, time.Millisecond: time.Hour, time.Hour: time.Hour, 90 * time.Minute: 90 * time.Minute,
		24 * time.Hour: 24 * time.Hour, 365 * 24 * time.Hour: 24 * time.Hour, 0: 24 * time.Hour,
	} {
		done.TaskRetention = render.TaskRetentionFor(asked)
		if got := done.TaskFor(); got != want {
			t.Errorf("asked for %v: a task for %v, want %v", asked, got, want)
		}
		if done.TaskExpired(done.Ended.Add(want)) || !done.TaskExpired(done.Ended.Add(want+1)) {
			t.Errorf("asked for %v: does not expire after %v", asked, want)
		}
	}
	if open.TaskExpired(open.Created.Add(52 * week)) {
		t.Error("the task of an unfinished render expired")
	}
}

func TestFollowUps(t *testing.T) {
	t.Parallel()
	w := func(stage render.Stage, index int) render.Work {
		return render.Work{Tenant: testTenant, Task: testTask, Generation: 1, Stage: stage, Index: index}
	}
	encode := []render.Work{w(render.StageSegment, 0), w(render.StageSegment, 1), w(render.StageAudio, 0)}
	want := map[string][]render.Work{
		"QV": {w(render.StagePreview, 0)}, "RV": {w(render.StagePreview, 0)}, "A": nil,
		"QP": {w(render.StagePlan, 0)}, "P": {w(render.StagePlan, 0)}, "P+": {w(render.StagePlan, 0)},
		"E": encode, "E+": encode, "M": {w(render.StageAssemble, 0)}, "M+": {w(render.StageAssemble, 0)},
		"S": nil, "S+": nil, "F": nil, "F+": nil, "F-": nil, "C": nil, "C+": nil,
	}
	for place := range paths() {
		rec := at(t, place)
		works, ok := want[place]
		if !ok {
			t.Errorf("no expectation for %s", place)
		}
		if got := rec.FollowUps(); !slices.Equal(got, works) {
			t.Errorf("%s: got %v, want %v", place, got, works)
		}
		for _, all := range want {
			for _, work := range all {
				if got, want := rec.Wants(work), slices.Contains(works, work); got != want {
					t.Errorf("%s wants %v: %v, want %v", place, work, got, want)
				}
			}
		}
		for _, work := range works {
			work.Generation++
			if rec.Wants(work) {
				t.Errorf("%s wants work of another generation", place)
			}
		}
	}

	silent := at(t, "E")
	plan := *silent.Plan
	plan.HasAudio = false
	silent.Plan = &plan
	if got := silent.FollowUps(); !slices.Equal(got, encode[:2]) {
		t.Errorf("a silent plan: got %v, want %v", got, encode[:2])
	}
	if got := len(at(t, "E").FollowUps()); got != at(t, "E").Plan.EncodeWorks() {
		t.Errorf("%d follow-ups, but the plan waits for %d", got, at(t, "E").Plan.EncodeWorks())
	}
	restarted, err := render.Apply(silent, events(1)["restarted"], testTime(9))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := restarted.FollowUps(), []render.Work{{Tenant: testTenant, Task: testTask, Generation: 2, Stage: render.StagePlan}}; !slices.Equal(got, want) {
		t.Errorf("after a restart: got %v, want %v", got, want)
	}
}
