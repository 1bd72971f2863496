// Package stage carries out one claimed piece of work: it fetches what the work
// needs into a directory of its own, has the media engine do it, checks and
// stores what came out, and ends the claim.
package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/worker/internal/scratch"
)

// Progress is how far the engine is in a piece of work; nil is unknown.
type Progress struct {
	Frames     *int64
	FPS, Speed *float64
	LogTail    []string
}

// Picture is a still that the engine made.
type Picture struct {
	File          string
	Width, Height int
}

// Clip is a piece of media that the engine made and verified.
type Clip struct {
	File    string
	Frames  int64
	LogTail []string
	CPU     time.Duration
}

// Engine does media work on local files. Its errors are *render.Error that say
// whose fault it was. All files that it makes are inside dir.
type Engine interface {
	// Probe looks at an uploaded file. A file that cannot be rendered is a
	// result, not an error.
	Probe(ctx context.Context, dir, file string) (*render.Facts, error)
	// Overlay draws the watermark for a picture of the plan's size; image is
	// the logo's file in image mode.
	Overlay(ctx context.Context, dir string, w *render.Watermark, image string, width, height int) (string, error)
	// Preview makes one frame of the render as PNG.
	Preview(ctx context.Context, dir, source string, j Job) (Picture, error)
	// Segment encodes and verifies one segment.
	Segment(ctx context.Context, dir, source string, j Job, index int, report func(Progress)) (Clip, error)
	// Audio encodes the sound.
	Audio(ctx context.Context, dir, source string, j Job, report func(Progress)) (Clip, error)
	// Assemble joins segments and sound (empty when silent) and verifies.
	Assemble(ctx context.Context, dir string, j Job, segments []string, audio string) (Clip, *render.Output, error)
}

// Job is what a render's stages have in common.
type Job struct {
	Facts   *render.Facts
	Spec    render.Spec
	Plan    *render.Plan
	Overlay string // the drawn watermark's file, "" for none
}

// Runner carries out claims.
type Runner struct {
	Engine  Engine
	Scratch *scratch.Dir
	Policy  render.Policy
	Logger  *slog.Logger
}

// reportEvery bounds progress to four samples a second.
const reportEvery = 250 * time.Millisecond

// Run carries out one claim and ends it. ctx is the worker's life: when it ends
// the work is handed back.
func (r *Runner) Run(ctx context.Context, c *farm.Claim) {
	log := r.Logger.With("render_id", c.Work.Owner(), "tenant", c.Work.Tenant.Key(), "stage", c.Work.Stage, "attempt", c.Number)
	work, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(errStopping) })
	defer stop()
	work, span := startSpan(work, c)
	defer span.End()
	started := time.Now()
	res, err := r.do(work, c)
	if err == nil {
		res.Elapsed = time.Since(started)
		counts, cerr := c.Complete(res)
		log.InfoContext(work, "stage done", "counts", counts, "elapsed", res.Elapsed.Round(time.Millisecond), "error", cerr)
		recordError(span, cerr)
		telemetry.StageFinished(work, c.Work.Stage, "done", time.Since(started))
		return
	}
	recordError(span, err)
	outcome := "failed"
	if errors.Is(context.Cause(work), errStopping) {
		outcome = "handback"
		err = c.HandBack("the worker stops")
	} else {
		log.InfoContext(work, "stage ended without a result", "error", err, "cause", context.Cause(work))
		err = c.Fail(err)
	}
	telemetry.StageFinished(work, c.Work.Stage, outcome, time.Since(started))
	if err != nil {
		log.WarnContext(work, "end the claim", "error", err)
	}
}

var errStopping = errors.New("the worker stops")

// startSpan begins a trace of its own for the attempt, linked to the request
// that caused it: queues are long, and one trace over days helps nobody.
func startSpan(ctx context.Context, c *farm.Claim) (context.Context, trace.Span) {
	link := trace.LinkFromContext(telemetry.Extract(ctx, c.Trace))
	return otel.Tracer("github.com/vidforge/vidforge/worker").Start(ctx, "process "+string(c.Work.Stage),
		trace.WithNewRoot(), trace.WithLinks(link), trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(
			attribute.String(telemetry.AttrRenderID, c.Work.Owner()),
			attribute.String(telemetry.AttrTenant, c.Work.Tenant.Key()),
			attribute.String(telemetry.AttrStage, string(c.Work.Stage)),
			attribute.Int(telemetry.AttrAttempt, c.Number),
		))
}

func recordError(span trace.Span, err error) {
	if err == nil {
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, string(render.AsError(err).Code))
}

func (r *Runner) do(ctx context.Context, c *farm.Claim) (res *render.StageResult, err error) {
	dir, remove, err := r.Scratch.Job()
	if err != nil {
		return nil, workerFault("make a job directory", err)
	}
	defer func() {
		if rerr := remove(); rerr != nil {
			r.Logger.WarnContext(ctx, "remove job directory", "render_id", c.Work.Owner(), "error", rerr)
		}
	}()
	b := &bench{Runner: r, claim: c, dir: dir}
	switch c.Work.Stage {
	case render.StageProbe:
		return b.probe(ctx)
	case render.StagePreview:
		return b.preview(ctx)
	case render.StagePlan:
		return b.plan(ctx)
	case render.StageSegment:
		return b.segment(ctx)
	case render.StageAudio:
		return b.audio(ctx)
	case render.StageAssemble:
		return b.assemble(ctx)
	default:
		return nil, workerFault("run a stage", fmt.Errorf("unknown stage %q", c.Work.Stage))
	}
}

// workerFault is an error that another worker may not have.
func workerFault(doing string, err error) *render.Error {
	return render.Errorf(render.CodeRenderFailed, render.BlameWorker, "A worker could not do its work.").WithCause(fmt.Errorf("%s: %w", doing, err))
}

// bench is one job on its way.
type bench struct {
	*Runner
	claim *farm.Claim
	dir   string
}

func (b *bench) fetch(ctx context.Context, o render.Object, name string) (string, error) {
	ctx, span := otel.Tracer("github.com/vidforge/vidforge/worker").Start(ctx, "fetch "+name)
	defer span.End()
	span.SetAttributes(attribute.Int64("vidforge.bytes", o.Size))
	file := filepath.Join(b.dir, name)
	if err := b.claim.Fetch(ctx, o, file); err != nil {
		recordError(span, err)
		return "", err //nolint:wrapcheck // classified
	}
	return file, nil
}

func (b *bench) store(ctx context.Context, file, name, contentType string) (o render.Object, err error) {
	ctx, span := otel.Tracer("github.com/vidforge/vidforge/worker").Start(ctx, "store "+name)
	defer span.End()
	f, err := os.Open(file) //nolint:gosec // a file of the job's own directory
	if err != nil {
		return o, workerFault("open what was made", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return o, workerFault("open what was made", err)
	}
	span.SetAttributes(attribute.Int64("vidforge.bytes", info.Size()))
	o, err = b.claim.Store(ctx, name, contentType, f, info.Size())
	recordError(span, err)
	return o, err //nolint:wrapcheck // classified
}

// source fetches the render's source, under a fixed name whatever it was called.
func (b *bench) source(ctx context.Context) (string, error) {
	return b.fetch(ctx, b.claim.Record.Source.Object, "source")
}

func (b *bench) job() Job {
	rec := b.claim.Record
	return Job{Facts: rec.Source.Facts, Spec: rec.Spec, Plan: rec.Plan}
}

// report returns a progress function for the engine that sends at most four
// samples a second, and what it last knew when done.
func (b *bench) report(ctx context.Context, total int64) (report func(Progress), done func(frames int64)) {
	var last time.Time
	send := func(p Progress, isDone bool) {
		s := progress.Sample{FramesDone: p.Frames, FPS: p.FPS, Speed: p.Speed, LogTail: p.LogTail, Done: isDone}
		if total > 0 {
			s.FramesTotal = &total
		}
		b.claim.Report(ctx, s)
	}
	report = func(p Progress) {
		if now := time.Now(); now.Sub(last) >= reportEvery {
			last = now
			send(p, false)
		}
	}
	return report, func(frames int64) { send(Progress{Frames: &frames}, true) }
}

func (b *bench) probe(ctx context.Context) (*render.StageResult, error) {
	file, err := b.fetch(ctx, b.claim.Asset.Object, "source")
	if err != nil {
		return nil, err
	}
	facts, err := b.Engine.Probe(ctx, b.dir, file)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	return &render.StageResult{Facts: facts}, nil
}

// overlay makes the drawn watermark present: fetched where an earlier stage
// stored it, else drawn and stored now.
func (b *bench) overlay(ctx context.Context, width, height int) (file string, stored render.Object, err error) {
	rec := b.claim.Record
	if rec.Spec.Watermark == nil {
		return "", stored, nil
	}
	if rec.Overlay != nil {
		file, err = b.fetch(ctx, *rec.Overlay, "overlay.png")
		return file, *rec.Overlay, err
	}
	var logo string
	if rec.Logo != nil {
		if logo, err = b.fetch(ctx, rec.Logo.Object, "logo"); err != nil {
			return "", stored, err
		}
	}
	if file, err = b.Engine.Overlay(ctx, b.dir, rec.Spec.Watermark, logo, width, height); err != nil {
		return "", stored, err //nolint:wrapcheck // classified
	}
	stored, err = b.store(ctx, file, "overlay.png", "image/png")
	return file, stored, err
}

func (b *bench) preview(ctx context.Context) (*render.StageResult, error) {
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	j := b.job()
	plan := render.MakePlan(j.Facts, j.Spec, b.claim.Work.Generation, b.Policy)
	j.Plan = &plan
	var overlay render.Object
	if j.Overlay, overlay, err = b.overlay(ctx, plan.Width, plan.Height); err != nil {
		return nil, err
	}
	picture, err := b.Engine.Preview(ctx, b.dir, source, j)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	o, err := b.store(ctx, picture.File, "preview.png", "image/png")
	if err != nil {
		return nil, err
	}
	return &render.StageResult{Object: o, Overlay: overlay, Width: picture.Width, Height: picture.Height}, nil
}

func (b *bench) plan(ctx context.Context) (*render.StageResult, error) {
	rec := b.claim.Record
	plan := render.MakePlan(rec.Source.Facts, rec.Spec, b.claim.Work.Generation, b.Policy)
	_, overlay, err := b.overlay(ctx, plan.Width, plan.Height)
	if err != nil {
		return nil, err
	}
	return &render.StageResult{Plan: &plan, Overlay: overlay}, nil
}

func (b *bench) segment(ctx context.Context) (*render.StageResult, error) {
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	j := b.job()
	if j.Overlay, _, err = b.overlay(ctx, j.Plan.Width, j.Plan.Height); err != nil {
		return nil, err
	}
	seg := j.Plan.Segments[b.claim.Work.Index]
	report, done := b.report(ctx, seg.To-seg.From)
	clip, err := b.Engine.Segment(ctx, b.dir, source, j, b.claim.Work.Index, report)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	o, err := b.store(ctx, clip.File, "video.mp4", "video/mp4")
	if err != nil {
		return nil, err
	}
	done(clip.Frames)
	return &render.StageResult{Object: o, Frames: clip.Frames, Width: j.Plan.Width, Height: j.Plan.Height, LogTail: clip.LogTail, CPU: clip.CPU}, nil
}

func (b *bench) audio(ctx context.Context) (*render.StageResult, error) {
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	report, done := b.report(ctx, 0)
	clip, err := b.Engine.Audio(ctx, b.dir, source, b.job(), report)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	o, err := b.store(ctx, clip.File, "audio"+filepath.Ext(clip.File), "audio/mp4")
	if err != nil {
		return nil, err
	}
	done(0)
	return &render.StageResult{Object: o, LogTail: clip.LogTail, CPU: clip.CPU}, nil
}

func (b *bench) assemble(ctx context.Context) (*render.StageResult, error) {
	results, sound, err := b.claim.EncodeResults(ctx)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	files := make([]string, len(results))
	for i, res := range results {
		if files[i], err = b.fetch(ctx, res.Object, fmt.Sprintf("segment-%04d.mp4", i)); err != nil {
			return nil, err
		}
	}
	var audio string
	if sound != nil {
		if audio, err = b.fetch(ctx, sound.Object, "audio"+filepath.Ext(sound.Object.Key)); err != nil {
			return nil, err
		}
	}
	j := b.job()
	clip, output, err := b.Engine.Assemble(ctx, b.dir, j, files, audio)
	if err != nil {
		return nil, err //nolint:wrapcheck // classified
	}
	o, err := b.store(ctx, clip.File, "final."+string(j.Spec.Format), j.Spec.Format.MIMEType())
	if err != nil {
		return nil, err
	}
	output.Object = o
	output.Encoder = j.Plan.Encoder
	output.SegmentsTotal = len(files)
	output.WatermarkApplied = j.Spec.Watermark != nil
	return &render.StageResult{Object: o, Output: output, Frames: output.Frames, Width: output.Width, Height: output.Height, LogTail: clip.LogTail, CPU: clip.CPU}, nil
}
