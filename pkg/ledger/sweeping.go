package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

// Epoch is the ledger's own life. One that was made anew has another ID; one
// that was restored from a copy has a lower Turn than the world remembers.
type Epoch struct {
	// ID is random, [a-z2-7]{26}.
	ID string
	// Turn counts the calls of TurnEpoch from 0.
	Turn uint64
	// Turned is the server's time of the last one.
	Turned time.Time

	revision uint64
}

const epochKey = "epoch"

var (
	epochPattern     = regexp.MustCompile(`^([a-z2-7]{26}) ([0-9]{1,19})$`)
	tenantKeyPattern = regexp.MustCompile(`^[a-z2-7]{26}$`)
)

func decodeEpoch(e entry) (Epoch, error) {
	m := epochPattern.FindSubmatch(e.data)
	if m == nil {
		return Epoch{}, errors.New("decode epoch: malformed")
	}
	turn, err := strconv.ParseUint(string(m[2]), 10, 64)
	if err != nil {
		return Epoch{}, fmt.Errorf("decode epoch: %w", err)
	}
	return Epoch{ID: string(m[1]), Turn: turn, Turned: e.stored, revision: e.revision}, nil
}

// Epoch implements Ledger.
func (l *JetStream) Epoch(ctx context.Context) (Epoch, error) {
	for {
		e, err := l.secrets.get(ctx, epochKey)
		if err == nil {
			return decodeEpoch(e)
		}
		if !errors.Is(err, ErrNotFound) {
			return Epoch{}, fmt.Errorf("read the epoch: %w", err)
		}
		fresh := strings.ToLower(rand.Text()[:26]) + " 0"
		if _, err := l.secrets.create(ctx, epochKey, []byte(fresh), 0); err != nil && !errors.Is(err, ErrExists) {
			return Epoch{}, fmt.Errorf("make the epoch: %w", err)
		}
	}
}

// TurnEpoch implements Ledger.
func (l *JetStream) TurnEpoch(ctx context.Context, prev Epoch, turn uint64) (Epoch, error) {
	if prev.revision == 0 || turn <= prev.Turn {
		return Epoch{}, fmt.Errorf("turn the epoch to %d: %w", turn, ErrConflict)
	}
	if _, err := l.secrets.put(ctx, epochKey, []byte(prev.ID+" "+strconv.FormatUint(turn, 10)), prev.revision, 0); err != nil {
		return Epoch{}, fmt.Errorf("turn the epoch: %w", err)
	}
	return l.Epoch(ctx)
}

// RenderOf implements Ledger.
func (l *JetStream) RenderOf(ctx context.Context, tenantKey string, id render.ID) (RenderEntry, error) {
	if _, ok := render.ParseID(string(id)); !ok || !tenantKeyPattern.MatchString(tenantKey) {
		return RenderEntry{}, fmt.Errorf("get render: %w", malformed("tenant key or render id"))
	}
	e, err := shard(l.renders, string(id)).get(ctx, tenantKey+"."+string(id))
	if err != nil {
		return RenderEntry{}, fmt.Errorf("get render %s: %w", id, err)
	}
	entry, err := l.entryOf(ctx, e)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("get render %s: %w", id, err)
	}
	return entry, nil
}

// AssetOf implements Ledger.
func (l *JetStream) AssetOf(ctx context.Context, tenantKey string, id render.AssetID) (AssetEntry, error) {
	if _, ok := render.ParseAssetID(string(id)); !ok || !tenantKeyPattern.MatchString(tenantKey) {
		return AssetEntry{}, fmt.Errorf("get asset: %w", malformed("tenant key or asset id"))
	}
	e, err := l.assets.get(ctx, tenantKey+"."+string(id))
	if err != nil {
		return AssetEntry{}, fmt.Errorf("get asset %s: %w", id, err)
	}
	return decodeAsset(e)
}

// SlotsOf implements Ledger.
func (l *JetStream) SlotsOf(ctx context.Context, tenantKey string) ([]SlotHolder, error) {
	if !tenantKeyPattern.MatchString(tenantKey) {
		return nil, fmt.Errorf("read slots: %w", malformed("tenant key"))
	}
	taken, err := l.slotsOf(ctx, tenantKey)
	if err != nil {
		return nil, fmt.Errorf("read slots: %w", err)
	}
	holders := make([]SlotHolder, 0, len(taken))
	for _, s := range taken {
		holders = append(holders, s.SlotHolder)
	}
	return holders, nil
}
