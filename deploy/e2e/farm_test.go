package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// bundle is a farm over real stores, without a worker: the test claims and ends
// the work itself.
type bundle struct {
	*farm.Farm
	stores farm.Stores
	tenant render.Tenant
	clock  *clock
	t      *testing.T
}

type clock struct {
	mu     sync.Mutex
	offset time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.offset)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += d
}

// setup makes a farm that runs.
func setup(t *testing.T, cfg farm.Config) *bundle {
	t.Helper()
	b := idle(t, cfg)
	b.start(b.Farm)
	return b
}

// idle makes a farm that does nothing by itself.
func idle(t *testing.T, cfg farm.Config) *bundle {
	t.Helper()
	stores := newStores(t)
	b := &bundle{stores: stores, tenant: "acme", clock: &clock{}, t: t}
	cfg.Now = b.clock.now
	b.Farm = farm.New(stores, cfg)
	return b
}

// start runs f until the test ends.
func (b *bundle) start(f *farm.Farm) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f.Run(ctx); err != nil {
			b.t.Errorf("run: %v", err)
		}
	})
	b.t.Cleanup(func() { cancel(); wg.Wait() })
}

// work ends the next claim of the class with fn's result.
func (b *bundle) work(class render.Class, fn func(*farm.Claim) (*render.StageResult, error)) *farm.Claim {
	b.t.Helper()
	c := b.claim(class)
	res, err := fn(c)
	if err != nil {
		if err := c.Fail(err); err != nil {
			b.t.Fatalf("fail %s: %v", c.Work.Stage, err)
		}
		return c
	}
	if _, err := c.Complete(res); err != nil {
		b.t.Fatalf("complete %s: %v", c.Work.Stage, err)
	}
	return c
}

func (b *bundle) claim(class render.Class) *farm.Claim {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		c, err := b.Claim(ctx, class, "w1", 5*time.Second)
		if err == nil {
			return c
		}
		if !errors.Is(err, jobs.ErrNone) || ctx.Err() != nil {
			b.t.Fatalf("claim %s work: %v", class, err)
		}
	}
}

func facts() *render.Facts {
	return &render.Facts{
		Kind: "video", Container: "mov", Duration: 10 * time.Second, Renderable: true, Video: 0, Audio: 1,
		Streams: []render.Stream{
			{Kind: "video", Codec: "h264", Width: 320, Height: 240, TimeBase: render.Rational{Num: 1, Den: 15360}},
			{Index: 1, Kind: "audio", Codec: "aac", Channels: 2, SampleRate: 44100},
		},
		GridRate: render.Rational{Num: 30, Den: 1}, GridFrames: 300,
	}
}

// upload makes a ready asset.
func (b *bundle) upload(tenant render.Tenant) *render.Asset {
	b.t.Helper()
	return b.uploadTo(b.Farm, tenant)
}

func (b *bundle) uploadTo(f *farm.Farm, tenant render.Tenant) *render.Asset {
	b.t.Helper()
	var (
		wg    sync.WaitGroup
		asset *render.Asset
		err   error
	)
	wg.Go(func() {
		asset, err = f.Upload(context.Background(), tenant, farm.Upload{Name: "a.mp4", MIMEType: "video/mp4", Size: -1, Body: strings.NewReader("film")})
	})
	b.work(render.ClassPreview, func(c *farm.Claim) (*render.StageResult, error) {
		if c.Work.Stage != render.StageProbe {
			b.t.Errorf("claimed %s, want the probe", c.Work.Stage)
		}
		return &render.StageResult{Facts: facts()}, nil
	})
	wg.Wait()
	if err != nil {
		b.t.Fatal(err)
	}
	if asset.State != render.AssetReady || asset.Facts == nil || asset.Object.Size != 4 {
		b.t.Fatalf("the upload gave %+v", asset)
	}
	return asset
}

func request(a *render.Asset, watermark, key string) farm.Submission {
	r := render.Request{SourceAssetURI: a.ID.URI(), OutputFormat: "mp4", Resolution: "720p"}
	if watermark != "" {
		r.Watermark = &render.WatermarkRequest{Text: &watermark}
	}
	if key != "" {
		r.IdempotencyKey = &key
	}
	return farm.Submission{Request: r}
}

func (b *bundle) submit(s farm.Submission) *farm.View {
	b.t.Helper()
	v, _, err := b.Submit(context.Background(), b.tenant, s)
	if err != nil {
		b.t.Fatalf("submit: %v", err)
	}
	return v
}

func (b *bundle) state(id render.ID) render.State {
	b.t.Helper()
	v, err := b.Get(context.Background(), b.tenant, id)
	if err != nil {
		b.t.Fatal(err)
	}
	return v.Record.State
}

// store uploads something in the name of a claim.
func store(c *farm.Claim, name string) (render.Object, error) {
	body := name + " of " + c.Attempt
	return c.Store(context.Background(), name, "application/octet-stream", strings.NewReader(body), int64(len(body)))
}

// standIn does the media work of every stage.
func standIn(c *farm.Claim) (*render.StageResult, error) {
	switch c.Work.Stage {
	case render.StagePreview:
		o, err := store(c, "preview.png")
		return &render.StageResult{Object: o, Width: 1280, Height: 720}, err
	case render.StagePlan:
		plan := render.MakePlan(c.Record.Source.Facts, c.Record.Spec, c.Work.Generation, render.Policy{SegmentTarget: 4 * time.Second, MaxSegments: 8})
		return &render.StageResult{Plan: &plan}, nil
	case render.StageSegment:
		o, err := store(c, "video.mp4")
		seg := c.Record.Plan.Segments[c.Work.Index]
		return &render.StageResult{Object: o, Frames: seg.To - seg.From}, err
	case render.StageAudio:
		o, err := store(c, "audio.m4a")
		return &render.StageResult{Object: o}, err
	case render.StageAssemble:
		segments, audio, err := c.EncodeResults(context.Background())
		if err != nil {
			return nil, err
		}
		if audio == nil || len(segments) != len(c.Record.Plan.Segments) {
			return nil, fmt.Errorf("%d segments, audio %v", len(segments), audio)
		}
		o, err := store(c, "final.mp4")
		return &render.StageResult{Object: o, Output: &render.Output{Object: o, Frames: 300, Width: 960, Height: 720}}, err
	default:
		return nil, fmt.Errorf("unexpected stage %s", c.Work.Stage)
	}
}

func (b *bundle) objects(id render.ID) []string {
	b.t.Helper()
	var keys []string
	for info, err := range b.stores.Blobs.List(context.Background(), "renders/"+b.tenant.Key()+"/"+string(id)+"/") {
		if err != nil {
			b.t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestRenderFromSubmitToVideo(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	v := b.submit(request(b.upload(b.tenant), "draft", ""))
	id := v.Record.ID
	if v.Record.State != render.StateQueued {
		t.Fatalf("a new render is %s", v.Record.State)
	}
	var (
		wg   sync.WaitGroup
		seen []render.State
	)
	wg.Go(func() {
		err := b.Watch(ctx, b.tenant, id, func(v *farm.View) error {
			if len(seen) == 0 || seen[len(seen)-1] != v.Record.State {
				seen = append(seen, v.Record.State)
			}
			return nil
		})
		if err != nil {
			t.Errorf("watch: %v", err)
		}
	})
	b.work(render.ClassPreview, standIn)
	if s := b.state(id); s != render.StateAwaitingApproval {
		t.Fatalf("after the preview: %s", s)
	}
	if _, err := b.Video(ctx, b.tenant, id); render.CodeOf(err) != render.CodeResourceNotReady {
		t.Errorf("video of a paused render: %v", err)
	}
	if _, err := b.Decide(ctx, b.tenant, id, render.Decision{Approved: true, By: "me", Channel: render.ChannelTool}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Decide(ctx, b.tenant, id, render.Decision{Approved: true}); err != nil {
		t.Errorf("the same decision again: %v", err)
	}
	if _, err := b.Decide(ctx, b.tenant, id, render.Decision{}); render.CodeOf(err) != render.CodeApprovalAlreadyRecorded {
		t.Errorf("the opposite decision: %v", err)
	}
	b.work(render.ClassPreview, standIn) // plan
	for range 3 + 1 + 1 {                // 300 frames in three segments, the sound, the assembly
		b.work(render.ClassCPU, standIn)
	}
	wg.Wait()
	if got := seen[len(seen)-1]; got != render.StateSucceeded {
		t.Errorf("the watcher saw %v", seen)
	}
	content, err := b.Video(ctx, b.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	if keys := b.objects(id); len(keys) != 2 {
		t.Errorf("video and preview should be left, there are %q", keys)
	}
	if content.Name != "a.mp4" || content.MIMEType != "video/mp4" {
		t.Errorf("content %q %q", content.Name, content.MIMEType)
	}
	for _, method := range []func() error{
		func() error { _, err := b.Get(ctx, "other", id); return err },
		func() error { _, err := b.Video(ctx, "other", id); return err },
		func() error { _, err := b.Cancel(ctx, "other", id, "x"); return err },
		func() error { _, err := b.Decide(ctx, "other", id, render.Decision{}); return err },
		func() error { _, err := b.Get(ctx, b.tenant, "task_*"); return err },
	} {
		if err := method(); render.CodeOf(err) != render.CodeRenderNotFound {
			t.Errorf("foreign or malformed id: %v", err)
		}
	}
	if err := slotsFree(ctx, b); err != nil {
		t.Error(err)
	}
}

// TestAnEndFreesItsSlotAtOnce, though a worker may not and reconciliation does
// not come: one of two gateways hears of it and settles it, the other leaves it
// alone.
func TestAnEndFreesItsSlotAtOnce(t *testing.T) {
	t.Parallel()
	cfg := farm.Config{Tuning: farm.Tuning{ReconcileEvery: 2 * time.Hour}}
	b := idle(t, cfg)
	stores, counted := b.stores, &countsFreed{Ledger: b.stores.Ledger}
	stores.Ledger = counted
	for range 2 {
		b.start(farm.New(stores, cfg))
	}
	cfg.Role = access.Worker
	b.Farm = farm.New(b.stores, cfg)
	gateway := farm.New(b.stores, farm.Config{})
	asset := b.uploadTo(gateway, b.tenant)
	ends := map[string]func(*farm.Claim) (*render.StageResult, error){
		"with a video": standIn,
		"with an error": func(*farm.Claim) (*render.StageResult, error) {
			return nil, render.Errorf(render.CodeRenderFailed, render.BlameSource, "no film")
		},
	}
	for name, last := range ends {
		v, _, err := gateway.Submit(t.Context(), b.tenant, request(asset, "", ""))
		if err != nil {
			t.Fatal(err)
		}
		id := v.Record.ID
		b.work(render.ClassPreview, standIn) // plan
		for range 3 + 1 {
			b.work(render.ClassCPU, standIn)
		}
		b.work(render.ClassCPU, last)
		if s := b.state(id); !s.Terminal() {
			t.Fatalf("%s: the render is %s", name, s)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // a gateway does it
			err := slotsFree(t.Context(), b)
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after the end %s: %v", name, err)
			}
		}
		if keys := b.objects(id); len(keys) > 1 {
			t.Errorf("after the end %s there are %q", name, keys)
		}
	}
	if n := counted.freed.Load(); n != int64(len(ends)) {
		t.Errorf("%d ends were settled %d times", len(ends), n)
	}
}

// countsFreed is a ledger that counts attempts to free a slot.
type countsFreed struct {
	ledger.Ledger
	freed atomic.Int64
}

func (l *countsFreed) FreeSlot(ctx context.Context, tenant render.Tenant, slot int, id render.ID) error {
	l.freed.Add(1)
	return l.Ledger.FreeSlot(ctx, tenant, slot, id)
}

func slotsFree(ctx context.Context, b *bundle) error {
	for holder, err := range b.stores.Ledger.Slots(ctx) {
		if err != nil {
			return err
		}
		if holder.Tenant == b.tenant {
			return fmt.Errorf("slot %d is still held by %s", holder.Slot, holder.Task)
		}
	}
	return nil
}

func TestSameKeyAtOnceIsOneRender(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxConcurrent: 4})
	second := farm.New(b.stores, farm.Config{MaxConcurrent: 4})
	a, foreign := b.upload(b.tenant), b.upload("beta")
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		ids = map[render.ID]int{}
	)
	for i := range 50 {
		f := b.Farm
		if i%2 == 1 {
			f = second
		}
		wg.Go(func() {
			v, _, err := f.Submit(context.Background(), b.tenant, request(a, "", "the key"))
			if err != nil {
				t.Errorf("submit: %v", err)
				return
			}
			mu.Lock()
			ids[v.Record.ID]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(ids) != 1 {
		t.Errorf("50 submits of one key made %v", ids)
	}
	if _, _, err := b.Submit(context.Background(), b.tenant, request(a, "other", "the key")); render.CodeOf(err) != render.CodeIdempotencyKeyReused {
		t.Errorf("other arguments: %v", err)
	}
	if v, existing, err := b.Submit(context.Background(), "beta", request(foreign, "", "the key")); err != nil || existing || ids[v.Record.ID] != 0 {
		t.Errorf("another tenant's same key: %v, existing %v", err, existing)
	}
}

// A key stands as long as its window, and keys of different windows are apart.
func TestWindowsOfKeys(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxConcurrent: 4})
	a := b.upload(b.tenant)
	of := func(window time.Duration) farm.Submission {
		s := request(a, "", "the key")
		s.IdempotencyWindow = window
		return s
	}
	day, half, short := b.submit(of(0)), b.submit(of(30*time.Minute)), b.submit(of(2*time.Second))
	if day.Record.ID == half.Record.ID || half.Record.ID == short.Record.ID {
		t.Errorf("one render for keys of different windows: %s %s %s", day.Record.ID, half.Record.ID, short.Record.ID)
	}
	for window, want := range map[time.Duration]render.ID{0: day.Record.ID, render.IdempotencyWindow: day.Record.ID, 30 * time.Minute: half.Record.ID} {
		if v, existing, err := b.Submit(context.Background(), b.tenant, of(window)); err != nil || !existing || v.Record.ID != want {
			t.Errorf("again within %v: existing %v, %v", window, existing, err)
		}
	}
	// Until the window is over the answer is the first render; then it is a new one.
	for ctx := t.Context(); ; {
		v, existing, err := b.Submit(ctx, b.tenant, of(2*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if !existing {
			break
		}
		if v.Record.ID != short.Record.ID {
			t.Fatalf("within the window: %s, want %s", v.Record.ID, short.Record.ID)
		}
	}
}

func TestRefusedSubmitLeavesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxConcurrent: 1})
	ctx := context.Background()
	a, foreign := b.upload(b.tenant), b.upload("beta")
	first := b.submit(request(a, "", ""))
	if _, _, err := b.Submit(ctx, b.tenant, request(a, "", "k")); render.CodeOf(err) != render.CodeRenderQuotaExceeded {
		t.Fatalf("above the limit: %v", err)
	}
	if _, err := b.Cancel(ctx, b.tenant, first.Record.ID, "me"); err != nil {
		t.Fatal(err)
	}
	// The key was given back: other arguments are welcome under it.
	if _, existing, err := b.Submit(ctx, b.tenant, request(a, "mark", "k")); err != nil || existing {
		t.Errorf("after a refusal: existing %v, %v", existing, err)
	}
	for name, s := range map[string]farm.Submission{
		"unknown asset": request(&render.Asset{ID: render.NewAssetID()}, "", ""),
		"foreign asset": request(foreign, "", ""),
	} {
		if _, _, err := b.Submit(ctx, b.tenant, s); render.CodeOf(err) != render.CodeSourceNotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a submitter asked for is kept within bounds, beside everything that is
// written later, and a repeated key does not change it.
func TestAskedTaskRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	a := b.upload(b.tenant)
	for asked, want := range map[time.Duration]time.Duration{
		0: 24 * time.Hour, time.Minute: time.Hour, 2 * time.Hour: 2 * time.Hour, 1000 * time.Hour: 24 * time.Hour,
	} {
		s := request(a, "", "key of "+asked.String())
		s.TaskRetention = asked
		id := b.submit(s).Record.ID
		s.TaskRetention = 3 * time.Hour
		if again := b.submit(s).Record; again.ID != id || again.TaskFor() != want {
			t.Errorf("asked for %v, again: %s for %v, want %s for %v", asked, again.ID, again.TaskFor(), id, want)
		}
		if v, err := b.Cancel(t.Context(), b.tenant, id, "me"); err != nil || v.Record.TaskFor() != want {
			t.Errorf("asked for %v, cancelled: %v, %v", asked, v, err)
		}
		if v, err := b.Get(t.Context(), b.tenant, id); err != nil || v.Record.TaskFor() != want {
			t.Errorf("asked for %v, read: %v, %v", asked, v, err)
		}
	}
}

func TestCancelWinsOverALateResult(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	id := b.submit(request(b.upload(b.tenant), "", "")).Record.ID
	b.work(render.ClassPreview, standIn) // plan
	c := b.claim(render.ClassCPU)
	if s := b.state(id); s != render.StateRendering {
		t.Fatalf("state %s", s)
	}
	if v, err := b.Cancel(ctx, b.tenant, id, "me"); err != nil || v.Record.State != render.StateCancelled {
		t.Fatalf("cancel: %v", err)
	}
	res, err := standIn(c)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Complete(res); err != nil {
		t.Fatalf("a late result: %v", err)
	}
	if left := b.objects(id); len(left) > 0 {
		t.Errorf("the late result stays: %v", left)
	}
	if v, err := b.Cancel(ctx, b.tenant, id, "me"); err != nil || v.Record.State != render.StateCancelled {
		t.Errorf("cancel again: %v", err)
	}
	if _, err := b.Decide(ctx, b.tenant, id, render.Decision{Approved: true}); render.CodeOf(err) != render.CodeApprovalNotPending {
		t.Errorf("approve after cancel: %v", err)
	}
	if err := slotsFree(ctx, b); err != nil {
		t.Error(err)
	}
}

func TestFailuresAreCountedByBlame(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxAttempts: 1})
	ctx := context.Background()
	a := b.upload(b.tenant)
	id := b.submit(request(a, "", "")).Record.ID
	b.work(render.ClassPreview, func(*farm.Claim) (*render.StageResult, error) {
		return nil, render.Errorf(render.CodeRenderFailed, render.BlameWorker, "my disk is full")
	})
	c := b.claim(render.ClassPreview)
	if c.Number != 2 {
		t.Errorf("attempt %d", c.Number)
	}
	if err := c.HandBack("stopping"); err != nil {
		t.Fatal(err)
	}
	if s := b.state(id); s.Terminal() {
		t.Fatalf("hand-backs ended the render: %s", s)
	}
	b.work(render.ClassPreview, func(*farm.Claim) (*render.StageResult, error) {
		return nil, render.Errorf(render.CodeRenderFailed, render.BlameJob, "exit status 1")
	})
	v, err := b.Get(ctx, b.tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	if v.Record.State != render.StateFailed || v.Record.Failure.Code != render.CodeRenderFailed || !v.Record.Failure.Temporary {
		t.Errorf("after the last attempt: %s %+v", v.Record.State, v.Record.Failure)
	}
	letters, err := b.stores.Jobs.DeadLetters(ctx, 10)
	if err != nil || len(letters) != 1 || letters[0].Work.Task != id {
		t.Errorf("dead letters %v, %v", letters, err)
	}

	id = b.submit(request(a, "", "")).Record.ID
	b.work(render.ClassPreview, func(*farm.Claim) (*render.StageResult, error) {
		e := render.Errorf(render.CodeTextNotRenderable, render.BlameCaller, "no glyph")
		e.Details = &render.Details{Field: "watermark.text"}
		return nil, e
	})
	if v, err = b.Get(ctx, b.tenant, id); err != nil || v.Record.Failure == nil || v.Record.Failure.Code != render.CodeTextNotRenderable || v.Record.Failure.Field != "watermark.text" {
		t.Errorf("the caller's fault: %+v, %v", v.Record.Failure, err)
	}
}

func TestApprovalTimesOut(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	id := b.submit(request(b.upload(b.tenant), "mark", "")).Record.ID
	b.work(render.ClassPreview, standIn)
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if s := b.state(id); s != render.StateAwaitingApproval {
		t.Fatalf("before the deadline: %s", s)
	}
	b.clock.advance(render.ApprovalWindow)
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	v, err := b.Get(ctx, b.tenant, id)
	if err != nil || v.Record.Failure == nil || v.Record.Failure.Code != render.CodeWatermarkApprovalTimeout {
		t.Errorf("after the deadline: %+v, %v", v, err)
	}
}

// A decision counts until the deadline, not until the timer or a reconciliation
// comes round.
func TestDecisionsComeInTimeOrNot(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	id := b.submit(request(b.upload(b.tenant), "mark", "")).Record.ID
	b.work(render.ClassPreview, standIn)
	b.clock.advance(render.ApprovalWindow)
	for range 2 {
		if _, err := b.Decide(ctx, b.tenant, id, render.Decision{Approved: true}); render.CodeOf(err) != render.CodeApprovalNotPending {
			t.Errorf("a late decision: %v", err)
		}
	}
	v, err := b.Get(ctx, b.tenant, id)
	if err != nil || v.Record.Failure == nil || v.Record.Failure.Code != render.CodeWatermarkApprovalTimeout || v.Record.Decision != nil {
		t.Errorf("after it: %+v, %v", v, err)
	}
	if err := b.Reconcile(ctx); err != nil {
		t.Error(err)
	}
}

func TestReconcilePublishesWhatACrashLeftOut(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	a := b.upload(b.tenant)
	// A submit that died after the record: no message exists.
	spec := render.Spec{Source: a.ID, Format: render.FormatMP4, Resolution: render.Resolution720p, Quality: render.QualityDraft}
	rec := render.New(render.NewID(), b.tenant, spec, render.SourceRef{Asset: a.ID, Object: a.Object, Facts: a.Facts}, nil, time.Now())
	if _, err := b.stores.Ledger.CreateRender(ctx, rec); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if c := b.work(render.ClassPreview, standIn); c.Work.Task != rec.ID || c.Work.Stage != render.StagePlan {
		t.Errorf("claimed %+v", c.Work)
	}
	// A worker that died after its result: the record has not moved.
	c := b.claim(render.ClassCPU)
	res, err := standIn(c)
	if err != nil {
		t.Fatal(err)
	}
	res.Work, res.Attempt = c.Work, c.Attempt
	if _, _, err := b.stores.Ledger.PutResult(ctx, res); err != nil {
		t.Fatal(err)
	}
	if err := c.HandBack("died"); err != nil {
		t.Fatal(err)
	}
	for b.state(rec.ID) != render.StateSucceeded {
		c := b.work(render.ClassCPU, standIn)
		if c.Work == res.Work {
			t.Errorf("work with a result was claimed again: %+v", c.Work)
		}
	}
}

func TestDeleteAssetInUse(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	a := b.upload(b.tenant)
	id := b.submit(request(a, "", "")).Record.ID
	if err := b.DeleteAsset(ctx, b.tenant, a.ID); !errors.Is(err, farm.ErrInUse) {
		t.Errorf("delete in use: %v", err)
	}
	if err := b.DeleteAsset(ctx, "other", a.ID); render.CodeOf(err) != render.CodeSourceNotFound {
		t.Errorf("delete of a foreign asset: %v", err)
	}
	if _, err := b.Cancel(ctx, b.tenant, id, "me"); err != nil {
		t.Fatal(err)
	}
	if err := b.DeleteAsset(ctx, b.tenant, a.ID); err != nil {
		t.Errorf("delete: %v", err)
	}
	if _, err := b.Asset(ctx, b.tenant, a.ID); render.CodeOf(err) != render.CodeSourceNotFound {
		t.Errorf("after the deletion: %v", err)
	}
	if _, err := b.stores.Ledger.GetAsset(ctx, b.tenant, a.ID); !errors.Is(err, ledger.ErrNotFound) {
		t.Errorf("the record: %v", err)
	}
}

type brokenReader struct{ n int }

func (r *brokenReader) Read(p []byte) (int, error) {
	if r.n == 0 {
		return 0, errors.New("connection reset")
	}
	r.n--
	return copy(p, "some bytes"), nil
}

func TestBadUploads(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxAssetBytes: 16})
	for name, tc := range map[string]struct {
		upload farm.Upload
		want   render.Code
	}{
		"empty":           {farm.Upload{Size: -1, Body: strings.NewReader("")}, render.CodeInvalidField},
		"announced empty": {farm.Upload{Size: 0, Body: strings.NewReader("")}, render.CodeInvalidField},
		"cut off":         {farm.Upload{Size: -1, Body: &brokenReader{n: 1}}, render.CodeInvalidField},
		"shorter":         {farm.Upload{Size: 10, Body: strings.NewReader("12345")}, render.CodeInvalidField},
		"announced large": {farm.Upload{Size: 17, Body: strings.NewReader("12345678901234567")}, render.CodeSourceTooLarge},
		"large":           {farm.Upload{Size: -1, Body: strings.NewReader("12345678901234567")}, render.CodeSourceTooLarge},
		"another hash":    {farm.Upload{Size: -1, SHA256: strings.Repeat("0", 64), Body: strings.NewReader("x")}, render.CodeInvalidField},
		"name not UTF-8":  {farm.Upload{Name: "\xff", Size: -1, Body: strings.NewReader("x")}, render.CodeInvalidField},
		"hash not a hash": {farm.Upload{Size: -1, SHA256: "zz", Body: strings.NewReader("x")}, render.CodeInvalidField},
	} {
		if _, err := b.Upload(context.Background(), b.tenant, tc.upload); render.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	for info, err := range b.stores.Blobs.List(context.Background(), "sources/") {
		t.Errorf("left behind: %v, %v", info, err)
	}
}

func TestReconcileFreesASlotThatNobodyUses(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxConcurrent: 1})
	ctx := context.Background()
	a := b.upload(b.tenant)
	// A submit that died between its slot and its record.
	if _, err := b.stores.Ledger.TakeSlot(ctx, b.tenant, render.NewID(), 1); err != nil {
		t.Fatal(err)
	}
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.Submit(ctx, b.tenant, request(a, "", "")); render.CodeOf(err) != render.CodeRenderQuotaExceeded {
		t.Errorf("a young slot was taken away: %v", err)
	}
	b.clock.advance(10 * time.Minute)
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	b.submit(request(a, "", ""))
}

func TestWorkersFaultsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxLost: 1})
	id := b.submit(request(b.upload(b.tenant), "", "")).Record.ID
	fault := func(*farm.Claim) (*render.StageResult, error) {
		return nil, render.Errorf(render.CodeRenderFailed, render.BlameWorker, "out of memory")
	}
	b.work(render.ClassPreview, fault)
	if s := b.state(id); s.Terminal() {
		t.Fatalf("one fault of a worker ended the render: %s", s)
	}
	b.work(render.ClassPreview, fault)
	v, err := b.settled(id)
	if err != nil || v.Record.State != render.StateFailed || v.Record.Failure.Code != render.CodeRenderFailed {
		t.Errorf("after the last: %+v, %v", v, err)
	}
}

// settled claims whatever is left of a render until it has ended.
func (b *bundle) settled(id render.ID) (*farm.View, error) {
	for {
		v, err := b.Get(context.Background(), b.tenant, id)
		if err != nil || v.Record.State.Terminal() {
			return v, err
		}
		c, err := b.Claim(context.Background(), render.ClassPreview, "w1", 5*time.Second)
		switch {
		case errors.Is(err, jobs.ErrNone):
		case err != nil:
			return v, err
		default:
			return v, fmt.Errorf("work was claimed: %+v", c.Work)
		}
	}
}

func TestASecondSlotOfAFinishedRenderIsFreed(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{MaxConcurrent: 2})
	ctx := context.Background()
	id := b.submit(request(b.upload(b.tenant), "", "")).Record.ID
	if _, err := b.Cancel(ctx, b.tenant, id, "me"); err != nil {
		t.Fatal(err)
	}
	// A second submit of its key took a slot for it just now: the second one.
	for _, task := range []render.ID{render.NewID(), id} {
		if _, err := b.stores.Ledger.TakeSlot(ctx, b.tenant, task, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Reconcile(ctx); err != nil {
		t.Fatal(err)
	}
	for holder, err := range b.stores.Ledger.Slots(ctx) {
		if err != nil || holder.Task == id {
			t.Errorf("slot %d is still held by the finished render, %v", holder.Slot, err)
		}
	}
}

func TestARefusedRetryGivesTheKeyBack(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := context.Background()
	a := b.upload(b.tenant)
	if err := b.DeleteAsset(ctx, b.tenant, a.ID); err != nil {
		t.Fatal(err)
	}
	// Twice: the second submit finds what a first one that died would leave.
	for range 2 {
		if _, _, err := b.Submit(ctx, b.tenant, request(a, "", "k")); render.CodeOf(err) != render.CodeSourceNotFound {
			t.Fatalf("a deleted source: %v", err)
		}
	}
	if _, existing, err := b.Submit(ctx, b.tenant, request(b.upload(b.tenant), "", "k")); err != nil || existing {
		t.Errorf("the key is still bound: existing %v, %v", existing, err)
	}
}

func TestALostObjectIsNotTheSourcesFault(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	b.submit(request(b.upload(b.tenant), "", ""))
	c := b.claim(render.ClassPreview)
	err := c.Fetch(t.Context(), render.Object{Key: "renders/none", ETag: "x", Size: 1}, t.TempDir()+"/x")
	var e *render.Error
	if !errors.Is(err, farm.ErrGone) || !errors.As(err, &e) || e.Blame != render.BlameJob {
		t.Errorf("a lost object: %v", err)
	}
	if err := c.HandBack("the test ends"); err != nil {
		t.Error(err)
	}
}

// fullDisk is a ledger that answers reads and stores nothing.
type fullDisk struct{ ledger.Ledger }

func (fullDisk) LeaseName(context.Context, string, string) (ledger.Lease, error) {
	return nil, errors.New("no space left on device")
}

func TestReadyMeansThatItCanWrite(t *testing.T) {
	t.Parallel()
	stores := newStores(t)
	if err := farm.New(stores, farm.Config{}).Ready(t.Context()); err != nil {
		t.Errorf("a farm that can write is not ready: %v", err)
	}
	stores.Ledger = fullDisk{stores.Ledger}
	if err := farm.New(stores, farm.Config{}).Ready(t.Context()); err == nil {
		t.Error("a farm whose ledger cannot write is ready")
	}
}
