package render

import "time"

// Class is a queue of work that workers subscribe to.
type Class string

// Classes.
const (
	ClassPreview Class = "preview" // short work that a person waits for
	ClassCPU     Class = "cpu"     // encoding
	ClassGPU     Class = "gpu"
)

// Classes lists the classes in order of urgency.
func Classes() []Class { return []Class{ClassPreview, ClassCPU, ClassGPU} }

// Stage is a kind of work.
type Stage string

// Stages.
const (
	StageProbe    Stage = "probe"    // look at an uploaded asset
	StagePreview  Stage = "preview"  // one watermarked frame for approval
	StagePlan     Stage = "plan"     // frame grid, segments, overlay
	StageSegment  Stage = "segment"  // encode frames [a, b)
	StageAudio    Stage = "audio"    // encode the sound in one piece
	StageAssemble Stage = "assemble" // join, check, publish
)

// Class returns the queue that a stage waits in.
func (s Stage) Class() Class {
	switch s {
	case StageProbe, StagePreview, StagePlan:
		return ClassPreview
	default:
		return ClassCPU
	}
}

// Work names one piece of work. Equal works are one message, one lease, one
// result.
type Work struct {
	Tenant Tenant
	// Task is the render; for StageProbe it is empty and Asset is set.
	Task       ID
	Asset      AssetID
	Generation uint32
	Stage      Stage
	Index      int
}

// Owner is the id in subjects and keys: the task's, or the asset's of a probe.
func (w Work) Owner() string {
	if w.Stage == StageProbe {
		return string(w.Asset)
	}
	return string(w.Task)
}

// Segment owns the output frames [From, To) of the grid.
type Segment struct {
	From, To int64
	// Seek is an early keyframe in seconds of the source's own time, or
	// negative to read from the start. It affects speed only.
	Seek float64
}

// Plan says how a render is made. It is a pure function of source, spec and
// policy, and it is committed once per generation.
type Plan struct {
	Generation uint32
	Width      int
	Height     int
	FrameRate  Rational
	Frames     int64
	StartTicks int64
	Start      Rational
	Segments   []Segment
	HasAudio   bool
	VideoCodec string // h264, vp9
	AudioCodec string // aac, opus; "" when silent
	Encoder    string // libx264, libvpx-vp9, or a hardware encoder
	// Decoder is DecoderCUDA where a device decodes and scales, else "".
	Decoder string
}

// Policy bounds plans.
type Policy struct {
	// SegmentTarget is the wanted length of a segment. Zero: one segment.
	SegmentTarget time.Duration
	MaxSegments   int
}

// MakePlan computes the plan of a render. It never asks how many workers live:
// from a farm scaled to zero the same plan must come.
func MakePlan(f *Facts, s Spec, generation uint32, p Policy) Plan {
	w, h := OutputSize(f.VideoStream(), s.Resolution)
	video, audio, encoder := s.Format.Codecs()
	plan := Plan{
		Generation: generation,
		Width:      w,
		Height:     h,
		FrameRate:  f.GridRate,
		Frames:     f.GridFrames,
		StartTicks: f.StartTicks,
		Start:      f.Start,
		VideoCodec: video,
		Encoder:    encoder,
		HasAudio:   f.AudioStream() != nil,
	}
	if plan.HasAudio {
		plan.AudioCodec = audio
	}
	n := int64(1)
	if p.SegmentTarget > 0 && !f.WholeOnly && !f.GridRate.IsZero() {
		seconds := float64(f.GridFrames) / f.GridRate.Float()
		n = int64(seconds/p.SegmentTarget.Seconds() + 0.5)
		n = max(1, min(n, int64(max(1, p.MaxSegments)), f.GridFrames))
	}
	for i := range n {
		plan.Segments = append(plan.Segments, Segment{From: f.GridFrames * i / n, To: f.GridFrames * (i + 1) / n, Seek: -1})
	}
	return plan
}

// EncodeWorks is the number of results that the encode step waits for.
func (p *Plan) EncodeWorks() int {
	n := len(p.Segments)
	if p.HasAudio {
		n++
	}
	return n
}

// StageResult is what the first valid attempt at a work left behind. Exactly
// one exists per work (a create-only key); objects of later attempts are swept.
type StageResult struct {
	Work     Work
	Attempt  string // random id of the attempt that counts
	Worker   string
	Finished time.Time
	// Object is what was produced; zero for a plan without overlay.
	Object Object
	// Overlay is the drawn watermark picture (preview and plan stages).
	Overlay Object
	Width   int
	Height  int
	Frames  int64
	// Plan is set by the plan stage, Output by assemble, Facts by probe.
	Plan   *Plan
	Output *Output
	Facts  *Facts
	// LogTail holds the encoder's last lines, cleaned for clients.
	LogTail []string
	// Elapsed is wall time in the stage, CPU the process tree's CPU time.
	Elapsed, CPU time.Duration
}
