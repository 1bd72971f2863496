package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

func assetKey(t render.Tenant, id render.AssetID) (string, error) {
	if _, ok := render.ParseAssetID(string(id)); !ok {
		return "", malformed("asset id")
	}
	return t.Key() + "." + string(id), nil
}

func decodeAsset(e entry) (AssetEntry, error) {
	origin := &vidforgev1.Asset{}
	if err := proto.Unmarshal(e.data, origin); err != nil {
		return AssetEntry{}, fmt.Errorf("decode asset %s: %w", e.key, err)
	}
	a, err := wire.ToAsset(origin)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("decode asset %s: %w", e.key, err)
	}
	return AssetEntry{Asset: a, Revision: e.revision, origin: origin}, nil
}

// CreateAsset implements Ledger.
func (l *JetStream) CreateAsset(ctx context.Context, a *render.Asset) (AssetEntry, error) {
	key, err := assetKey(a.Tenant, a.ID)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("create asset: %w", err)
	}
	origin := wire.FromAsset(a)
	data, err := wire.Marshal(origin)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("create asset %s: %w", a.ID, err)
	}
	revision, err := l.assets.create(ctx, key, data, l.until(a.Expires))
	if err != nil {
		return AssetEntry{}, fmt.Errorf("create asset %s: %w", a.ID, err)
	}
	return AssetEntry{Asset: a, Revision: revision, origin: origin}, nil
}

// GetAsset implements Ledger.
func (l *JetStream) GetAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) (AssetEntry, error) {
	key, err := assetKey(tenant, id)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("get asset: %w", err)
	}
	e, err := l.assets.get(ctx, key)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("get asset %s: %w", id, err)
	}
	return decodeAsset(e)
}

// UpdateAsset implements Ledger.
func (l *JetStream) UpdateAsset(ctx context.Context, prev AssetEntry, next *render.Asset) (AssetEntry, error) {
	key, err := assetKey(next.Tenant, next.ID)
	switch {
	case err != nil:
		return AssetEntry{}, fmt.Errorf("update asset: %w", err)
	case prev.Asset == nil || prev.Asset.ID != next.ID || prev.Asset.Tenant != next.Tenant:
		return AssetEntry{}, fmt.Errorf("update asset %s: not the successor of its predecessor", next.ID)
	case prev.Revision == 0:
		return AssetEntry{}, fmt.Errorf("update asset %s at no revision: %w", next.ID, ErrConflict)
	}
	origin := wire.FromAsset(next)
	if prev.origin != nil {
		wire.CarryUnknown(origin, prev.origin)
	}
	data, err := wire.Marshal(origin)
	if err != nil {
		return AssetEntry{}, fmt.Errorf("update asset %s: %w", next.ID, err)
	}
	revision, err := l.assets.put(ctx, key, data, prev.Revision, l.until(next.Expires))
	if err != nil {
		return AssetEntry{}, fmt.Errorf("update asset %s: %w", next.ID, err)
	}
	return AssetEntry{Asset: next, Revision: revision, origin: origin}, nil
}

// DeleteAsset implements Ledger.
func (l *JetStream) DeleteAsset(ctx context.Context, prev AssetEntry) error {
	if prev.Asset == nil || prev.Revision == 0 {
		return fmt.Errorf("delete asset at no revision: %w", ErrConflict)
	}
	key, err := assetKey(prev.Asset.Tenant, prev.Asset.ID)
	if err != nil {
		return fmt.Errorf("delete asset: %w", err)
	}
	if err := l.assets.remove(ctx, key, prev.Revision); err != nil {
		return fmt.Errorf("delete asset %s: %w", prev.Asset.ID, err)
	}
	return nil
}

// ListAssets implements Ledger.
func (l *JetStream) ListAssets(ctx context.Context, tenant render.Tenant, after render.AssetID, limit int) ([]*render.Asset, render.AssetID, error) {
	limit = max(limit, 1)
	start := tenant.Key() + "."
	if after != "" {
		key, err := assetKey(tenant, after)
		if err != nil {
			return nil, "", fmt.Errorf("list assets: %w", err)
		}
		start = key
	}
	keys, err := l.assets.keys(ctx, tenant.Key()+".")
	if err != nil {
		return nil, "", fmt.Errorf("list assets: %w", err)
	}
	slices.Sort(keys)
	at, found := slices.BinarySearch(keys, start)
	if found {
		at++
	}
	var page []*render.Asset
	for i, key := range keys[at:] {
		if len(page) == limit {
			_, last, _ := strings.Cut(keys[at+i-1], ".")
			return page, render.AssetID(last), nil
		}
		e, err := l.assets.get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			continue // deleted or expired meanwhile
		}
		var a AssetEntry
		if err == nil {
			a, err = decodeAsset(e)
		}
		if err != nil {
			return nil, "", fmt.Errorf("list assets: %w", err)
		}
		page = append(page, a.Asset)
	}
	return page, "", nil
}

// Assets implements Ledger.
func (l *JetStream) Assets(ctx context.Context) iter.Seq2[AssetEntry, error] {
	return func(yield func(AssetEntry, error) bool) {
		for e, err := range l.assets.scan(ctx) {
			var a AssetEntry
			if err == nil {
				a, err = decodeAsset(e)
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
