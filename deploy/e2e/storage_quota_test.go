package e2e

import (
	"context"
	"errors"
	"io"
	"iter"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// putBytes uploads n bytes, whose number it announces or not.
func putBytes(f *farm.Farm, tenant render.Tenant, n int, announced bool) (*render.Asset, error) {
	u := farm.Upload{Name: "a.mp4", Size: -1, Body: strings.NewReader(strings.Repeat("x", n))}
	if announced {
		u.Size = int64(n)
	}
	return f.Upload(context.Background(), tenant, u)
}

// stored reads the account of the tenant's uploads.
func (b *bundle) stored() render.Usage {
	b.t.Helper()
	u, err := b.stores.Ledger.Usage(context.Background(), b.tenant, "storage")
	if err != nil && !errors.Is(err, ledger.ErrNotFound) {
		b.t.Fatal(err)
	}
	return u
}

func counted[T any](t *testing.T, all iter.Seq2[T, error]) (n int) {
	t.Helper()
	for _, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		n++
	}
	return n
}

func TestStorageQuota(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{StorageBytes: 10, ProbeWait: time.Millisecond, AssetRetention: 48 * time.Hour, PresignTTL: time.Hour})
	ctx := context.Background()
	must := func(a *render.Asset, err error) *render.Asset {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := must(putBytes(b.Farm, b.tenant, 4, true))
	b.clock.advance(time.Hour)
	must(putBytes(b.Farm, b.tenant, 4, false))
	// refused is an upload that has to wait until another has expired.
	refused := func(n int, announced bool, until time.Time) (wait time.Duration) {
		t.Helper()
		before := b.clock.now().Truncate(time.Millisecond)
		_, err := putBytes(b.Farm, b.tenant, n, announced)
		wait = wantQuota(t, err, "storage_bytes")
		if wait > until.Sub(before) || wait < until.Sub(b.clock.now()) {
			t.Errorf("announced %t: come again in %s, room is there in %s", announced, wait, until.Sub(before))
		}
		return wait
	}
	refused(5, true, first.Expires)
	refused(5, false, first.Expires)
	_, err := b.PresignUpload(ctx, b.tenant, farm.Announcement{Size: 3})
	wantQuota(t, err, "storage_bytes")
	for _, announced := range []bool{true, false} {
		_, err = putBytes(b.Farm, "small", 11, announced)
		if e := (*render.Error)(nil); !errors.As(err, &e) || e.Code != render.CodeSourceTooLarge || e.Temporary || e.Details.Field != "body" {
			t.Errorf("more than the whole quota, announced %t: %v", announced, err)
		}
	}
	must(putBytes(b.Farm, "another", 10, true))
	// What is exactly left fits.
	must(putBytes(b.Farm, b.tenant, 2, false))
	if u := b.stored(); u.Used != 10 || len(u.Holds) > 0 {
		t.Errorf("a full quota: %+v", u)
	}
	_, err = putBytes(b.Farm, b.tenant, 1, false)
	wantQuota(t, err, "storage_bytes")
	if n := counted(t, b.stores.Blobs.List(ctx, "sources/"+b.tenant.Key()+"/")); n != 3 {
		t.Errorf("%d objects of 3 uploads", n)
	}
	// What is deleted, or was never put and is too late, is room again.
	if err := b.DeleteAsset(ctx, b.tenant, first.ID); err != nil {
		t.Fatal(err)
	}
	pending, err := b.PresignUpload(ctx, b.tenant, farm.Announcement{Size: 4})
	if err != nil {
		t.Fatal(err)
	}
	b.clock.advance(refused(4, true, pending.Asset.Expires))
	must(putBytes(b.Farm, b.tenant, 4, true))
}

// TestBrokenUploadsGiveTheirRoomBack: also those whose gateway died, once none
// can be under way any more.
func TestBrokenUploadsGiveTheirRoomBack(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{StorageBytes: 10, ProbeWait: time.Millisecond, OrphanAge: 2 * time.Hour})
	ctx := context.Background()
	for _, size := range []int64{8, -1} {
		broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("the client left")))
		if _, err := b.Upload(ctx, b.tenant, farm.Upload{Size: size, Body: broken}); render.CodeOf(err) != render.CodeInvalidField {
			t.Fatalf("a broken upload: %v", err)
		}
		if u := b.stored(); u.Total() != 0 {
			t.Errorf("a broken upload of %d leaves %+v", size, u)
		}
	}
	dead := render.Hold{ID: string(render.NewAssetID()), Amount: 6, At: b.clock.now()}
	if _, err := b.stores.Ledger.ChangeUsage(ctx, b.tenant, "storage", time.Hour, func(u *render.Usage) (bool, error) {
		return true, u.Hold(dead, 10)
	}); err != nil {
		t.Fatal(err)
	}
	_, err := putBytes(b.Farm, b.tenant, 5, true)
	wantQuota(t, err, "storage_bytes")
	b.clock.advance(3 * time.Hour)
	if _, err := putBytes(b.Farm, b.tenant, 5, true); err != nil {
		t.Error(err)
	}
}

// TestALimitCountsWhatIsThere: a limit that is set later.
func TestALimitCountsWhatIsThere(t *testing.T) {
	t.Parallel()
	b := setup(t, farm.Config{ProbeWait: time.Millisecond})
	if _, err := putBytes(b.Farm, b.tenant, 8, true); err != nil {
		t.Fatal(err)
	}
	limited := farm.New(b.stores, farm.Config{StorageBytes: 10, ProbeWait: time.Millisecond, Now: b.clock.now})
	_, err := putBytes(limited, b.tenant, 3, true)
	wantQuota(t, err, "storage_bytes")
	if _, err := putBytes(limited, b.tenant, 2, true); err != nil {
		t.Error(err)
	}
}

// TestTwoGatewaysShareAStorageQuota: of many uploads at once exactly those pass
// that fit.
func TestTwoGatewaysShareAStorageQuota(t *testing.T) {
	t.Parallel()
	cfg := farm.Config{StorageBytes: 20, ProbeWait: time.Millisecond}
	b := setup(t, cfg)
	cfg.Now = b.clock.now
	both := []*farm.Farm{b.Farm, farm.New(b.stores, cfg)}
	var (
		wg    sync.WaitGroup
		taken atomic.Int64
	)
	for i := range 15 {
		wg.Go(func() {
			_, err := putBytes(both[i%2], b.tenant, 4, true)
			if err == nil {
				taken.Add(1)
			} else if render.CodeOf(err) != render.CodeRenderQuotaExceeded {
				t.Errorf("upload: %v", err)
			}
		})
	}
	wg.Wait()
	if taken.Load() != 5 {
		t.Errorf("%d uploads of 4 bytes in a quota of 20", taken.Load())
	}
	if u := b.stored(); u.Used != 20 || len(u.Holds) > 0 {
		t.Errorf("stored: %+v", u)
	}
}
