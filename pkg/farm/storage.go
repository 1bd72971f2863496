package farm

import (
	"context"
	"slices"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

const (
	limitStorage = "storage_bytes"
	// storageAccount is the name of the account of the bytes of uploads.
	storageAccount = "storage"
)

// storageRoom is how many bytes of an upload of unknown length are taken at
// most: those of one upload, or what is left of the tenant's quota if that is
// less. It is an error when nothing is.
func (f *Farm) storageRoom(ctx context.Context, tenant render.Tenant) (int64, error) {
	limit := f.LimitsOf(tenant).StorageBytes
	if limit == 0 {
		return f.cfg.MaxAssetBytes, nil
	}
	u, err := f.changeStorage(ctx, tenant, limit, render.Hold{Amount: 1, At: f.now()}, false)
	if err != nil {
		return 0, err
	}
	return min(f.cfg.MaxAssetBytes, u.Room(limit)), nil
}

// overRoom is the refusal of an upload of unknown length that went beyond most.
func (f *Farm) overRoom(ctx context.Context, tenant render.Tenant, most int64) error {
	limit := f.LimitsOf(tenant).StorageBytes
	if most >= limit {
		return overStorage("body", limit)
	}
	if _, err := f.changeStorage(ctx, tenant, limit, render.Hold{Amount: most + 1, At: f.now()}, false); err != nil {
		return err
	}
	return f.outOfStorage(limit, render.Usage{Used: limit - most}, nil, most+1) // as it was when the upload began
}

// overStorage is the refusal of what never fits.
func overStorage(field string, limit int64) *render.Error {
	e := tooLarge(field, limit, "this tenant may not store more in all")
	e.Details.Extra["limit"] = limitStorage
	return e
}

// holdStorage sets the bytes of an upload aside before they are taken, until
// settleStorage or releaseStorage. field is what names them in an error.
func (f *Farm) holdStorage(ctx context.Context, tenant render.Tenant, field string, id render.AssetID, size int64) (render.Hold, error) {
	limit := f.LimitsOf(tenant).StorageBytes
	if limit == 0 {
		return render.Hold{}, nil
	}
	if size > limit {
		return render.Hold{}, overStorage(field, limit)
	}
	h := render.Hold{ID: string(id), Amount: size, At: f.now()}
	if _, err := f.changeStorage(ctx, tenant, limit, h, true); err != nil {
		return render.Hold{}, err
	}
	return h, nil
}

// changeStorage looks whether a hold fits, and writes it if it is to be kept.
//
// The account never says too little, but too much: deleted and expired uploads
// are counted until something does not fit. Then, and when the account is empty,
// which it also is before there was a limit, the assets are counted anew. Since
// every upload changes the account before and after it writes its record, none
// comes between the count and its result.
func (f *Farm) changeStorage(ctx context.Context, tenant render.Tenant, limit int64, h render.Hold, keep bool) (render.Usage, error) {
	var refusal *render.Error
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	u, err := f.stores.Ledger.ChangeUsage(ctx, tenant, storageAccount, f.keepStorage(), func(u *render.Usage) (bool, error) {
		if u.Total() > 0 {
			before := len(u.Holds)
			if u.Hold(h, limit) == nil {
				return keep && len(u.Holds) > before, nil
			}
		}
		assets, err := f.assetsOf(ctx, tenant)
		if err != nil {
			return false, err
		}
		f.recountStorage(u, assets)
		if u.Hold(h, limit) != nil {
			refusal = f.outOfStorage(limit, *u, assets, h.Amount)
			return false, refusal
		}
		return keep, nil
	})
	if refusal != nil {
		return u, refusal
	}
	if err != nil {
		return u, unavailable("set storage aside", err)
	}
	if !keep {
		u.Release(h.ID, h.At)
	}
	return u, nil
}

// keepStorage is how long an unchanged account is kept: longer than any asset.
func (f *Farm) keepStorage() time.Duration { return 2 * max(f.cfg.AssetRetention, f.cfg.OrphanAge) }

// assetsOf lists all assets of a tenant.
func (f *Farm) assetsOf(ctx context.Context, tenant render.Tenant) ([]*render.Asset, error) {
	var all []*render.Asset
	for after := render.AssetID(""); ; {
		page, next, err := f.stores.Ledger.ListAssets(ctx, tenant, after, MaxAssetPage)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if next == "" {
			break
		}
		after = next
	}
	now := f.now()
	return slices.DeleteFunc(all, func(a *render.Asset) bool { return !now.Before(a.Expires) }), nil
}

// recountStorage makes an account say what there is: every asset once, and the
// holds of uploads that may still be under way.
func (f *Farm) recountStorage(u *render.Usage, assets []*render.Asset) {
	there := make(map[string]bool, len(assets))
	u.Used = 0
	for _, a := range assets {
		there[string(a.ID)] = true
		u.Used += a.Object.Size
	}
	dead := f.now().Add(-f.cfg.OrphanAge) // an upload lasts half as long at most
	u.Holds = slices.DeleteFunc(u.Holds, func(h render.Hold) bool { return there[h.ID] || h.At.Before(dead) })
}

// outOfStorage is the refusal of an upload. It tells when enough will have
// expired, if that is known.
func (f *Farm) outOfStorage(limit int64, u render.Usage, assets []*render.Asset, size int64) *render.Error {
	missing, wait := size-u.Room(limit), holdWait
	slices.SortFunc(assets, func(a, b *render.Asset) int { return a.Expires.Compare(b.Expires) })
	for _, a := range assets {
		if missing -= a.Object.Size; missing <= 0 {
			wait = max(a.Expires.Sub(f.now()), time.Second)
			break
		}
	}
	return quotaError(limitStorage, wait, map[string]any{"max_bytes": limit, "left_bytes": u.Room(limit)},
		"The upload needs %d bytes, and %d of the %d bytes that this tenant may store are left. Delete uploads that are not needed any more (DELETE /v1/assets/{id}), or wait until some expire.",
		size, u.Room(limit), limit)
}

// settleStorage counts an upload whose record is written. Where that fails its
// hold counts the same.
func (f *Farm) settleStorage(ctx context.Context, tenant render.Tenant, h render.Hold) {
	f.endStorageHold(ctx, tenant, h, func(u *render.Usage) bool { return u.Settle(h.ID, h.At, h.Amount) })
}

// releaseStorage gives back what an upload that came to nothing held. Where that
// fails it is counted until it is too old to be under way.
func (f *Farm) releaseStorage(ctx context.Context, tenant render.Tenant, h render.Hold) {
	f.endStorageHold(ctx, tenant, h, func(u *render.Usage) bool { return u.Release(h.ID, h.At) })
}

func (f *Farm) endStorageHold(ctx context.Context, tenant render.Tenant, h render.Hold, change func(*render.Usage) bool) {
	if h.ID == "" { // there is no limit
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	_, err := f.stores.Ledger.ChangeUsage(ctx, tenant, storageAccount, f.keepStorage(), func(u *render.Usage) (bool, error) { return change(u), nil })
	if err != nil {
		f.log.WarnContext(ctx, "end the hold of an upload's bytes", "asset", h.ID, "error", err)
	}
}
