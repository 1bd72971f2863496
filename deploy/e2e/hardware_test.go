package e2e

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/standin"
	"github.com/vidforge/vidforge/worker"
)

// TestHardwareThatDies: a render is planned for a device that worked when it was
// tried, and is finished without it; the device gets work again when it works.
func TestHardwareThatDies(t *testing.T) {
	ffmpeg := standin.New(t)
	t.Setenv("PATH", strings.TrimPrefix(ffmpeg.Env()[0], "PATH="))
	s := newSite(t)
	log, _ := s.hire(worker.Config{Endpoints: s.share.Endpoints, ID: "w1", Devices: "nvidia:0"})
	source := s.put(clip(t, 1, "160x120"), "video/mp4")
	rendered := func() *render.Record {
		t.Helper()
		return s.until(s.ask(source, "draft"), render.StateSucceeded).Record
	}
	if rec := rendered(); rec.Output.Encoder != "h264_nvenc" || rec.Output.FallbackReason != "" || rec.Output.Frames != 30 {
		t.Errorf("while the device works: %+v", rec.Output)
	}
	ffmpeg.Set(standin.SessionLimit)
	rec := rendered()
	const reason = "The hardware encoder h264_nvenc failed: OpenEncodeSessionEx failed: out of memory (10): (no details)."
	if rec.Output.Encoder != "libx264" || rec.Output.FallbackReason != reason || rec.Output.Frames != 30 || rec.Generation != 2 {
		t.Errorf("when it dies: %+v, generation %d", rec.Output, rec.Generation)
	}
	log.await(t, "a device that failed is set aside")
	if rec := rendered(); rec.Output.Encoder != "libx264" || rec.Output.FallbackReason != "" || rec.Generation != 1 {
		t.Errorf("while it is set aside: %+v, generation %d", rec.Output, rec.Generation)
	}
	ffmpeg.Set(standin.Works)
	log.await(t, "a device that failed works when it is tried")
	if rec := rendered(); rec.Output.Encoder != "h264_nvenc" {
		t.Errorf("after it was mended: %+v", rec.Output)
	}
}

// planned is a render with segments that wait for a device.
func (b *bundle) planned() render.ID {
	b.t.Helper()
	v := b.submit(request(b.upload(b.tenant), "", ""))
	b.work(render.ClassPreview, func(c *farm.Claim) (*render.StageResult, error) {
		res, err := standIn(c)
		res.Plan.Encoder = "h264_nvenc"
		return res, err
	})
	return v.Record.ID
}

func (b *bundle) record(id render.ID) *render.Record {
	b.t.Helper()
	v, err := b.Get(context.Background(), b.tenant, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Record
}

func deviceFailure(*farm.Claim) (*render.StageResult, error) {
	return nil, render.Errorf(render.CodeRenderFailed, render.BlameJob, "The hardware encoder h264_nvenc failed: it broke.")
}

// TestAllSegmentsLeaveTheDevice: one that fails takes the others along.
func TestAllSegmentsLeaveTheDevice(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	id := b.planned()
	running := b.claim(render.ClassGPU) // on another worker
	b.work(render.ClassGPU, deviceFailure)
	rec := b.record(id)
	if rec.Generation != 2 || rec.Step != render.StepPlan || rec.RestartReason != "The hardware encoder h264_nvenc failed: it broke." {
		t.Fatalf("after the failure: generation %d at %s, %q", rec.Generation, rec.Step, rec.RestartReason)
	}
	// What comes late counts for nothing.
	if err := running.Fail(errors.New("it broke here too")); err != nil {
		t.Error(err)
	}
	b.work(render.ClassPreview, standIn)
	segments := len(b.record(id).Plan.Segments)
	for range segments + 2 { // the sound, and the joining
		if c := b.work(render.ClassCPU, standIn); c.Work.Generation != 2 {
			t.Errorf("%s of generation %d", c.Work.Stage, c.Work.Generation)
		}
	}
	if rec := b.record(id); rec.State != render.StateSucceeded || rec.Generation != 2 {
		t.Errorf("state %s, generation %d", rec.State, rec.Generation)
	}
	// The old segments' messages are settled, not done.
	if c, err := b.Claim(t.Context(), render.ClassGPU, "w1", 100*time.Millisecond); !errors.Is(err, jobs.ErrNone) {
		t.Errorf("claimed %+v, %v", c, err)
	}
}

// TestRequiredHardwareFails: elsewhere, then for good.
func TestRequiredHardwareFails(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{Hardware: render.HardwareRequire, MaxAttempts: 1})
	id := b.planned()
	b.work(render.ClassGPU, deviceFailure)
	rec := b.record(id)
	if rec.State != render.StateFailed || rec.Failure.Code != render.CodeRenderFailed || !strings.Contains(rec.Failure.Message, "h264_nvenc failed") {
		t.Errorf("state %s, failure %+v", rec.State, rec.Failure)
	}
}

// TestValidateWarnsOfMissingHardware: while it is required, and nobody has any.
func TestValidateWarnsOfMissingHardware(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{Hardware: render.HardwareRequire})
	req := request(b.upload(b.tenant), "", "").Request
	warned := func() bool {
		t.Helper()
		v, err := b.Validate(t.Context(), b.tenant, req)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(strings.Join(v.Warnings, "\n"), "no living worker has any for H.264")
	}
	if !warned() {
		t.Error("no warning while nobody has any")
	}
	if err := b.stores.Progress.Beat(t.Context(), progress.Worker{ID: "g1", Classes: []render.Class{render.ClassGPU}, Encoders: []string{"h264_qsv"}}); err != nil {
		t.Fatal(err)
	}
	if warned() {
		t.Error("a warning while somebody has one")
	}
}

// TestHardwareThatNobodyHasAnyMore: renders that wait for it go on without, but
// not because the registry was emptied for a moment.
func TestHardwareThatNobodyHasAnyMore(t *testing.T) {
	t.Parallel()
	for choice, want := range map[render.Hardware]render.State{render.HardwarePrefer: render.StateRendering, render.HardwareRequire: render.StateFailed} {
		t.Run(string(choice), func(t *testing.T) {
			t.Parallel()
			b := setup(t, farm.Config{Hardware: choice})
			id := b.planned()
			reconcile := func() *render.Record {
				t.Helper()
				if err := b.Reconcile(t.Context()); err != nil {
					t.Fatal(err)
				}
				return b.record(id)
			}
			living := progress.Worker{ID: "g1", Classes: []render.Class{render.ClassGPU}, Encoders: []string{"h264_nvenc"}}
			beat := func() {
				t.Helper()
				if err := b.stores.Progress.Beat(t.Context(), living); err != nil {
					t.Fatal(err)
				}
			}
			reconcile()
			b.clock.advance(20 * time.Second) // of a minute, most of which a busy machine may take
			if rec := reconcile(); rec.Step != render.StepEncode {
				t.Fatalf("given up too early: %s", rec.State)
			}
			beat() // it started again
			b.clock.advance(5 * time.Minute)
			if rec := reconcile(); rec.Step != render.StepEncode {
				t.Fatalf("given up while a worker has it: %s", rec.State)
			}
			living.Classes = nil // it goes, and its device with it
			beat()
			reconcile()
			b.clock.advance(2 * time.Minute)
			rec := reconcile()
			if rec.State != want {
				t.Fatalf("state %s, failure %+v", rec.State, rec.Failure)
			}
			if choice == render.HardwarePrefer && (rec.Step != render.StepPlan || rec.RestartReason != "No living worker has h264_nvenc any more.") {
				t.Errorf("step %s, %q", rec.Step, rec.RestartReason)
			}
			if choice == render.HardwareRequire && !strings.Contains(rec.Failure.Message, "no living worker has any for H.264") {
				t.Errorf("failure %+v", rec.Failure)
			}
		})
	}
}
