package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// wake hints at a new message of a tenant (its key), or at a worker that took
// one. Hints may get lost: the dispatcher also looks by itself.
func (q *JetStream) wake(class render.Class, tenant string) {
	if err := q.nc.Publish(q.root+"wake."+string(class), []byte(tenant)); err != nil {
		q.log.Debug("hint at the dispatcher", "class", string(class), "error", err)
	}
}

// dispatcher moves messages of one class.
type dispatcher struct {
	q     *JetStream
	class render.Class
	// ring holds the tenants that may have something in the backlog, in the
	// order of their turns; known is the same as a set.
	ring  []string
	known map[string]bool
	// moved are the stream sequences of messages that this dispatcher moved
	// and the consumer had not delivered when it was asked last. The
	// consumer's own count lags behind the acknowledgement of a publish.
	moved      []uint64
	nextSurvey time.Time

	mu     sync.Mutex
	hinted map[string]bool // tenants that came up since the last look
	signal chan struct{}   // a hint came; holds at most one
}

// Dispatch implements Queue.
func (q *JetStream) Dispatch(ctx context.Context, class render.Class) error {
	if err := q.gatewayOnly(); err != nil {
		return fmt.Errorf("dispatch: %w", err)
	}
	if _, ok := q.classes[class]; !ok {
		return fmt.Errorf("dispatch: unknown class %q", class)
	}
	d := &dispatcher{q: q, class: class, known: map[string]bool{}, hinted: map[string]bool{}, signal: make(chan struct{}, 1)}
	sub, err := q.nc.Subscribe(q.root+"wake."+string(class), d.hint)
	if err != nil {
		return fmt.Errorf("dispatch %s: listen for hints: %w", class, err)
	}
	defer func() {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			q.log.Warn("stop listening for hints", "class", string(class), "error", err)
		}
	}()
	return d.run(ctx)
}

func (d *dispatcher) hint(msg *nats.Msg) {
	if tenant := string(msg.Data); tenant != "" {
		d.mu.Lock()
		d.hinted[tenant] = true
		d.mu.Unlock()
	}
	select {
	case d.signal <- struct{}{}:
	default:
	}
}

func (d *dispatcher) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := d.look(ctx)
		switch {
		case ctx.Err() != nil: // the end, not a failure
		case errors.Is(err, nats.ErrConnectionClosed):
			return fmt.Errorf("dispatch %s: %w", d.class, err)
		case err != nil:
			d.q.log.WarnContext(ctx, "dispatch", "class", string(d.class), "error", err)
			d.nextSurvey = time.Time{}
		}
		d.wait(ctx, err != nil)
	}
	return nil
}

// look moves what there is room for, of all tenants when a survey is due, else
// of those that are known.
func (d *dispatcher) look(ctx context.Context) error {
	if began := time.Now(); !began.Before(d.nextSurvey) {
		if err := d.survey(ctx); err != nil {
			return err
		}
		// A listing of 5000 takes some 5 ms: whatever the length, it gets a
		// twentieth of the time.
		jittered := d.q.cfg.Poll/2 + rand.N(d.q.cfg.Poll) //nolint:gosec // not a secret
		d.nextSurvey = time.Now().Add(max(jittered, 20*time.Since(began)))
	}
	return d.fill(ctx)
}

// wait returns at a hint, when a survey is due, after a pause for breath when
// something failed, or when ctx ends.
func (d *dispatcher) wait(ctx context.Context, failed bool) {
	signal, pause := d.signal, time.Until(d.nextSurvey)
	if failed {
		signal, pause = nil, time.Second
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-signal:
	case <-t.C:
	case <-ctx.Done():
	}
}

// survey finds the tenants of the backlog by listing all of it, in case that
// hints were lost.
func (d *dispatcher) survey(ctx context.Context) error {
	prefix := d.q.root + "backlog." + string(d.class) + "."
	ctx, cancel := context.WithTimeout(ctx, d.q.cfg.Timeout)
	defer cancel()
	info, err := d.q.backlog.Info(ctx, jetstream.WithSubjectFilter(prefix+">"))
	if err != nil {
		return fmt.Errorf("survey the backlog: %w", err)
	}
	tenants := map[string]bool{}
	for subject := range info.State.Subjects {
		tenant, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
		tenants[tenant] = true
	}
	d.admit(tenants)
	d.moved = nil // what somebody removed would never be delivered
	d.recount(ctx, len(info.State.Subjects))
	return nil
}

// recount has the server count the backlog's consumer anew when its number is
// not what was listed. Asking a consumer for its number while a message is
// deleted makes it lose one for good, and an autoscaler that reads it would
// leave a message alone with no worker. Nobody pulls from this consumer, so a
// reset changes nothing else; it counts only when it changes the position, so
// there are two.
func (d *dispatcher) recount(ctx context.Context, listed int) {
	c := d.q.classes[d.class].backlog
	info, err := c.Info(ctx)
	if err == nil && count(info.NumPending) != listed {
		for _, position := range []uint64{2, 1} {
			if _, err = d.q.js.ResetConsumerToSequence(ctx, info.Stream, info.Name, position); err != nil {
				break
			}
		}
	}
	if err != nil {
		d.q.log.DebugContext(ctx, "recount the backlog", "class", string(d.class), "error", err)
	}
}

// admit gives tenants without a place in the ring the last ones.
func (d *dispatcher) admit(tenants map[string]bool) {
	for _, t := range slices.Sorted(maps.Keys(tenants)) {
		if !d.known[t] {
			d.known[t] = true
			d.ring = append(d.ring, t)
		}
	}
}

// fill moves messages, a tenant's after another's, while the class stream has
// room for them.
func (d *dispatcher) fill(ctx context.Context) error {
	for {
		d.mu.Lock()
		d.admit(d.hinted)
		clear(d.hinted)
		d.mu.Unlock()
		if len(d.ring) == 0 {
			return nil
		}
		room, err := d.room(ctx)
		if err != nil || room <= 0 {
			return err
		}
		for moved := 0; moved < room && len(d.ring) > 0; {
			tenant := d.ring[0]
			ok, err := d.move(ctx, tenant)
			if err != nil {
				return err
			}
			d.ring = d.ring[1:]
			if ok {
				d.ring = append(d.ring, tenant)
				moved++
			} else {
				delete(d.known, tenant)
			}
		}
	}
}

// room is how many messages the class stream may take: as many as there are
// pulls that wait for one, and a few more to bridge the dispatcher's own way.
func (d *dispatcher) room(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, d.q.cfg.Timeout)
	defer cancel()
	info, err := d.q.classes[d.class].work.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("ask for room: %w", err)
	}
	d.moved = slices.DeleteFunc(d.moved, func(seq uint64) bool { return seq <= info.Delivered.Stream })
	return info.NumWaiting + d.q.cfg.Window - max(count(info.NumPending), len(d.moved)), nil
}

// move moves the oldest message of a tenant: publish, then delete. It is false
// when the tenant has none.
//
// Between the two, the message is in both streams. A second dispatcher, or the
// next one after a crash, that finds it still in the backlog is refused by the
// class stream while the work waits or runs, and by the message id when a fast
// worker has finished it since.
func (d *dispatcher) move(ctx context.Context, tenant string) (bool, error) {
	next, err := d.next(ctx, tenant)
	if err != nil || next == nil {
		return false, err
	}
	msg := &nats.Msg{Subject: d.q.workSubject(next.Subject), Data: next.Data, Header: nats.Header{}}
	telemetry.Keep(telemetry.NATSCarrier(msg.Header), telemetry.Kept(telemetry.NATSCarrier(next.Header)))
	id := strconv.FormatUint(next.Sequence, 36) + "-" + strconv.FormatInt(next.Time.UnixNano(), 36)
	seq, err := d.q.publish(ctx, d.q.work, msg, jetstream.WithMsgID(id))
	if err != nil {
		return false, fmt.Errorf("move %s: %w", next.Subject, err)
	}
	failpoint.Hit(failpoint.DispatchMoved)
	if seq > 0 {
		d.moved = append(d.moved, seq)
	}
	err = jsretry.Do(ctx, d.q.cfg.Timeout, func(ctx context.Context) error {
		err := d.q.backlog.DeleteMsg(ctx, next.Sequence)
		if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
			return nil // another dispatcher did; else it comes again, and is refused
		}
		if err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("move %s: %w", next.Subject, err)
	}
	return true, nil
}

// next reads the oldest message of a tenant from the backlog's leader, nil
// when there is none.
func (d *dispatcher) next(ctx context.Context, tenant string) (*jetstream.RawStreamMsg, error) {
	var found *jetstream.RawStreamMsg
	err := jsretry.Do(ctx, d.q.cfg.Timeout, func(ctx context.Context) error {
		msg, err := d.q.backlog.GetMsg(ctx, 1, jetstream.WithGetMsgSubject(d.q.root+"backlog."+string(d.class)+"."+tenant+".>"))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			return fmt.Errorf("look for the next of a tenant: %w", err)
		}
		found = msg
		return nil
	})
	return found, err
}
