package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

func bindingKey(t render.Tenant, keyHash string) (string, error) {
	if !hashPattern.MatchString(keyHash) {
		return "", malformed("key hash")
	}
	return t.Key() + "." + keyHash, nil
}

// Bind implements Ledger.
func (l *JetStream) Bind(ctx context.Context, tenant render.Tenant, keyHash string, b Binding, window time.Duration) (Binding, bool, error) {
	key, err := bindingKey(tenant, keyHash)
	if err != nil {
		return Binding{}, false, fmt.Errorf("bind: %w", err)
	}
	if _, ok := render.ParseID(string(b.Task)); !ok {
		return Binding{}, false, fmt.Errorf("bind: %w", malformed("render id"))
	}
	data, err := wire.Marshal(wire.FromBinding(b))
	if err != nil {
		return Binding{}, false, fmt.Errorf("bind: %w", err)
	}
	for {
		b.Revision, err = l.idem.create(ctx, key, data, window)
		if err == nil {
			return b, true, nil
		}
		if !errors.Is(err, ErrExists) {
			return Binding{}, false, fmt.Errorf("bind: %w", err)
		}
		e, err := l.idem.get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			continue // it expired in between
		}
		if err != nil {
			return Binding{}, false, fmt.Errorf("read the present binding: %w", err)
		}
		got, err := decodeBinding(e)
		return got, false, err
	}
}

func decodeBinding(e entry) (Binding, error) {
	p := &vidforgev1.Binding{}
	if err := proto.Unmarshal(e.data, p); err != nil {
		return Binding{}, fmt.Errorf("decode binding: %w", err)
	}
	b, err := wire.ToBinding(p)
	if err != nil {
		return Binding{}, fmt.Errorf("decode binding: %w", err)
	}
	b.Revision = e.revision
	return b, nil
}

// Unbind implements Ledger.
func (l *JetStream) Unbind(ctx context.Context, tenant render.Tenant, keyHash string, b Binding) error {
	key, err := bindingKey(tenant, keyHash)
	if err != nil {
		return fmt.Errorf("unbind: %w", err)
	}
	if b.Revision == 0 {
		return fmt.Errorf("unbind at no revision: %w", ErrConflict)
	}
	if err := l.idem.remove(ctx, key, b.Revision); err != nil {
		return fmt.Errorf("unbind: %w", err)
	}
	return nil
}

// slot is a taken slot as read.
type slot struct {
	SlotHolder
	key      string
	revision uint64
}

func slotKey(t render.Tenant, n int) string { return t.Key() + "." + strconv.Itoa(n) }

// A slot's value is the Work message of a task without a stage.
func decodeSlot(e entry) (slot, error) {
	p := &vidforgev1.Work{}
	if err := proto.Unmarshal(e.data, p); err != nil {
		return slot{}, fmt.Errorf("decode slot %s: %w", e.key, err)
	}
	h := SlotHolder{Tenant: render.Tenant(p.GetTenant()), Slot: int(p.GetIndex()), Task: render.ID(p.GetTaskId()), Taken: e.stored}
	return slot{SlotHolder: h, key: e.key, revision: e.revision}, nil
}

// slotsOf reads the taken slots of a tenant, named by its key, from the leader.
func (l *JetStream) slotsOf(ctx context.Context, tenantKey string) ([]slot, error) {
	keys, err := l.slots.keys(ctx, tenantKey+".")
	if err != nil {
		return nil, err
	}
	var taken []slot
	for _, key := range keys {
		e, err := l.slots.get(ctx, key)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		s, err := decodeSlot(e)
		if err != nil {
			return nil, err
		}
		taken = append(taken, s)
	}
	return taken, nil
}

// TakeSlot implements Ledger.
func (l *JetStream) TakeSlot(ctx context.Context, tenant render.Tenant, task render.ID, limit int) (int, error) {
	if _, ok := render.ParseID(string(task)); !ok {
		return 0, fmt.Errorf("take a slot: %w", malformed("render id"))
	}
	for {
		taken, err := l.slotsOf(ctx, tenant.Key())
		if err != nil {
			return 0, fmt.Errorf("take a slot: %w", err)
		}
		n, mine, err := l.chooseSlot(ctx, taken, task, limit)
		if err != nil || mine {
			return n, err
		}
		data, err := wire.Marshal(&vidforgev1.Work{Tenant: string(tenant), TaskId: string(task), Index: int32(n)}) //nolint:gosec // n < limit
		if err != nil {
			return 0, fmt.Errorf("take slot %d: %w", n, err)
		}
		// Round again in any case: to try the next slot, or to see whether
		// the same task was given one by somebody else at the same time.
		if _, err := l.slots.create(ctx, slotKey(tenant, n), data, keep); err != nil && !errors.Is(err, ErrExists) {
			return 0, fmt.Errorf("take slot %d: %w", n, err)
		}
	}
}

// chooseSlot returns the slot that the task holds (mine), else the lowest free
// one. When two callers took a slot for the same task at once, both settle on
// the one that was taken first and the other is freed.
func (l *JetStream) chooseSlot(ctx context.Context, taken []slot, task render.ID, limit int) (n int, mine bool, err error) {
	free := make([]bool, max(limit, 0))
	for i := range free {
		free[i] = true
	}
	var first *slot
	for _, s := range taken {
		if s.Slot >= 0 && s.Slot < len(free) {
			free[s.Slot] = false
		}
		if s.Task != task {
			continue
		}
		spare := &s
		if first == nil || s.revision < first.revision {
			spare, first = first, &s
		}
		if spare == nil {
			continue
		}
		if err := l.slots.remove(ctx, spare.key, spare.revision); err != nil && !errors.Is(err, ErrConflict) {
			return 0, false, fmt.Errorf("free a second slot: %w", err)
		}
	}
	if first != nil {
		return first.Slot, true, nil
	}
	for i, ok := range free {
		if ok {
			return i, false, nil
		}
	}
	return 0, false, fmt.Errorf("all %d slots are taken: %w", limit, ErrNoSlot)
}

// FreeSlot implements Ledger.
func (l *JetStream) FreeSlot(ctx context.Context, tenant render.Tenant, n int, task render.ID) error {
	if _, ok := render.ParseID(string(task)); !ok || n < 0 {
		return fmt.Errorf("free slot: %w", malformed("slot or render id"))
	}
	e, err := l.slots.get(ctx, slotKey(tenant, n))
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("free slot %d: %w", n, err)
	}
	s, err := decodeSlot(e)
	if err != nil {
		return err
	}
	if s.Task != task {
		return nil
	}
	// A conflict means that somebody else freed it first.
	if err := l.slots.remove(ctx, s.key, s.revision); err != nil && !errors.Is(err, ErrConflict) {
		return fmt.Errorf("free slot %d: %w", n, err)
	}
	return nil
}

// Slots implements Ledger.
func (l *JetStream) Slots(ctx context.Context) iter.Seq2[SlotHolder, error] {
	return func(yield func(SlotHolder, error) bool) {
		for e, err := range l.slots.scan(ctx) {
			var s slot
			if err == nil {
				s, err = decodeSlot(e)
			}
			if !yield(s.SlotHolder, err) {
				return
			}
		}
	}
}

// Secret implements Ledger.
func (l *JetStream) Secret(ctx context.Context, name string) ([]byte, error) {
	if !namePattern.MatchString(name) {
		return nil, fmt.Errorf("secret: %w", malformed("name"))
	}
	fresh := make([]byte, 32)
	if _, err := rand.Read(fresh); err != nil {
		return nil, fmt.Errorf("make secret %s: %w", name, err)
	}
	_, err := l.secrets.create(ctx, name, fresh, 0)
	if err == nil {
		return fresh, nil
	}
	if !errors.Is(err, ErrExists) {
		return nil, fmt.Errorf("make secret %s: %w", name, err)
	}
	e, err := l.secrets.get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read secret %s: %w", name, err)
	}
	return e.data, nil
}
