package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

func renderKey(t render.Tenant, id render.ID) (string, error) {
	if _, ok := render.ParseID(string(id)); !ok {
		return "", malformed("render id")
	}
	return t.Key() + "." + string(id), nil
}

func decodeRender(e entry) (RenderEntry, error) {
	origin := &vidforgev1.RenderRecord{}
	if err := proto.Unmarshal(e.data, origin); err != nil {
		return RenderEntry{}, fmt.Errorf("decode render %s: %w", e.key, err)
	}
	rec, err := wire.ToRender(origin)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("decode render %s: %w", e.key, err)
	}
	return RenderEntry{Record: rec, Revision: e.revision, origin: origin}, nil
}

// renderTTL keeps a record that is under way and lets a finished one expire.
func (l *JetStream) renderTTL(r *render.Record) time.Duration {
	if !r.State.Terminal() {
		return 0
	}
	return l.until(r.Expires())
}

// CreateRender implements Ledger.
func (l *JetStream) CreateRender(ctx context.Context, rec *render.Record) (RenderEntry, error) {
	key, err := renderKey(rec.Tenant, rec.ID)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("create render: %w", err)
	}
	origin := wire.FromRender(rec)
	data, err := wire.Marshal(origin)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("create render %s: %w", rec.ID, err)
	}
	revision, err := shard(l.renders, string(rec.ID)).create(ctx, key, data, l.renderTTL(rec))
	if err != nil {
		return RenderEntry{}, fmt.Errorf("create render %s: %w", rec.ID, err)
	}
	return RenderEntry{Record: rec, Revision: revision, origin: origin}, nil
}

// GetRender implements Ledger.
func (l *JetStream) GetRender(ctx context.Context, tenant render.Tenant, id render.ID) (RenderEntry, error) {
	key, err := renderKey(tenant, id)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("get render: %w", err)
	}
	e, err := shard(l.renders, string(id)).get(ctx, key)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("get render %s: %w", id, err)
	}
	return decodeRender(e)
}

// UpdateRender implements Ledger.
func (l *JetStream) UpdateRender(ctx context.Context, prev RenderEntry, next *render.Record) (RenderEntry, error) {
	key, err := renderKey(next.Tenant, next.ID)
	switch {
	case err != nil:
		return RenderEntry{}, fmt.Errorf("update render: %w", err)
	case prev.Record == nil || prev.Record.ID != next.ID || prev.Record.Tenant != next.Tenant:
		return RenderEntry{}, fmt.Errorf("update render %s: not the successor of its predecessor", next.ID)
	case prev.Record.State.Terminal():
		return RenderEntry{}, fmt.Errorf("update render %s, which is %s: %w", next.ID, prev.Record.State, ErrConflict)
	case prev.Revision == 0: // no revision is 0: 0 would create
		return RenderEntry{}, fmt.Errorf("update render %s at no revision: %w", next.ID, ErrConflict)
	}
	origin := wire.FromRender(next)
	if prev.origin != nil {
		wire.CarryUnknown(origin, prev.origin)
	}
	data, err := wire.Marshal(origin)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("update render %s: %w", next.ID, err)
	}
	revision, err := shard(l.renders, string(next.ID)).put(ctx, key, data, prev.Revision, l.renderTTL(next))
	if err != nil {
		return RenderEntry{}, fmt.Errorf("update render %s: %w", next.ID, err)
	}
	return RenderEntry{Record: next, Revision: revision, origin: origin}, nil
}

// Renders implements Ledger.
func (l *JetStream) Renders(ctx context.Context) iter.Seq2[RenderEntry, error] {
	return func(yield func(RenderEntry, error) bool) {
		for _, b := range l.renders {
			for e, err := range b.scan(ctx) {
				var r RenderEntry
				if err == nil {
					r, err = decodeRender(e)
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// WatchRenders implements Ledger.
func (l *JetStream) WatchRenders(ctx context.Context, fn func(*render.Record)) error {
	var mu sync.Mutex // one fn at a time over all shards
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, b := range l.renders {
		stop, err := b.watch(ctx, &mu, func(e entry) {
			if r, err := decodeRender(e); err == nil && ctx.Err() == nil {
				fn(r.Record)
			}
		})
		if err != nil {
			return fmt.Errorf("watch renders: %w", err)
		}
		stops = append(stops, stop)
	}
	<-ctx.Done()
	return nil
}

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
