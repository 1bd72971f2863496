// Package stage carries out one claimed piece of work: it fetches what the work
// needs into a directory of its own, has package media do it, checks and
// stores what came out, and ends the claim.
package stage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
	"github.com/vidforge/vidforge/worker/internal/media"
	"github.com/vidforge/vidforge/worker/internal/scratch"
)

// Runner carries out claims.
type Runner struct {
	Tools   *ffmpeg.Tools
	Scratch *scratch.Dir
	Policy  render.Policy
	Metrics *telemetry.Metrics
	Logger  *slog.Logger
	// Patience is the least time for which a result that the store does not
	// take is kept and offered again; it is kept as long as it took to make.
	Patience time.Duration
	// Trouble is told what the store said meanwhile. Optional.
	Trouble func(error)
	// Offers are the encoders of the graphics device that this runner's works
	// have for themselves.
	Offers []encoder.Offer
}

// reportEvery bounds progress to four samples a second.
const reportEvery = 250 * time.Millisecond

// Run carries out one claim and ends it. ctx is the worker's life: when it ends
// the work is handed back. The error is why there is no result; the claim has
// been ended because of it already.
func (r *Runner) Run(ctx context.Context, c *farm.Claim) error {
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
		log.InfoContext(work, "stage done", "counts", counts, "elapsed", res.Elapsed.Round(time.Millisecond))
		if cerr != nil {
			log.WarnContext(work, "end the claim", "error", cerr)
		}
		recordError(span, cerr)
		r.Metrics.StageEnded(work, string(c.Work.Stage), "done", time.Since(started))
		return nil
	}
	recordError(span, err)
	outcome := "failed"
	var cerr error
	if errors.Is(context.Cause(work), errStopping) {
		outcome = "handback"
		cerr = c.HandBack("the worker stops")
	} else {
		if b := render.AsError(err).Blame; b == render.BlameFarm || b == render.BlameWorker {
			outcome = "handback"
		}
		log.InfoContext(work, "stage ended without a result", "error", err, "cause", context.Cause(work))
		cerr = c.Fail(err)
	}
	r.Metrics.StageEnded(work, string(c.Work.Stage), outcome, time.Since(started))
	if cerr != nil {
		log.WarnContext(work, "end the claim", "error", cerr)
	}
	return err
}

var errStopping = errors.New("the worker stops")

// startSpan begins a trace of its own for the attempt, linked to the request
// that caused it: queues are long, and one trace over days helps nobody.
func startSpan(ctx context.Context, c *farm.Claim) (context.Context, trace.Span) {
	return telemetry.Tracer().Start(ctx, "process "+string(c.Work.Stage), append( //nolint:spancheck // the caller ends it
		telemetry.LinkedTo(c.Trace),
		trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(telemetry.RenderID(c.Work.Owner()), telemetry.Tenant(c.Work.Tenant.Key()),
			telemetry.Stage(string(c.Work.Stage)), telemetry.Attempt(c.Attempt)))...)
}

func recordError(span trace.Span, err error) {
	if err == nil {
		return
	}
	span.RecordError(err)
	span.SetStatus(codes.Error, string(render.AsError(err).Code))
}

func (r *Runner) do(ctx context.Context, c *farm.Claim) (res *render.StageResult, err error) {
	dir, err := r.Scratch.Job()
	if err != nil {
		return nil, workerFault("make a job directory", err)
	}
	defer func() {
		if rerr := dir.Remove(); rerr != nil {
			r.Logger.WarnContext(ctx, "remove job directory", "render_id", c.Work.Owner(), "error", rerr)
		}
	}()
	// One work's panic must not end the works beside it; it counts as the job's
	// failure, so that it is not repeated for ever.
	defer func() {
		if p := recover(); p != nil {
			r.Logger.ErrorContext(ctx, "panic", "render_id", c.Work.Owner(), "stage", c.Work.Stage, "panic", p, "stack", string(debug.Stack()))
			res, err = nil, render.Errorf(render.CodeRenderFailed, render.BlameJob, "A stage of the render broke.").WithCause(fmt.Errorf("panic: %v", p))
		}
	}()
	b := &bench{Runner: r, claim: c, job: dir, dir: dir.Path, started: time.Now()}
	res, err = b.run(ctx)
	return res, b.blameDisk(err)
}

func (b *bench) run(ctx context.Context) (*render.StageResult, error) {
	switch b.claim.Work.Stage {
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
		return nil, workerFault("run a stage", fmt.Errorf("unknown stage %q", b.claim.Work.Stage))
	}
}

// workerFault is an error that another worker may not have.
func workerFault(doing string, err error) *render.Error {
	return render.Errorf(render.CodeRenderFailed, render.BlameWorker, "A worker could not do its work.").WithCause(fmt.Errorf("%s: %w", doing, err))
}

// bench is one job on its way.
type bench struct {
	*Runner
	claim   *farm.Claim
	job     *scratch.Job
	dir     string
	started time.Time
}

func (b *bench) fetch(ctx context.Context, o render.Object, name string) (string, error) {
	ctx, span := telemetry.Tracer().Start(ctx, "fetch "+name)
	defer span.End()
	span.SetAttributes(attribute.Int64("vidforge.bytes", o.Size))
	file := filepath.Join(b.dir, name)
	if err := b.claim.Fetch(ctx, o, file); err != nil {
		recordError(span, err)
		return "", err
	}
	return file, nil
}

// store uploads what a stage made. While the store is away, what took long to
// make is kept and offered again rather than made again by somebody else.
func (b *bench) store(ctx context.Context, file, name, contentType string) (render.Object, error) {
	until := time.Now().Add(max(b.Patience, time.Since(b.started)))
	for try := 1; ; try++ {
		at := name
		if try > 1 {
			// What the store did with the last try is not known, and keys are
			// written once.
			at = fmt.Sprintf("%d-%s", try, name)
		}
		o, err := b.storeOnce(ctx, file, at, contentType)
		if err == nil || !errors.Is(err, blob.ErrUnavailable) || ctx.Err() != nil || time.Now().After(until) {
			return o, err
		}
		if b.Trouble != nil {
			b.Trouble(err)
		}
		if !sleep(ctx, min(storeEvery, time.Second<<min(try-1, 6))) {
			return o, err
		}
	}
}

// storeEvery is the longest wait between two tries to store a result.
const storeEvery = 15 * time.Second

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (b *bench) storeOnce(ctx context.Context, file, name, contentType string) (o render.Object, err error) {
	ctx, span := telemetry.Tracer().Start(ctx, "store "+name)
	defer span.End()
	f, err := os.Open(file)
	if err != nil {
		return o, workerFault("open what was made", err)
	}
	defer func() {
		if cerr := f.Close(); err == nil && cerr != nil {
			err = workerFault("close what was made", cerr)
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return o, workerFault("open what was made", err)
	}
	span.SetAttributes(attribute.Int64("vidforge.bytes", info.Size()))
	o, err = b.claim.Store(ctx, name, contentType, f, info.Size())
	recordError(span, err)
	return o, err
}

// reserve asks for the space that the stage will need, before it is begun in
// vain. Space that other jobs of this worker hold is only a matter of time;
// space that the machine has not may be elsewhere.
func (b *bench) reserve(bytes int64) error {
	switch err := b.job.Reserve(bytes); {
	case err == nil:
		return nil
	case errors.Is(err, scratch.ErrPromised):
		return render.Errorf(render.CodeUnavailable, render.BlameFarm, "A worker's disk is in use.").WithCause(err)
	default:
		return workerFault("find room for the work", err)
	}
}

// bytesPerPixel is what a frame of the output is expected to take: 10 Mbit/s at
// 1080p and 30 frames a second. More is no error as long as there is room.
const bytesPerPixel = 0.02

func (b *bench) segmentBytes(p *render.Plan, s render.Segment) int64 {
	return int64(bytesPerPixel * float64(p.Width) * float64(p.Height) * float64(s.To-s.From))
}

// audioBytes is what a second of encoded sound takes at most.
const audioBytes = 640_000 / 8

// sourceBytes is what the render's inputs take.
func (b *bench) sourceBytes() int64 {
	rec := b.claim.Record
	n := rec.Source.Object.Size
	if rec.Logo != nil {
		n += rec.Logo.Object.Size
	}
	return n
}

// fullBelow is what is left, in bytes, of a file system that is full.
const fullBelow = 1 << 20

// blameDisk takes the blame for a failure from the job or its source when the
// disk is full: whatever went wrong may have gone wrong because of it.
func (b *bench) blameDisk(err error) error {
	if err == nil || errors.Is(err, scratch.ErrFull) || errors.Is(err, scratch.ErrPromised) {
		return err
	}
	free, ferr := b.Scratch.Free()
	if ferr != nil || free >= fullBelow {
		return err
	}
	return workerFault("write to "+b.Scratch.Path(), fmt.Errorf("%w: %d bytes are left: %w", scratch.ErrFull, free, err))
}

// source fetches the render's source, under a fixed name whatever it was called.
func (b *bench) source(ctx context.Context) (string, error) {
	return b.asset(ctx, b.claim.Record.Source.Object, "source")
}

// asset fetches what a client uploaded: that it is gone no retry mends.
func (b *bench) asset(ctx context.Context, o render.Object, name string) (string, error) {
	file, err := b.fetch(ctx, o, name)
	if errors.Is(err, farm.ErrGone) {
		err = render.Errorf(render.CodeSourceNotFound, render.BlameSource, "The uploaded file is not stored any more; upload it again.").WithCause(err)
	}
	return file, err
}

func (b *bench) media(source string, plan *render.Plan) media.Job {
	rec := b.claim.Record
	return media.Job{Tools: b.Tools, Dir: b.dir, Source: source, Facts: rec.Source.Facts, Spec: rec.Spec, Plan: *plan, Offers: b.Offers}
}

// report returns a progress function that sends at most four samples a second,
// and one that says that the work is done.
func (b *bench) report(ctx context.Context, total int64) (report func(ffmpeg.Progress), done func(media.Made)) {
	var last time.Time
	send := func(s progress.Sample) {
		if total > 0 {
			s.FramesTotal = &total
		}
		b.claim.Report(ctx, s)
	}
	report = func(p ffmpeg.Progress) {
		if now := time.Now(); now.Sub(last) >= reportEvery {
			last = now
			send(sampleOf(p))
		}
	}
	return report, func(m media.Made) {
		s := progress.Sample{Done: true, LogTail: m.LogTail}
		if total > 0 {
			s.FramesDone = &m.Frames
		}
		send(s)
	}
}

func sampleOf(p ffmpeg.Progress) progress.Sample {
	return progress.Sample{FramesDone: p.Frame, FPS: p.FPS, Speed: p.Speed}
}

func (b *bench) probe(ctx context.Context) (*render.StageResult, error) {
	if err := b.reserve(b.claim.Asset.Object.Size); err != nil {
		return nil, err
	}
	file, err := b.asset(ctx, b.claim.Asset.Object, "source")
	if err != nil {
		return nil, err
	}
	facts, err := media.Probe(ctx, b.Tools, b.dir, file)
	if err != nil {
		return nil, err
	}
	return &render.StageResult{Facts: facts}, nil
}

// overlay makes the drawn watermark present: fetched where an earlier stage
// stored it, else drawn and stored now.
func (b *bench) overlay(ctx context.Context, j *media.Job) (stored render.Object, err error) {
	rec := b.claim.Record
	if rec.Spec.Watermark == nil {
		return stored, nil
	}
	if rec.Overlay != nil {
		j.Overlay, err = b.fetch(ctx, *rec.Overlay, "overlay.png")
		return *rec.Overlay, err
	}
	var logo string
	if rec.Logo != nil {
		if logo, err = b.asset(ctx, rec.Logo.Object, "logo"); err != nil {
			return stored, err
		}
	}
	if j.Overlay, err = media.DrawOverlay(ctx, b.Tools, b.dir, rec.Spec.Watermark, logo, j.Plan.Width, j.Plan.Height); err != nil {
		return stored, err
	}
	return b.store(ctx, j.Overlay, "overlay.png", "image/png")
}

func (b *bench) preview(ctx context.Context) (*render.StageResult, error) {
	if err := b.reserve(b.sourceBytes()); err != nil {
		return nil, err
	}
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	rec := b.claim.Record
	plan := render.MakePlan(rec.Source.Facts, rec.Spec, b.claim.Work.Generation, b.Policy)
	j := b.media(source, &plan)
	overlay, err := b.overlay(ctx, &j)
	if err != nil {
		return nil, err
	}
	picture, err := media.Preview(ctx, j)
	if err != nil {
		return nil, err
	}
	o, err := b.store(ctx, picture.Path, "preview.png", "image/png")
	if err != nil {
		return nil, err
	}
	return &render.StageResult{Object: o, Overlay: overlay, Width: picture.Width, Height: picture.Height, CPU: picture.CPU}, nil
}

func (b *bench) plan(ctx context.Context) (*render.StageResult, error) {
	rec := b.claim.Record
	plan := render.MakePlan(rec.Source.Facts, rec.Spec, b.claim.Work.Generation, b.Policy)
	if err := b.hardware(ctx, &plan); err != nil {
		return nil, err
	}
	j := b.media("", &plan)
	overlay, err := b.overlay(ctx, &j)
	if err != nil {
		return nil, err
	}
	return &render.StageResult{Plan: &plan, Overlay: overlay}, nil
}

// hardware puts a device into the plan, where the render may use one and a
// living worker has one. While it is not known who lives, nobody has any:
// that is no reason to keep a render waiting, unless it must have one.
func (b *bench) hardware(ctx context.Context, plan *render.Plan) error {
	rec := b.claim.Record
	if !rec.MayUseHardware() {
		return nil
	}
	workers, err := b.claim.Workers(ctx)
	if err != nil && rec.Spec.Hardware == render.HardwareRequire {
		return render.Errorf(render.CodeUnavailable, render.BlameFarm, "It is not known which workers have graphics hardware.").WithCause(err)
	}
	unfinished := 0
	if slices.ContainsFunc(workers, func(w render.Worker) bool { return w.Devices > 0 }) {
		if unfinished, err = b.claim.Unfinished(ctx, render.ClassGPU); err != nil {
			return err
		}
	}
	return plan.ChooseHardware(rec.Spec.Hardware, workers, unfinished, media.CUDADecodes(rec.Source.Facts.VideoStream()))
}

func (b *bench) segment(ctx context.Context) (*render.StageResult, error) {
	plan := b.claim.Record.Plan
	if err := b.reserve(b.sourceBytes() + b.segmentBytes(plan, plan.Segments[b.claim.Work.Index])); err != nil {
		return nil, err
	}
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	j := b.media(source, b.claim.Record.Plan)
	if _, err = b.overlay(ctx, &j); err != nil {
		return nil, err
	}
	seg := j.Plan.Segments[b.claim.Work.Index]
	report, done := b.report(ctx, seg.To-seg.From)
	j.Progress = report
	made, err := media.EncodeSegment(ctx, j, b.claim.Work.Index)
	if err != nil {
		return nil, err
	}
	o, err := b.store(ctx, made.Path, "video.mp4", "video/mp4")
	if err != nil {
		return nil, err
	}
	done(made)
	return result(made, o), nil
}

func result(made media.Made, o render.Object) *render.StageResult {
	return &render.StageResult{Object: o, Frames: made.Frames, Width: made.Width, Height: made.Height, LogTail: made.LogTail, CPU: made.CPU}
}

func (b *bench) audio(ctx context.Context) (*render.StageResult, error) {
	rec := b.claim.Record
	if err := b.reserve(rec.Source.Object.Size + int64(audioBytes*rec.Source.Facts.Duration.Seconds())); err != nil {
		return nil, err
	}
	source, err := b.source(ctx)
	if err != nil {
		return nil, err
	}
	j := b.media(source, b.claim.Record.Plan)
	report, done := b.report(ctx, 0)
	j.Progress = report
	made, err := media.EncodeAudio(ctx, j)
	if err != nil {
		return nil, err
	}
	o, err := b.store(ctx, made.Path, filepath.Base(made.Path), made.MIMEType)
	if err != nil {
		return nil, err
	}
	done(made)
	return result(made, o), nil
}

func (b *bench) assemble(ctx context.Context) (*render.StageResult, error) {
	results, sound, err := b.claim.EncodeResults(ctx)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for _, res := range append([]*render.StageResult{sound}, results...) {
		if res != nil {
			size += res.Object.Size
		}
	}
	if err := b.reserve(2 * size); err != nil { // the parts, and the whole
		return nil, err
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
	j := b.media("", b.claim.Record.Plan)
	made, output, err := media.Assemble(ctx, j, files, audio)
	if err != nil {
		return nil, err
	}
	o, err := b.store(ctx, made.Path, "final."+string(j.Spec.Format), j.Spec.Format.MIMEType())
	if err != nil {
		return nil, err
	}
	output.Object = o
	output.Encoder = j.Plan.Encoder
	output.FallbackReason = b.claim.Record.RestartReason
	output.SegmentsTotal = len(files)
	output.WatermarkApplied = j.Spec.Watermark != nil
	res := result(made, o)
	res.Output = &output
	return res, nil
}
