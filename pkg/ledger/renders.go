package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// A render's record is stored in three parts, because those who may write them
// differ; render.Join puts them together and says what each may claim:
//
//   - its state, which workers move on, under compare-and-set;
//   - its submission, which a gateway writes once. It comes second: a render
//     whose submission is missing does not exist, so a submit that dies in
//     between leaves nothing but a key that expires;
//   - its approval, which gateways write while it is paused, under
//     compare-and-set. What ends the pause is written there first and decides;
//     if the state does not follow, Join makes up for it.
//
// Submissions and ended approvals never change and are read once.

// longestRender is how long a record may be changed: renders are forgotten that
// long after they were accepted, or after their end.
const longestRender = 2 * render.RenderRetention

const (
	submissionPart = ".submission"
	approvalPart   = ".approval"
)

func renderKey(t render.Tenant, id render.ID) (string, error) {
	if _, ok := render.ParseID(string(id)); !ok {
		return "", malformed("render id")
	}
	return t.Key() + "." + string(id), nil
}

// part is a stored part of a record.
type part struct {
	origin   *vidforgev1.RenderRecord
	record   *render.Record // with the part's share of the fields
	revision uint64
}

func decodePart(e entry) (part, error) {
	p := part{origin: &vidforgev1.RenderRecord{}, revision: e.revision}
	if err := proto.Unmarshal(e.data, p.origin); err != nil {
		return part{}, fmt.Errorf("decode %s: %w", e.key, err)
	}
	var err error
	if p.record, err = wire.ToRender(p.origin); err != nil {
		return part{}, fmt.Errorf("decode %s: %w", e.key, err)
	}
	return p, nil
}

// partCache remembers parts that never change. It holds the latest few
// thousand: when one half is full it becomes the older one.
type partCache struct {
	mu         sync.Mutex
	young, old map[string]part
}

// cachedParts bounds each half; a part has some 2 KiB.
const cachedParts = 4096

func (c *partCache) get(key string) (part, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.young[key]
	if !ok {
		if p, ok = c.old[key]; ok {
			c.keep(key, p)
		}
	}
	return p, ok
}

func (c *partCache) put(key string, p part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keep(key, p)
}

func (c *partCache) keep(key string, p part) {
	if len(c.young) >= cachedParts || c.young == nil {
		c.old, c.young = c.young, make(map[string]part)
	}
	c.young[key] = p
}

// fixed reads a part that does not change once final says so of it.
func (l *JetStream) fixed(ctx context.Context, b *bucket, key string, final func(part) bool) (part, error) {
	if p, ok := l.parts.get(key); ok {
		return p, nil
	}
	e, err := b.get(ctx, key)
	if err != nil {
		return part{}, err
	}
	p, err := decodePart(e)
	if err == nil && final(p) {
		l.parts.put(key, p)
	}
	return p, err
}

func always(part) bool { return true }

func pauseEnded(p part) bool { return p.record.State != "" }

// join reads what belongs to a state and makes the record. The state was read
// before: an approval is written before the state that follows from it.
func (l *JetStream) join(ctx context.Context, key string, state part) (RenderEntry, error) {
	b := shard(l.intents, string(idOf(key)))
	submission, err := l.fixed(ctx, b, key+submissionPart, always)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("read the submission: %w", err)
	}
	if submission.record.Tenant.Key()+"."+string(submission.record.ID) != key {
		return RenderEntry{}, fmt.Errorf("the submission of %s is another's", key)
	}
	entry := RenderEntry{Revision: state.revision, origin: state.origin}
	var approval *render.Record
	// Before the preview is made nobody can have decided.
	if submission.record.Spec.NeedsApproval() && state.record.Step != render.StepPreview {
		a, err := l.fixed(ctx, b, key+approvalPart, pauseEnded)
		switch {
		case err == nil:
			approval, entry.approval = a.record, a
		case !errors.Is(err, ErrNotFound):
			return RenderEntry{}, fmt.Errorf("read the approval: %w", err)
		}
	}
	entry.Record = render.Join(state.record, submission.record, approval)
	return entry, nil
}

// renderTTL lets a finished record expire, and any other when nobody could want
// it any more.
func (l *JetStream) renderTTL(r *render.Record) time.Duration {
	if r.State.Terminal() {
		return l.until(r.Expires())
	}
	return l.until(r.Created.Add(longestRender))
}

// CreateRender implements Ledger.
func (l *JetStream) CreateRender(ctx context.Context, rec *render.Record) (RenderEntry, error) {
	key, err := renderKey(rec.Tenant, rec.ID)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("create render: %w", err)
	}
	whole := wire.FromRender(rec)
	entry := RenderEntry{Record: rec, origin: wire.StateOf(whole)}
	if entry.Revision, err = l.createState(ctx, key, rec, entry.origin); err != nil {
		return RenderEntry{}, fmt.Errorf("create render %s: %w", rec.ID, err)
	}
	failpoint.Hit(failpoint.SubmitStated)
	data, err := wire.Marshal(wire.SubmissionOf(whole))
	if err != nil {
		return RenderEntry{}, fmt.Errorf("create render %s: %w", rec.ID, err)
	}
	if _, err = shard(l.intents, string(rec.ID)).create(ctx, key+submissionPart, data, l.until(rec.Created.Add(longestRender))); err != nil {
		return RenderEntry{}, fmt.Errorf("create render %s: submission: %w", rec.ID, err)
	}
	return entry, nil
}

// createState writes a first state, also over one that has no submission: its
// maker died, or was not one who may make renders.
func (l *JetStream) createState(ctx context.Context, key string, rec *render.Record, origin *vidforgev1.RenderRecord) (uint64, error) {
	data, err := wire.Marshal(origin)
	if err != nil {
		return 0, err
	}
	states := shard(l.renders, string(rec.ID))
	var expected uint64
	for {
		revision, err := states.put(ctx, key, data, expected, l.renderTTL(rec))
		if !errors.Is(err, ErrConflict) {
			return revision, err
		}
		e, err := states.look(ctx, key)
		if err != nil {
			return 0, err
		}
		if _, err := shard(l.intents, string(rec.ID)).get(ctx, key+submissionPart); err == nil {
			return 0, ErrExists
		} else if !errors.Is(err, ErrNotFound) {
			return 0, err
		}
		expected = e.revision
	}
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
	entry, err := l.entryOf(ctx, e)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("get render %s: %w", id, err)
	}
	return entry, nil
}

func (l *JetStream) entryOf(ctx context.Context, e entry) (RenderEntry, error) {
	state, err := decodePart(e)
	if err != nil {
		return RenderEntry{}, err
	}
	return l.join(ctx, e.key, state)
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
	whole := wire.FromRender(next)
	entry := RenderEntry{Record: next, Revision: prev.Revision, origin: prev.origin, approval: prev.approval}
	if prev.Record.Step == render.StepApproval {
		written, err := l.writeApproval(ctx, key, &entry, whole)
		if err != nil {
			return RenderEntry{}, fmt.Errorf("update render %s: approval: %w", next.ID, err)
		}
		if written && samePart(wire.StateOf(whole), wire.StateOf(wire.FromRender(prev.Record))) {
			return entry, nil
		}
		if next.Step != render.StepApproval {
			failpoint.Hit(failpoint.PauseEnded)
		}
	}
	if entry.origin = wire.StateOf(whole); prev.origin != nil {
		wire.CarryUnknown(entry.origin, prev.origin)
	}
	data, err := wire.Marshal(entry.origin)
	if err != nil {
		return RenderEntry{}, fmt.Errorf("update render %s: %w", next.ID, err)
	}
	if entry.Revision, err = shard(l.renders, string(next.ID)).put(ctx, key, data, prev.Revision, l.renderTTL(next)); err != nil {
		return RenderEntry{}, fmt.Errorf("update render %s: %w", next.ID, err)
	}
	return entry, nil
}

// samePart compares two parts but for the time of their change.
func samePart(a, b *vidforgev1.RenderRecord) bool {
	a.UpdateTime, b.UpdateTime = nil, nil
	return proto.Equal(a, b)
}

// writeApproval writes what was said or decided in a pause, unless nothing was.
func (l *JetStream) writeApproval(ctx context.Context, key string, entry *RenderEntry, whole *vidforgev1.RenderRecord) (written bool, err error) {
	before := entry.approval
	next := part{origin: wire.ApprovalOf(whole, entry.Record.Step != render.StepApproval)}
	if before.origin == nil {
		before.origin = &vidforgev1.RenderRecord{Id: whole.GetId(), Tenant: whole.GetTenant()}
	}
	if samePart(wire.ApprovalOf(whole, entry.Record.Step != render.StepApproval), wire.ApprovalOf(before.origin, true)) {
		return false, nil
	}
	wire.CarryUnknown(next.origin, before.origin)
	data, err := wire.Marshal(next.origin)
	if err != nil {
		return false, err
	}
	next.revision, err = shard(l.intents, string(entry.Record.ID)).put(ctx, key+approvalPart, data, before.revision, l.until(entry.Record.Created.Add(longestRender)))
	entry.approval = next
	return err == nil, err
}

// Renders implements Ledger.
func (l *JetStream) Renders(ctx context.Context) iter.Seq2[RenderEntry, error] {
	return func(yield func(RenderEntry, error) bool) {
		for _, b := range l.renders {
			for e, err := range b.scan(ctx) {
				var r RenderEntry
				if err == nil {
					r, err = l.entryOf(ctx, e)
				}
				if errors.Is(err, ErrNotFound) {
					continue // without a submission: no render
				}
				if !yield(r, err) {
					return
				}
			}
		}
	}
}

// idOf is the render's id in a key of one of its parts.
func idOf(key string) render.ID {
	_, rest, _ := strings.Cut(key, ".")
	id, _, _ := strings.Cut(rest, ".")
	return render.ID(id)
}

// signOf reads what a message of a state or an intent hints at.
func signOf(e entry) (Sign, bool) {
	id, ok := render.ParseID(string(idOf(e.key)))
	if !ok {
		return Sign{}, false
	}
	p, err := decodePart(e)
	if err != nil || p.record.ID != id { // an intent, or nothing that can be read
		return Sign{ID: id}, true
	}
	return Sign{ID: id, Tenant: p.record.Tenant, Ended: p.record.State.Terminal()}, true
}

// WatchRenders implements Ledger.
func (l *JetStream) WatchRenders(ctx context.Context, fn func(Sign)) error {
	var mu sync.Mutex // one fn at a time over all buckets
	var stops []func()
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	for _, buckets := range [][]*bucket{l.renders, l.intents} {
		for _, b := range buckets {
			stop, err := b.watch(ctx, &mu, func(e entry) {
				if sign, ok := signOf(e); ok && ctx.Err() == nil {
					fn(sign)
				}
			})
			if err != nil {
				return fmt.Errorf("watch renders: %w", err)
			}
			stops = append(stops, stop)
		}
	}
	<-ctx.Done()
	return nil
}
