package e2e

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// later is a farm over the same stores whose clock is ahead.
func (b *bundle) later(d time.Duration, change ...func(*farm.Stores)) *farm.Farm {
	stores := b.stores
	for _, f := range change {
		f(&stores)
	}
	return farm.New(stores, farm.Config{Now: func() time.Time { return time.Now().Add(d) }, Logger: quiet()})
}

func (b *bundle) sweep(f *farm.Farm, o farm.SweepOptions) farm.SweepReport {
	b.t.Helper()
	r, err := f.Sweep(context.Background(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// keys lists every object that is no mark of the sweeps.
func (b *bundle) keys() []string {
	b.t.Helper()
	var keys []string
	for info, err := range b.stores.Blobs.List(context.Background(), "") {
		if err != nil {
			b.t.Fatal(err)
		}
		if !strings.HasPrefix(info.Key, blob.EpochPrefix) {
			keys = append(keys, info.Key)
		}
	}
	return keys
}

func (b *bundle) put(key string) string {
	b.t.Helper()
	if _, err := b.stores.Blobs.Put(context.Background(), key, strings.NewReader("left"), blob.PutOptions{Size: 4}); err != nil {
		b.t.Fatal(err)
	}
	return key
}

func (b *bundle) wantKeys(what string, want ...string) {
	b.t.Helper()
	got := b.keys()
	slices.Sort(want)
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: left are\n%s\nnot\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// attempt is a key of an attempt that was killed.
func attempt(rec *render.Record, stage render.Stage) string {
	w := render.Work{Tenant: rec.Tenant, Task: rec.ID, Generation: 1, Stage: stage}
	return blob.WorkKey(w, render.NewAttemptID(), "video.mp4")
}

// finish does all the work of a render without an approval.
func (b *bundle) finish(id render.ID) *render.Record {
	b.t.Helper()
	b.work(render.ClassPreview, standIn) // plan
	for range 3 + 1 + 1 {
		b.work(render.ClassCPU, standIn)
	}
	v, err := b.Get(context.Background(), b.tenant, id)
	if err != nil || v.Record.Output == nil {
		b.t.Fatalf("%+v, %v", v, err)
	}
	return v.Record
}

func TestSweepLeavesWhatIsNeeded(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	asset := b.upload(b.tenant)
	done := b.finish(b.submit(request(asset, "", "")).Record.ID)
	live := b.submit(request(asset, "", "")).Record
	kept := []string{asset.Object.Key, done.Output.Object.Key, b.put(attempt(live, render.StageSegment)), b.put("somebody/else"), b.put("renders/x")}
	leftover := b.put(attempt(done, render.StageSegment))
	gone := b.put(attempt(&render.Record{Tenant: b.tenant, ID: render.NewID()}, render.StageSegment))
	unrecorded := b.put(blob.SourceKey(b.tenant, render.NewAssetID(), render.NewAttemptID()))
	second := b.put(blob.SourceKey(b.tenant, asset.ID, render.NewAttemptID()))
	incoming := b.put(blob.IncomingKey(b.tenant, render.NewAssetID()))
	all := append([]string{leftover, gone, unrecorded, second, incoming}, kept...)

	b.sweep(b.later(23*time.Hour), farm.SweepOptions{})
	b.wantKeys("nothing is old", slices.Clone(all)...)
	var found []string
	r := b.sweep(b.later(25*time.Hour), farm.SweepOptions{DryRun: true, Found: func(i farm.SweepItem) { found = append(found, fmt.Sprint(i.Class, " ", i.Key)) }})
	b.wantKeys("a dry run", slices.Clone(all)...)
	want := []string{"leftover " + leftover, "render " + gone, "source " + unrecorded, "source " + second, "incoming " + incoming}
	slices.Sort(want)
	if slices.Sort(found); !slices.Equal(found, want) || len(r.Deleted) > 0 {
		t.Errorf("found %q, not %q; %v", found, want, r)
	}
	r = b.sweep(b.later(25*time.Hour), farm.SweepOptions{})
	b.wantKeys("the sweep", slices.Clone(kept)...)
	if r.Deleted[farm.SweepLeftover] != (farm.SweepCount{Count: 1, Bytes: 4}) || r.Deleted[farm.SweepSource].Count != 2 || r.Seen != len(all) { // one key is not the farm's, and there is one record
		t.Errorf("%+v", r)
	}
	// Past every retention only what the live render needs is left.
	b.sweep(b.later(8*24*time.Hour), farm.SweepOptions{})
	b.wantKeys("after a week", append(slices.Clone(kept[2:]), asset.Object.Key)...)
	if _, err := b.Cancel(context.Background(), b.tenant, live.ID, "me"); err != nil {
		t.Fatal(err)
	}
	b.sweep(b.later(8*24*time.Hour), farm.SweepOptions{})
	b.wantKeys("after its end", kept[3:]...)
	if _, err := b.Asset(context.Background(), b.tenant, asset.ID); render.CodeOf(err) != render.CodeSourceNotFound {
		t.Errorf("the expired asset: %v", err)
	}
}

func TestSweepStopsWhenTheEpochChanged(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	orphan := b.put(blob.IncomingKey(b.tenant, render.NewAssetID()))
	b.sweep(b.later(0), farm.SweepOptions{})
	other := setup(t, farm.Config{}) // another ledger
	anew := b.later(25*time.Hour, func(s *farm.Stores) { s.Ledger = other.stores.Ledger })
	for _, o := range []farm.SweepOptions{{DryRun: true}, {}, {AllowMany: true}} {
		if _, err := anew.Sweep(t.Context(), o); !errors.Is(err, farm.ErrEpochChanged) {
			t.Errorf("a new ledger, %+v: %v", o, err)
		}
	}
	elsewhere := b.later(25*time.Hour, func(s *farm.Stores) { s.Blobs = other.stores.Blobs })
	if _, err := elsewhere.Sweep(t.Context(), farm.SweepOptions{}); !errors.Is(err, farm.ErrEpochChanged) {
		t.Errorf("another bucket: %v", err)
	}
	b.wantKeys("stopped", orphan)
	b.sweep(anew, farm.SweepOptions{ConfirmEpoch: true})
	b.wantKeys("confirmed")
	b.sweep(anew, farm.SweepOptions{})
	if _, err := b.later(0).Sweep(t.Context(), farm.SweepOptions{}); !errors.Is(err, farm.ErrEpochChanged) {
		t.Errorf("the old ledger: %v", err)
	}
	// The ledger went back in time: the bucket remembers a later turn.
	epoch, err := other.stores.Ledger.Epoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.put(blob.EpochKey(epoch.ID, epoch.Turn+1))
	if _, err := anew.Sweep(t.Context(), farm.SweepOptions{}); !errors.Is(err, farm.ErrEpochChanged) {
		t.Errorf("a restored ledger: %v", err)
	}
	b.sweep(anew, farm.SweepOptions{ConfirmEpoch: true})
	b.sweep(anew, farm.SweepOptions{})
}

// paused is a store whose first deletion stands still.
func pausedBlobs(s blob.Store) (paused blob.Store, reached <-chan struct{}, goOn func()) {
	at, on := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(at); <-on })
	return hookedBlobs{Store: s, beforeDelete: once}, at, sync.OnceFunc(func() { close(on) })
}

// TestSweepThatStoodStill: between its look and the deletion renders end, begin
// and assets come; what it deletes then is still what nobody needs.
func TestSweepThatStoodStill(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	asset := b.upload(b.tenant)
	done := b.finish(b.submit(request(asset, "", "")).Record.ID)
	ends := b.submit(request(asset, "", "")).Record
	b.sweep(b.later(0), farm.SweepOptions{}) // its own marks
	orphans := []string{b.put(attempt(done, render.StageSegment)), b.put(blob.SourceKey(b.tenant, render.NewAssetID(), render.NewAttemptID()))}
	late := b.put(attempt(ends, render.StageSegment))

	blobs, reached, goOn := pausedBlobs(b.stores.Blobs)
	defer goOn()
	// The pause is at the first deletion of an object: marks are deleted before
	// it, so the wrapper comes after a look of another.
	sweeper := b.later(25*time.Hour, func(s *farm.Stores) { s.Blobs = skipMarks{blobs, b.stores.Blobs} })
	ended := make(chan error, 1)
	go func() {
		_, err := sweeper.Sweep(context.Background(), farm.SweepOptions{})
		ended <- err
	}()
	select {
	case <-reached:
	case err := <-ended:
		t.Fatalf("the sweep deleted nothing: %v", err)
	}
	if _, err := b.Cancel(context.Background(), b.tenant, ends.ID, "me"); err != nil {
		t.Fatal(err)
	}
	fresh := b.upload(b.tenant)
	live := b.submit(request(fresh, "", "")).Record
	stray := b.put(attempt(live, render.StageSegment))
	b.sweep(b.later(25*time.Hour), farm.SweepOptions{}) // another one overtakes it
	goOn()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, key := range []string{asset.Object.Key, fresh.Object.Key, done.Output.Object.Key, stray} {
		if _, err := b.stores.Blobs.Stat(t.Context(), key); err != nil {
			t.Errorf("lost %s: %v", key, err)
		}
	}
	for _, key := range append(orphans, late) {
		if _, err := b.stores.Blobs.Stat(t.Context(), key); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("left %s: %v", key, err)
		}
	}
}

// skipMarks deletes the sweeps' own marks past the wrapper.
type skipMarks struct {
	blob.Store
	marks blob.Store
}

func (s skipMarks) Delete(ctx context.Context, keys ...string) error {
	if len(keys) == 0 || strings.HasPrefix(keys[0], blob.EpochPrefix) {
		return s.marks.Delete(ctx, keys...)
	}
	return s.Store.Delete(ctx, keys...)
}

func TestSweepStopsBeforeAFifth(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	id := render.NewAssetID()
	const n = 101 // one more than what may always go
	var keys []string
	for range n {
		keys = append(keys, blob.SourceKey(b.tenant, id, render.NewAttemptID()))
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(keys, 26) {
		wg.Go(func() {
			for _, key := range part {
				b.put(key)
			}
		})
	}
	wg.Wait()
	for _, o := range []farm.SweepOptions{{DryRun: true}, {}, {ConfirmEpoch: true}} {
		r, err := b.later(25*time.Hour).Sweep(t.Context(), o)
		if !errors.Is(err, farm.ErrSweepsTooMuch) || r.Found[farm.SweepSource].Count != n || len(r.Deleted) > 0 {
			t.Errorf("%+v: %+v, %v", o, r, err)
		}
	}
	b.wantKeys("stopped", keys...)
	// Two at once delete each object once or twice, and nothing else.
	for range 2 {
		wg.Go(func() {
			if _, err := b.later(25*time.Hour).Sweep(context.Background(), farm.SweepOptions{AllowMany: true}); err != nil {
				t.Errorf("two at once: %v", err)
			}
		})
	}
	wg.Wait()
	b.wantKeys("allowed")
	if r, err := b.later(25*time.Hour).Sweep(t.Context(), farm.SweepOptions{}); err != nil || len(r.Found) > 0 {
		t.Errorf("afterwards: %+v, %v", r, err)
	}
}

// uploading is a store with these unfinished uploads.
type uploading struct {
	blob.Store
	uploads []blob.Unfinished
	aborted *[]string
}

func (u uploading) ListUnfinished(context.Context, string) iter.Seq2[blob.Unfinished, error] {
	return func(yield func(blob.Unfinished, error) bool) {
		for _, x := range u.uploads {
			if !yield(x, nil) {
				return
			}
		}
	}
}

func (u uploading) Abort(_ context.Context, x blob.Unfinished) error {
	*u.aborted = append(*u.aborted, x.Key)
	return nil
}

func TestSweepOfUploadsAndRecords(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	ctx := t.Context()
	asset, lost := b.upload(b.tenant), b.upload(b.tenant)
	live, ended := b.submit(request(asset, "", "")).Record, b.submit(request(asset, "", "")).Record
	if _, err := b.Cancel(ctx, b.tenant, ended.ID, "me"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	source := blob.SourceKey(b.tenant, render.NewAssetID(), render.NewAttemptID())
	want := []string{attempt(ended, render.StageSegment), source}
	uploads := []blob.Unfinished{
		{Key: attempt(live, render.StageSegment), Begun: begun}, {Key: want[0], Begun: begun}, {Key: "somebody/else", Begun: begun},
		{Key: attempt(ended, render.StageAudio), Begun: begun.Add(24 * time.Hour)}, {Key: source, Begun: begun},
	}
	var aborted []string
	f := b.later(25*time.Hour, func(s *farm.Stores) { s.Blobs = uploading{s.Blobs, uploads, &aborted} })
	if r := b.sweep(f, farm.SweepOptions{}); r.Deleted[farm.SweepUnfinished].Count != 2 || !slices.Equal(aborted, want) {
		t.Errorf("aborted %q, not %q; %+v", aborted, want, r)
	}
	// A record whose bytes are gone is one that every render would stumble over.
	if err := b.stores.Blobs.Delete(ctx, lost.Object.Key); err != nil {
		t.Fatal(err)
	}
	b.sweep(b.later(23*time.Hour), farm.SweepOptions{})
	if _, err := b.Asset(ctx, b.tenant, lost.ID); err != nil {
		t.Errorf("a young record: %v", err)
	}
	if r := b.sweep(b.later(25*time.Hour), farm.SweepOptions{}); r.Deleted[farm.SweepRecord].Count != 1 {
		t.Errorf("%+v", r)
	}
	_, err := b.Asset(ctx, b.tenant, lost.ID)
	wantCode(t, "a record without bytes", err, render.CodeSourceNotFound)
	if _, err := b.Asset(ctx, b.tenant, asset.ID); err != nil {
		t.Error(err)
	}
}

// TestSweepOfRandomFarms holds sweeps against a plain rule: of a live render
// everything stays, of a finished one what its record names, of one past its
// retention or without a record nothing, and nothing young goes.
func TestSweepOfRandomFarms(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	b := idle(t, farm.Config{MaxConcurrent: 1})
	b.sweep(b.later(0), farm.SweepOptions{})
	spec, err := render.Normalize(request(&render.Asset{ID: render.NewAssetID()}, "", "").Request)
	if err != nil {
		t.Fatal(err)
	}
	after := 25 * time.Hour
	if rnd.IntN(2) == 0 {
		after = 8 * 24 * time.Hour
	}
	var want []string
	for range 25 {
		rec := render.New(render.NewID(), b.tenant, spec, render.SourceRef{Asset: spec.Source}, nil, time.Now())
		states := render.States()
		rec.State = states[rnd.IntN(len(states))]
		keys := make([]string, 1+rnd.IntN(4))
		for i := range keys {
			stages := []render.Stage{render.StagePreview, render.StageSegment, render.StageAudio, render.StageAssemble}
			keys[i] = b.put(attempt(rec, stages[rnd.IntN(len(stages))]))
		}
		named := keys[rnd.IntN(len(keys))]
		if rec.State.Terminal() {
			rec.Ended, rec.Step = time.Now(), render.StepDone
			if rec.State == render.StateSucceeded {
				rec.Output = &render.Output{Object: render.Object{Key: named, Size: 4}}
			} else {
				rec.Preview = &render.Preview{Object: render.Object{Key: named, Size: 4}}
			}
		}
		recorded := rnd.IntN(5) > 0
		if recorded {
			if _, err := b.stores.Ledger.CreateRender(t.Context(), rec); err != nil {
				t.Fatal(err)
			}
		}
		switch {
		case recorded && !rec.State.Terminal():
			want = append(want, keys...)
		case recorded && after < render.RenderRetention:
			want = append(want, named)
		}
	}
	b.sweep(b.later(after), farm.SweepOptions{})
	b.wantKeys("the sweep", want...)
}

// TestSweepsComeByThemselves, of several processes one at a time.
func TestSweepsComeByThemselves(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{})
	orphan := b.put(blob.IncomingKey(b.tenant, render.NewAssetID()))
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		f := farm.New(b.stores, farm.Config{Now: func() time.Time { return time.Now().Add(25 * time.Hour) }, SweepEvery: time.Second, Logger: quiet()})
		wg.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Errorf("run: %v", err)
			}
		})
	}
	defer func() { cancel(); wg.Wait() }()
	for deadline := time.Now().Add(time.Minute); ; {
		_, err := b.stores.Blobs.Stat(ctx, orphan)
		if errors.Is(err, blob.ErrNotFound) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("it is still there: %v", err)
		}
		<-time.After(50 * time.Millisecond) // the sweeps' own time
	}
}
