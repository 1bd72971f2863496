package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
