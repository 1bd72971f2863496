package farm

import (
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

func encoding(segments ...render.Segment) *render.Record {
	return &render.Record{
		ID: render.NewID(), State: render.StateRendering, Step: render.StepEncode, Generation: 2,
		Plan: &render.Plan{Frames: segments[len(segments)-1].To, Segments: segments},
	}
}

func sample(index int, s progress.Sample) progress.Sample {
	s.Work = render.Work{Generation: 2, Stage: render.StageSegment, Index: index}
	return s
}

func TestSummarizeAddsUpSegments(t *testing.T) {
	t.Parallel()
	rec := encoding(render.Segment{To: 100}, render.Segment{From: 100, To: 200})
	old := sample(0, progress.Sample{FramesDone: new(int64(77)), FPS: new(9.0)})
	old.Work.Generation = 1
	p := summarize(rec, progress.Live{Samples: []progress.Sample{
		old,
		sample(0, progress.Sample{Attempt: 2, FramesDone: new(int64(100)), Done: true, FPS: new(500.0)}),
		sample(1, progress.Sample{Attempt: 1, FramesDone: new(int64(50)), FPS: new(25.0), Speed: new(1.5), LogTail: []string{"x"}, At: time.Unix(1, 0)}),
	}})
	if *p.FramesDone != 150 || *p.FramesTotal != 200 || *p.SegmentsDone != 1 || *p.SegmentsTotal != 2 {
		t.Errorf("frames %d of %d, segments %d of %d", *p.FramesDone, *p.FramesTotal, *p.SegmentsDone, *p.SegmentsTotal)
	}
	if *p.Fraction != 0.75 || *p.FPS != 25 || *p.Speed != 1.5 || *p.ETA != 2*time.Second || *p.Attempt != 2 {
		t.Errorf("got fraction %v, fps %v, speed %v, eta %v, attempt %v", *p.Fraction, *p.FPS, *p.Speed, *p.ETA, *p.Attempt)
	}
	if len(p.LogTail) != 1 || p.Stage != render.StageSegment {
		t.Errorf("log %q, stage %q", p.LogTail, p.Stage)
	}
}

func TestSummarizeNeverGuesses(t *testing.T) {
	t.Parallel()
	p := summarize(encoding(render.Segment{To: 100}), progress.Live{})
	if p.Fraction != nil || p.FramesDone != nil || p.FPS != nil || p.ETA != nil || p.SegmentsDone != nil || p.Attempt != nil {
		t.Errorf("without samples: %+v", p)
	}
	p = summarize(encoding(render.Segment{To: 100}), progress.Live{Samples: []progress.Sample{sample(0, progress.Sample{FramesDone: new(int64(100))})}})
	if *p.Fraction != 0.99 {
		t.Errorf("an encode that has not ended is at %v", *p.Fraction)
	}
	if p.FPS != nil || p.ETA != nil {
		t.Errorf("no speed was sampled, yet fps %v, eta %v", p.FPS, p.ETA)
	}
	waiting := &render.Record{State: render.StateQueued, Step: render.StepPlan, Generation: 1}
	if p = summarize(waiting, progress.Live{}); p.FramesTotal != nil || p.SegmentsTotal != nil || p.Stage != render.StagePlan {
		t.Errorf("without a plan: %+v", p)
	}
}

func TestAssetName(t *testing.T) {
	t.Parallel()
	long := make([]byte, 256)
	for i := range long {
		long[i] = 'x'
	}
	for in, want := range map[string]string{
		"Ферма 農場.mp4":            "Ферма 農場.mp4",
		"  a\x00\nb\t":            "ab",
		"":                        "upload",
		"\x7f\x1b":                "upload",
		"../x":                    ".._x",
		"film\u202e4pm.exe\u2069": "film4pm.exe",
		"\u05d0\u200f.mp4":        "\u05d0\u200f.mp4",
	} {
		got, err := assetName(in)
		if err != nil || got != want {
			t.Errorf("assetName(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"\xff", string(long)} {
		if _, err := assetName(in); render.CodeOf(err) != render.CodeInvalidField {
			t.Errorf("assetName(%d bytes) = %v, want invalid_field", len(in), err)
		}
	}
}

func TestRetryDelayGrowsToAMinute(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]time.Duration{-1: time.Second, 0: time.Second, 1: 2 * time.Second, 5: 32 * time.Second, 6: time.Minute, 99: time.Minute} {
		if got := retryDelay(n); got != want {
			t.Errorf("retryDelay(%d) = %v, want %v", n, got, want)
		}
	}
}
