package render_test

import (
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestOutputSize(t *testing.T) {
	t.Parallel()
	type size [2]int
	wide, square := render.Rational{Num: 16, Den: 9}, render.Rational{Num: 1, Den: 1}
	tests := map[string]struct {
		in             render.Stream
		p720, p1080, k size
	}{
		"16:9":                     {render.Stream{Width: 1920, Height: 1080}, size{1280, 720}, size{1920, 1080}, size{3840, 2160}},
		"4:3 is scaled up":         {render.Stream{Width: 320, Height: 240}, size{960, 720}, size{1440, 1080}, size{2880, 2160}},
		"wide pixels":              {render.Stream{Width: 640, Height: 480, PixelAspect: wide}, size{1280, 540}, size{1920, 810}, size{3840, 1620}},
		"square pixels":            {render.Stream{Width: 640, Height: 480, PixelAspect: square}, size{960, 720}, size{1440, 1080}, size{2880, 2160}},
		"unknown pixels":           {render.Stream{Width: 640, Height: 480, PixelAspect: render.Rational{Num: 0, Den: 1}}, size{960, 720}, size{1440, 1080}, size{2880, 2160}},
		"PAL widescreen":           {render.Stream{Width: 720, Height: 576, PixelAspect: render.Rational{Num: 64, Den: 45}}, size{1280, 720}, size{1920, 1080}, size{3840, 2160}},
		"portrait":                 {render.Stream{Width: 1080, Height: 1920}, size{720, 1280}, size{1080, 1920}, size{2160, 3840}},
		"portrait by rotation":     {render.Stream{Width: 1920, Height: 1080, Rotation: 90}, size{720, 1280}, size{1080, 1920}, size{2160, 3840}},
		"landscape by rotation":    {render.Stream{Width: 1080, Height: 1920, Rotation: 270}, size{1280, 720}, size{1920, 1080}, size{3840, 2160}},
		"upside down":              {render.Stream{Width: 320, Height: 240, Rotation: 180}, size{960, 720}, size{1440, 1080}, size{2880, 2160}},
		"rotated wide pixels":      {render.Stream{Width: 640, Height: 480, PixelAspect: wide, Rotation: 90}, size{540, 1280}, size{810, 1920}, size{1620, 3840}},
		"portrait by pixel aspect": {render.Stream{Width: 480, Height: 480, PixelAspect: render.Rational{Num: 9, Den: 16}}, size{720, 1280}, size{1080, 1920}, size{2160, 3840}},
		"square":                   {render.Stream{Width: 100, Height: 100}, size{720, 720}, size{1080, 1080}, size{2160, 2160}},
		"2×2":                      {render.Stream{Width: 2, Height: 2}, size{720, 720}, size{1080, 1080}, size{2160, 2160}},
		"1×1":                      {render.Stream{Width: 1, Height: 1}, size{720, 720}, size{1080, 1080}, size{2160, 2160}},
		"odd":                      {render.Stream{Width: 853, Height: 481}, size{1276, 720}, size{1916, 1080}, size{3830, 2160}},
		"scope":                    {render.Stream{Width: 4096, Height: 1716}, size{1280, 536}, size{1920, 804}, size{3840, 1608}},
		"a line":                   {render.Stream{Width: 10000, Height: 1}, size{1280, 2}, size{1920, 2}, size{3840, 2}},
		"a column":                 {render.Stream{Width: 1, Height: 10000}, size{2, 1280}, size{2, 1920}, size{2, 3840}},
		"nothing":                  {render.Stream{}, size{1280, 720}, size{1920, 1080}, size{3840, 2160}},
	}
	for name, tt := range tests {
		for r, want := range map[render.Resolution]size{render.Resolution720p: tt.p720, render.Resolution1080p: tt.p1080, render.Resolution4K: tt.k} {
			if w, h := render.OutputSize(&tt.in, r); (size{w, h}) != want {
				t.Errorf("%s at %s: got %d×%d, want %d×%d", name, r, w, h, want[0], want[1])
			}
		}
	}
}

// For any picture: inside the box, touching it, even, of the picture's aspect.
func TestOutputSizeFits(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(7, 8))
	for range 20_000 {
		v := render.Stream{
			Width: 1 + rnd.IntN(8192), Height: 1 + rnd.IntN(8192), Rotation: 90 * rnd.IntN(4),
			PixelAspect: render.Rational{Num: 1 + rnd.Int64N(64), Den: 1 + rnd.Int64N(64)},
		}
		r := []render.Resolution{render.Resolution720p, render.Resolution1080p, render.Resolution4K}[rnd.IntN(3)]
		w, h := render.OutputSize(&v, r)
		shownW, shownH := float64(v.Width)*v.PixelAspect.Float(), float64(v.Height)
		if v.Rotation == 90 || v.Rotation == 270 {
			shownW, shownH = shownH, shownW
		}
		bw, bh := r.Box()
		if shownH > shownW {
			bw, bh = bh, bw
		}
		if w < 2 || h < 2 || w%2 != 0 || h%2 != 0 || w > bw || h > bh || (w != bw && h != bh) {
			t.Fatalf("%+v at %s: %d×%d", v, r, w, h)
		}
		// The side that does not touch is rounded to even, by one pixel at most.
		offW, offH := math.Abs(float64(h)*shownW/shownH-float64(w)), math.Abs(float64(w)*shownH/shownW-float64(h))
		if fits := (h == bh && (offW <= 1 || w == 2)) || (w == bw && (offH <= 1 || h == 2)); !fits {
			t.Fatalf("%+v at %s: %d×%d, of another aspect", v, r, w, h)
		}
	}
}

func facts(frames int64, rate render.Rational) *render.Facts {
	return &render.Facts{
		Streams: []render.Stream{{Kind: "audio"}, {Kind: "video", Width: 320, Height: 240}},
		Video:   1, Audio: 0, GridRate: rate, GridFrames: frames, StartTicks: -5, Start: render.Rational{Num: -1, Den: 10},
	}
}

func TestMakePlan(t *testing.T) {
	t.Parallel()
	f, s := facts(234, render.Rational{Num: 25, Den: 1}), testSpec(false)
	got := render.MakePlan(f, s, 3, render.Policy{})
	want := render.Plan{
		Generation: 3, Width: 960, Height: 720, FrameRate: f.GridRate, Frames: 234, StartTicks: -5, Start: f.Start,
		Segments: []render.Segment{{From: 0, To: 234, Seek: -1}}, HasAudio: true, VideoCodec: "h264", AudioCodec: "aac", Encoder: "libx264",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got.EncodeWorks() != 2 {
		t.Errorf("waits for %d results, want 2", got.EncodeWorks())
	}
	f.Audio = -1
	s.Format = render.FormatWebM
	if got := render.MakePlan(f, s, 1, render.Policy{}); got.VideoCodec != "vp9" || got.Encoder != "libvpx-vp9" || got.AudioCodec != "" {
		t.Errorf("a silent source to webm: %+v", got)
	}
	if got := render.MakePlan(f, s, 1, render.Policy{}); got.HasAudio || got.AudioCodec != "" || got.EncodeWorks() != 1 {
		t.Errorf("a silent source: %+v", got)
	}
}

// Segments cover [0, N) without gap or overlap, none is empty, and their number
// follows the policy.
func TestMakePlanSegments(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(9, 10))
	for range 5_000 {
		f := facts(1+rnd.Int64N(200_000), render.Rational{Num: 1 + rnd.Int64N(120_000), Den: []int64{1, 1000, 1001}[rnd.IntN(3)]})
		f.WholeOnly = rnd.IntN(5) == 0
		p := render.Policy{SegmentTarget: time.Duration(rnd.Int64N(int64(time.Minute))), MaxSegments: rnd.IntN(64)}
		plan := render.MakePlan(f, testSpec(false), 1, p)
		at := int64(0)
		for i, s := range plan.Segments {
			if s.From != at || s.To <= s.From {
				t.Fatalf("%+v %+v: segment %d is %+v, after frame %d", f, p, i, s, at)
			}
			at = s.To
		}
		if at != f.GridFrames || plan.Frames != f.GridFrames {
			t.Fatalf("%+v %+v: covers %d frames of %d", f, p, at, f.GridFrames)
		}
		if n := len(plan.Segments); n > max(1, p.MaxSegments) || (f.WholeOnly && n != 1) || (p.SegmentTarget == 0 && n != 1) {
			t.Fatalf("%+v %+v: %d segments", f, p, n)
		}
		if !reflect.DeepEqual(plan, render.MakePlan(f, testSpec(false), 1, p)) {
			t.Fatal("the same source, spec and policy gave another plan")
		}
	}
}

func TestMakePlanSegmentCount(t *testing.T) {
	t.Parallel()
	fps := render.Rational{Num: 25, Den: 1}
	tests := map[string]struct {
		frames int64
		rate   render.Rational
		policy render.Policy
		want   int
	}{
		"no target":         {frames: 25 * 600, rate: fps, want: 1},
		"ten minutes":       {frames: 25 * 600, rate: fps, policy: render.Policy{SegmentTarget: 30 * time.Second, MaxSegments: 100}, want: 20},
		"capped":            {frames: 25 * 600, rate: fps, policy: render.Policy{SegmentTarget: 30 * time.Second, MaxSegments: 7}, want: 7},
		"no maximum":        {frames: 25 * 600, rate: fps, policy: render.Policy{SegmentTarget: 30 * time.Second}, want: 1},
		"short":             {frames: 25 * 10, rate: fps, policy: render.Policy{SegmentTarget: 30 * time.Second, MaxSegments: 100}, want: 1},
		"rounds up":         {frames: 25 * 45, rate: fps, policy: render.Policy{SegmentTarget: 30 * time.Second, MaxSegments: 100}, want: 2},
		"fewer frames":      {frames: 3, rate: render.Rational{Num: 1, Den: 60}, policy: render.Policy{SegmentTarget: time.Second, MaxSegments: 100}, want: 3},
		"of unknown length": {frames: 100, policy: render.Policy{SegmentTarget: time.Second, MaxSegments: 100}, want: 1},
		"of nothing":        {rate: fps, policy: render.Policy{SegmentTarget: time.Second, MaxSegments: 100}, want: 1},
	}
	for name, tt := range tests {
		if got := len(render.MakePlan(facts(tt.frames, tt.rate), testSpec(false), 1, tt.policy).Segments); got != tt.want {
			t.Errorf("%s: %d segments, want %d", name, got, tt.want)
		}
	}
}

func TestClasses(t *testing.T) {
	t.Parallel()
	want := map[string]render.Class{
		"probe": render.ClassPreview, "preview": render.ClassPreview, "plan": render.ClassPreview,
		"segment": render.ClassCPU, "audio": render.ClassCPU, "assemble": render.ClassCPU,
	}
	for _, s := range constants(t, "Stage") {
		if got := render.Stage(s).Class(); got != want[s] {
			t.Errorf("%s waits in %q, want %q", s, got, want[s])
		}
	}
	var all []string
	for _, c := range render.Classes() {
		all = append(all, string(c))
	}
	if declared := constants(t, "Class"); !slices.Equal(all, declared) {
		t.Errorf("Classes() = %v, declared are %v", all, declared)
	}
	all = nil
	for _, s := range render.States() {
		all = append(all, string(s))
	}
	if declared := constants(t, "State"); !slices.Equal(all, declared) {
		t.Errorf("States() = %v, declared are %v", all, declared)
	}
}

func TestWorkOwner(t *testing.T) {
	t.Parallel()
	w := render.Work{Task: testTask, Asset: testSource, Stage: render.StageSegment}
	if got := w.Owner(); got != string(testTask) {
		t.Errorf("a segment belongs to %s", got)
	}
	w.Stage = render.StageProbe
	if got := w.Owner(); got != string(testSource) {
		t.Errorf("a probe belongs to %s", got)
	}
}

func TestRenderedStreams(t *testing.T) {
	t.Parallel()
	f := facts(1, render.Rational{Num: 1, Den: 1})
	if f.VideoStream() != &f.Streams[1] || f.AudioStream() != &f.Streams[0] {
		t.Error("the chosen streams are not returned")
	}
	for _, none := range []*render.Facts{nil, {Video: -1, Audio: -1}, {Video: 2, Audio: 2, Streams: f.Streams}} {
		if none.VideoStream() != nil || none.AudioStream() != nil {
			t.Errorf("%+v has streams", none)
		}
	}
}

func TestRational(t *testing.T) {
	t.Parallel()
	for r, want := range map[render.Rational]float64{{}: 0, {Num: 1}: 0, {Den: 1}: 0, {Num: 30000, Den: 1001}: 30000.0 / 1001, {Num: -1, Den: 2}: -0.5} {
		if got := r.Float(); got != want || r.IsZero() != (want == 0) {
			t.Errorf("%+v: %v, zero %v", r, got, r.IsZero())
		}
	}
}
