package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// Schedule implements Queue. The server fires with a resolution of 1 s; the
// time is rounded up, so that a timer is never early.
func (q *JetStream) Schedule(ctx context.Context, t Timer) error {
	if err := q.gatewayOnly(); err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	if _, ok := render.ParseID(string(t.Task)); !ok || !namePattern.MatchString(t.Name) {
		return errors.New("schedule: malformed render id or name")
	}
	data, err := wire.Marshal(wire.FromTimer(t))
	if err != nil {
		return fmt.Errorf("schedule: %w", err)
	}
	name := t.Tenant.Key() + "." + string(t.Task) + "." + t.Name
	msg := &nats.Msg{Subject: q.root + "timer.set." + name, Data: data}
	err = jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		_, err := q.js.PublishMsg(ctx, msg,
			jetstream.WithScheduleAt(t.At.Add(time.Second-time.Nanosecond).Truncate(time.Second)),
			jetstream.WithScheduleTarget(q.root+"timer.due."+name))
		if err != nil {
			return fmt.Errorf("publish: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("schedule %s: %w", t.Name, err)
	}
	return nil
}

// FetchTimer implements Queue.
func (q *JetStream) FetchTimer(ctx context.Context, wait time.Duration) (Timer, func(context.Context) error, error) {
	if err := q.gatewayOnly(); err != nil {
		return Timer{}, nil, fmt.Errorf("fetch timer: %w", err)
	}
	msg, err := q.fetch(ctx, q.due, wait)
	if err != nil {
		return Timer{}, nil, fmt.Errorf("fetch timer: %w", err)
	}
	p := &vidforgev1.Timer{}
	err = proto.Unmarshal(msg.Data(), p)
	var t Timer
	if err == nil {
		t, err = wire.ToTimer(p)
	}
	if err != nil {
		// Delivering it again would not mend it.
		return Timer{}, nil, errors.Join(fmt.Errorf("decode timer %s: %w", msg.Subject(), err), msg.TermWithReason("cannot be decoded"))
	}
	d := &delivery{q: q, msg: msg}
	return t, d.Ack, nil
}
