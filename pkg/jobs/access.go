package jobs

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
)

// Names of streams, behind the prefix, and of the consumer of timers. Other
// consumers are named as their class.
const (
	streamBacklog = "backlog"
	streamWork    = "work"
	streamDead    = "dead"
	streamTimers  = "timers"
	consumerDue   = "due"
)

func (c Config) streamName(name string) string { return c.Prefix + "vidforge_" + name }

// root begins every subject.
func (c Config) root() string { return c.Prefix + "vidforge." }

// Access is what a role needs of NATS for the queue that cfg describes.
//
// A worker publishes to the backlog, never to the class streams, which are the
// dispatcher's. Timers and cancellations are the gateways': timers live in a
// stream in which a writer could remove others' messages by a rollup.
func Access(cfg Config, role access.Role) access.NATS {
	api := func(call, name string) string { return access.DefaultAPI + "." + call + "." + cfg.streamName(name) }
	root := cfg.root()
	var n access.NATS
	if role == access.Worker {
		n.Subscribe = []string{root + "cancel.*"}
		n.Publish = []string{
			root + "backlog.>", root + "dead.>",
			api("STREAM.INFO", streamBacklog), api("STREAM.MSG.GET", streamBacklog),
			api("STREAM.INFO", streamDead), api("STREAM.MSG.GET", streamDead),
			api("STREAM.INFO", streamWork),
		}
		for _, class := range render.Classes() {
			n.Publish = append(n.Publish, root+"wake."+string(class),
				api("CONSUMER.INFO", streamWork)+"."+string(class),
				"$JS.ACK."+cfg.streamName(streamWork)+"."+string(class)+".>")
			n.Pull = append(n.Pull, api("CONSUMER.MSG.NEXT", streamWork)+"."+string(class))
		}
		return n.Add(access.NATS{Publish: n.Pull})
	}
	n.Subscribe = []string{root + "cancel.*", root + "wake.*"}
	n.Publish = []string{root + ">"}
	for _, name := range []string{streamBacklog, streamWork, streamDead, streamTimers} {
		for _, call := range []string{"STREAM.CREATE", "STREAM.UPDATE", "STREAM.INFO", "STREAM.MSG.GET"} {
			n.Publish = append(n.Publish, api(call, name))
		}
		for _, call := range []string{"CONSUMER.CREATE", "CONSUMER.INFO", "CONSUMER.RESET"} {
			n.Publish = append(n.Publish, api(call, name)+".>")
		}
		n.Pull = append(n.Pull, api("CONSUMER.MSG.NEXT", name)+".*")
		n.Publish = append(n.Publish, "$JS.ACK."+cfg.streamName(name)+".>")
	}
	n.Publish = append(n.Publish, api("STREAM.MSG.DELETE", streamBacklog))
	return n.Add(access.NATS{Publish: n.Pull})
}

// bind looks for what a worker uses.
func (q *JetStream) bind(ctx context.Context) error {
	for name, at := range map[string]*jetstream.Stream{streamBacklog: &q.backlog, streamWork: &q.work, streamDead: &q.dead} {
		err := q.find(ctx, func(ctx context.Context) (err error) {
			*at, err = q.js.Stream(ctx, q.cfg.streamName(name))
			return err //nolint:wrapcheck // find wraps
		})
		if err != nil {
			return fmt.Errorf("stream %s: %w", name, err)
		}
	}
	for _, class := range render.Classes() {
		var c consumers
		err := q.find(ctx, func(ctx context.Context) (err error) {
			c.work, err = q.work.Consumer(ctx, string(class))
			return err //nolint:wrapcheck // find wraps
		})
		if err != nil {
			return fmt.Errorf("consumer %s: %w", class, err)
		}
		q.classes[class] = c
	}
	return nil
}

func (q *JetStream) find(ctx context.Context, look func(context.Context) error) error {
	err := jsretry.Do(ctx, q.cfg.Timeout, look)
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) {
		return fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err != nil {
		return fmt.Errorf("look for it: %w", err)
	}
	return nil
}

// gatewayOnly guards what a worker has no right to: asked all the same, the
// server would say nothing, and the call would wait.
func (q *JetStream) gatewayOnly() error {
	if q.cfg.Role == access.Worker {
		return ErrForbidden
	}
	return nil
}
