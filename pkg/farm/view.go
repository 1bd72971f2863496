package farm

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

// mostLogLines is how many lines of the encoder a client is shown.
const mostLogLines = 20

// Get returns a render as it is now. render_not_found for unknown and foreign
// ids alike.
func (f *Farm) Get(ctx context.Context, tenant render.Tenant, id render.ID) (*View, error) {
	entry, err := f.entry(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return f.view(ctx, entry.Record), nil
}

// view adds the live numbers to a record. Without them it is a view all the
// same: Redis may be down or may have lost everything.
func (f *Farm) view(ctx context.Context, rec *render.Record) *View {
	v := &View{Record: rec}
	switch rec.State {
	case render.StateRendering:
		live, _ := f.stores.Progress.Live(ctx, rec.ID)
		v.Progress = summarize(rec, live)
	case render.StateFailed:
		if rec.Failure != nil {
			v.Progress.LogTail = tail(rec.Failure.LogTail)
		}
	default:
	}
	return v
}

// summarize adds up the samples of a render's present generation. What is not
// known stays nil.
func summarize(rec *render.Record, live progress.Live) Progress {
	var p Progress
	p.Stage = presentStage(rec)
	if rec.Plan != nil {
		total := len(rec.Plan.Segments)
		p.SegmentsTotal = &total
		frames := rec.Plan.Frames
		p.FramesTotal = &frames
	}
	var (
		done           int64
		fps, speed     float64
		segments       int
		known, running bool
		latest         time.Time
	)
	for _, s := range live.Samples {
		if s.Work.Generation != rec.Generation {
			continue
		}
		if s.Work.Stage == p.Stage && s.Attempt > 0 && (p.Attempt == nil || s.Attempt > *p.Attempt) {
			attempt := s.Attempt
			p.Attempt = &attempt
		}
		if len(s.LogTail) > 0 && s.At.After(latest) {
			latest, p.LogTail = s.At, tail(s.LogTail)
		}
		if s.Work.Stage != render.StageSegment {
			continue
		}
		known = true
		if s.FramesDone != nil {
			done += *s.FramesDone
		}
		if s.Done {
			segments++
			continue
		}
		if s.FPS != nil {
			fps, running = fps+*s.FPS, true
		}
		if s.Speed != nil {
			speed += *s.Speed
		}
	}
	if !known || rec.Plan == nil {
		return p
	}
	p.FramesDone, p.SegmentsDone = &done, &segments
	if rec.Plan.Frames > 0 {
		fraction := min(0.99, float64(done)/float64(rec.Plan.Frames))
		p.Fraction = &fraction
	}
	if running && fps > 0 {
		eta := time.Duration(float64(max(0, rec.Plan.Frames-done)) / fps * float64(time.Second))
		p.FPS, p.ETA = &fps, &eta
		if speed > 0 {
			p.Speed = &speed
		}
	}
	return p
}

func presentStage(rec *render.Record) render.Stage {
	switch rec.Step {
	case render.StepPreview:
		return render.StagePreview
	case render.StepPlan:
		return render.StagePlan
	case render.StepEncode:
		return render.StageSegment
	case render.StepAssemble:
		return render.StageAssemble
	default:
		return ""
	}
}

func tail(lines []string) []string {
	return lines[max(0, len(lines)-mostLogLines):]
}

// Log returns the encoder's last lines of every stage that has any.
func (f *Farm) Log(ctx context.Context, tenant render.Tenant, id render.ID) (string, error) {
	entry, err := f.entry(ctx, tenant, id)
	if err != nil {
		return "", err
	}
	rec := entry.Record
	results, err := f.stores.Ledger.Results(ctx, tenant, id, rec.Generation)
	if err != nil {
		return "", unavailable("read results", err)
	}
	var b strings.Builder
	section := func(stage render.Stage, index int, lines []string) {
		if len(lines) == 0 {
			return
		}
		b.WriteString("== " + string(stage))
		if stage == render.StageSegment {
			b.WriteString(" " + strconv.Itoa(index+1))
		}
		b.WriteString("\n" + strings.Join(lines, "\n") + "\n")
	}
	finished := map[render.Work]bool{}
	for _, r := range results {
		finished[r.Work] = true
		section(r.Work.Stage, r.Work.Index, r.LogTail)
	}
	if live, ok := f.stores.Progress.Live(ctx, id); ok {
		for _, s := range live.Samples {
			if s.Work.Generation == rec.Generation && !finished[s.Work] {
				section(s.Work.Stage, s.Work.Index, s.LogTail)
			}
		}
	}
	if rec.Failure != nil {
		section(rec.Failure.Stage, 0, rec.Failure.LogTail)
	}
	return b.String(), nil
}
