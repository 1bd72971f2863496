package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

const (
	// deadFor is how long a dead letter waits for an operator.
	deadFor = 30 * 24 * time.Hour
	// timersFor bounds the life of timers that nobody fetches.
	timersFor = 30 * 24 * time.Hour
	// publishers is how many messages of one Enqueue are on their way at once.
	publishers = 32
	// maxWaiting is how many pulls may wait at a consumer. It cannot be changed
	// later and costs nothing: more than any farm has.
	maxWaiting = 1 << 16
)

var (
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9]*$`)
	namePattern   = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
)

// JetStream is the Queue in JetStream streams, whose names start with
// <prefix>vidforge_ and whose subjects start with <prefix>vidforge.:
//
//	backlog  backlog.<class>.<work>      work queue, one message a subject
//	work     work.<class>.<work>         work queue, one message a subject
//	timers   timer.set.<task>.<name>     schedules, one a subject
//	         timer.due.<task>.<name>     what they become when they are due
//	dead     dead.<work>                 dead letters, one a subject
//
// where <work> is render.Work.Key. Core NATS carries the hints cancel.<task>
// and wake.<class>.
type JetStream struct {
	cfg  Config
	log  *slog.Logger
	root string // of subjects, with the last dot
	nc   *nats.Conn
	js   jetstream.JetStream

	backlog, work, timers, dead jetstream.Stream
	classes                     map[render.Class]consumers
	due                         jetstream.Consumer
}

// consumers of a class. Nobody pulls from the backlog's: the dispatcher picks
// by tenant. It is there because it counts, for Depth and for autoscalers.
type consumers struct{ backlog, work jetstream.Consumer }

var _ Queue = (*JetStream)(nil)

// Open makes the queue's streams and consumers where they are missing and
// adjusts them to cfg where they are there. A worker only looks for those that
// it uses, and gets ErrNotReady while they are missing.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*JetStream, error) {
	cfg.AckWait = cmp.Or(cfg.AckWait, 20*time.Second)
	cfg.MaxWorkers = cmp.Or(cfg.MaxWorkers, 4096)
	cfg.Window = cmp.Or(cfg.Window, 2)
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	cfg.Poll = cmp.Or(cfg.Poll, 5*time.Second)
	switch {
	case cfg.MaxWorkers < 1:
		return nil, fmt.Errorf("jobs: %d workers, must be at least 1", cfg.MaxWorkers)
	case cfg.Window < 1:
		return nil, fmt.Errorf("jobs: window %d, must be at least 1", cfg.Window)
	case !prefixPattern.MatchString(cfg.Prefix):
		return nil, fmt.Errorf("jobs: prefix %q must consist of letters and digits", cfg.Prefix)
	}
	js, err := jsretry.Client(nc, cfg.API, cfg.Timeout)
	if err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	q := &JetStream{cfg: cfg, log: cfg.Logger, root: cfg.root(), nc: nc, js: js, classes: map[render.Class]consumers{}}
	if q.log == nil {
		q.log = slog.Default()
	}
	open := q.open
	if cfg.Role == access.Worker {
		open = q.bind
	}
	if err := open(ctx); err != nil {
		return nil, fmt.Errorf("jobs: %w", err)
	}
	return q, nil
}

// replicasThere is the number of replicas that the farm has, 0 when it has no
// streams yet: a program that was told no number changes nothing.
func (q *JetStream) replicasThere(ctx context.Context) (n int, err error) {
	err = jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		s, err := q.js.Stream(ctx, q.cfg.streamName(streamBacklog))
		if err != nil {
			return fmt.Errorf("look for streams: %w", err)
		}
		n = s.CachedInfo().Config.Replicas
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, nil
	}
	return n, err
}

func (q *JetStream) open(ctx context.Context) (err error) {
	if q.cfg.Replicas == 0 {
		there, err := q.replicasThere(ctx)
		if err != nil {
			return err
		}
		q.cfg.Replicas = cmp.Or(there, 1)
	}
	// One message a subject, and a second one is refused: together these make
	// a message the same as its work.
	once := jetstream.StreamConfig{
		Discard:              jetstream.DiscardNew,
		DiscardNewPerSubject: true,
		MaxMsgsPerSubject:    1,
	}
	queue := once
	queue.Retention = jetstream.WorkQueuePolicy
	if q.backlog, err = q.stream(ctx, streamBacklog, queue, "backlog.>"); err != nil {
		return err
	}
	if q.work, err = q.stream(ctx, streamWork, queue, "work.>"); err != nil {
		return err
	}
	letters := once
	letters.MaxAge = deadFor
	if q.dead, err = q.stream(ctx, streamDead, letters, "dead.>"); err != nil {
		return err
	}
	// Scheduling excludes DiscardNew, hence a stream of its own; a newer
	// schedule of a subject replaces the older.
	timers := jetstream.StreamConfig{
		Retention:         jetstream.WorkQueuePolicy,
		MaxMsgsPerSubject: 1,
		AllowMsgSchedules: true,
		AllowMsgTTL:       true,
		AllowRollup:       true,
		MaxAge:            timersFor,
	}
	if q.timers, err = q.stream(ctx, streamTimers, timers, "timer.>"); err != nil {
		return err
	}
	if q.due, err = q.consumer(ctx, q.timers, consumerDue, "timer.due.>"); err != nil {
		return err
	}
	for _, class := range render.Classes() {
		var c consumers
		if c.backlog, err = q.consumer(ctx, q.backlog, string(class), "backlog."+string(class)+".>"); err != nil {
			return err
		}
		if c.work, err = q.consumer(ctx, q.work, string(class), "work."+string(class)+".>"); err != nil {
			return err
		}
		q.classes[class] = c
	}
	return nil
}

func (q *JetStream) stream(ctx context.Context, name string, cfg jetstream.StreamConfig, subject string) (s jetstream.Stream, err error) {
	cfg.Name = q.cfg.streamName(name)
	cfg.Subjects = []string{q.root + subject}
	cfg.Storage = jetstream.FileStorage
	cfg.Replicas = q.cfg.Replicas
	err = jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		if s, err = q.js.CreateOrUpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("create or update: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open stream %s: %w", cfg.Name, err)
	}
	return s, nil
}

// consumer sets the limits that default to 512 waiting pulls and 1000 pending
// acknowledgements, and would cap the farm. It sets no BackOff, which would
// override AckWait.
func (q *JetStream) consumer(ctx context.Context, s jetstream.Stream, name, filter string) (c jetstream.Consumer, err error) {
	cfg := jetstream.ConsumerConfig{
		Durable:       name,
		FilterSubject: q.root + filter,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       q.cfg.AckWait,
		MaxDeliver:    -1,
		MaxAckPending: q.cfg.MaxWorkers,
		MaxWaiting:    maxWaiting,
	}
	err = jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		if c, err = s.CreateOrUpdateConsumer(ctx, cfg); err != nil {
			return fmt.Errorf("create or update: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open consumer %s: %w", name, err)
	}
	return c, nil
}

// refused reports whether a publish met a message of the same subject. The
// server has no code of its own for it.
func refused(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && api.ErrorCode == codeStoreFailed && strings.Contains(api.Description, "maximum messages per subject")
}

// codeStoreFailed is the server's JSStreamStoreFailedF.
const codeStoreFailed jetstream.ErrorCode = 10077

// publish stores a message whose subject holds at most one and returns its
// sequence. A refusal is success, with sequence 0, once the leader shows the
// message that stood in the way: on a replicated stream a write that is only
// under way refuses others too, and is lost if its leader dies.
func (q *JetStream) publish(ctx context.Context, to jetstream.Stream, msg *nats.Msg, opts ...jetstream.PublishOpt) (seq uint64, err error) {
	err = jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		ack, err := q.js.PublishMsg(ctx, msg, opts...)
		if err == nil {
			seq = ack.Sequence
			return nil
		}
		if !refused(err) {
			return fmt.Errorf("publish: %w", err)
		}
		_, err = to.GetLastMsgForSubject(ctx, msg.Subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return jsretry.ErrAgain
		}
		if err != nil {
			return fmt.Errorf("read what refused a publish: %w", err)
		}
		return nil
	})
	return seq, err
}

// Enqueue implements Queue.
func (q *JetStream) Enqueue(ctx context.Context, msgs ...Message) error {
	type owned struct {
		class render.Class
		owner string
	}
	byOwner := map[owned][]staged{}
	for _, m := range msgs {
		msg, err := q.encode(m)
		if err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
		o := owned{m.InClass(), m.Work.Tenant.Key() + "." + m.Work.Owner()}
		byOwner[o] = append(byOwner[o], staged{m.Work.Stage, msg})
	}
	for o, list := range byOwner {
		if err := q.enqueue(ctx, string(o.class)+"."+o.owner+".", list); err != nil {
			return fmt.Errorf("enqueue: %w", err)
		}
		tenant, _, _ := strings.Cut(o.owner, ".")
		q.wake(o.class, tenant)
	}
	return nil
}

func (q *JetStream) encode(m Message) (*nats.Msg, error) {
	key, ok := m.Work.Key()
	if !ok {
		return nil, errors.New("malformed work")
	}
	if m.Enqueued.IsZero() {
		m.Enqueued = time.Now()
	}
	data, err := wire.Marshal(wire.FromMessage(m))
	if err != nil {
		return nil, err
	}
	msg := &nats.Msg{Subject: q.root + "backlog." + string(m.InClass()) + "." + key, Data: data, Header: nats.Header{}}
	telemetry.Keep(telemetry.NATSCarrier(msg.Header), m.Trace)
	return msg, nil
}

// staged is a message with the stage that it is about.
type staged struct {
	stage render.Stage
	msg   *nats.Msg
}

// enqueue publishes the messages of one owner, except those that its class
// stream holds already.
func (q *JetStream) enqueue(ctx context.Context, below string, msgs []staged) error {
	var present map[string]uint64
	err := jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		info, err := q.work.Info(ctx, jetstream.WithSubjectFilter(q.root+"work."+below+">"))
		if err != nil {
			return fmt.Errorf("ask what is under way: %w", err)
		}
		present = info.State.Subjects
		return nil
	})
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(publishers)
	for _, msg := range msgs {
		if present[q.workSubject(msg.msg.Subject)] == 0 {
			g.Go(func() error {
				_, err := q.publish(ctx, q.backlog, msg.msg)
				failpoint.HitFor(failpoint.Enqueued, string(msg.stage))
				return err
			})
		}
	}
	return g.Wait()
}

func (q *JetStream) workSubject(backlogSubject string) string {
	return q.root + "work." + strings.TrimPrefix(backlogSubject, q.root+"backlog.")
}

// delivery is a fetched message.
type delivery struct {
	q   *JetStream
	msg jetstream.Msg
	m   Message
}

var _ Delivery = (*delivery)(nil)

// Fetch implements Queue.
func (q *JetStream) Fetch(ctx context.Context, class render.Class, wait time.Duration) (Delivery, error) {
	c, ok := q.classes[class]
	if !ok {
		return nil, fmt.Errorf("fetch: unknown class %q", class)
	}
	msg, err := q.fetch(ctx, c.work, wait)
	if err != nil {
		return nil, fmt.Errorf("fetch %s: %w", class, err)
	}
	q.wake(class, "") // there is room for the next one
	m, err := q.decode(class, msg)
	if err != nil {
		// Delivering it again would not mend it.
		if terr := msg.TermWithReason("cannot be decoded"); terr != nil {
			err = errors.Join(err, terr)
		}
		return nil, fmt.Errorf("fetch %s: %w", class, err)
	}
	return &delivery{q: q, msg: msg, m: m}, nil
}

func (q *JetStream) decode(class render.Class, msg jetstream.Msg) (Message, error) {
	p := &vidforgev1.StageMessage{}
	if err := proto.Unmarshal(msg.Data(), p); err != nil {
		return Message{}, fmt.Errorf("decode message %s: %w", msg.Subject(), err)
	}
	m, err := wire.ToMessage(p)
	if err != nil {
		return Message{}, fmt.Errorf("decode message %s: %w", msg.Subject(), err)
	}
	if key, ok := m.Work.Key(); !ok || msg.Subject() != q.root+"work."+string(class)+"."+key {
		return Message{}, fmt.Errorf("message %s is about another work", msg.Subject())
	}
	m.Trace = telemetry.Kept(telemetry.NATSCarrier(msg.Headers()))
	return m, nil
}

// fetch pulls one message, again when a change of leader interrupts it.
func (q *JetStream) fetch(ctx context.Context, c jetstream.Consumer, wait time.Duration) (jetstream.Msg, error) {
	deadline := time.Now().Add(wait)
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		msg, err := q.pull(ctx, c, time.Until(deadline))
		if msg != nil || (err != nil && !jsretry.Temporary(err)) {
			return msg, err
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("wait for work: %w", ctx.Err())
		}
		if err == nil || time.Until(deadline) <= pause {
			return nil, ErrNone
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

func (q *JetStream) pull(ctx context.Context, c jetstream.Consumer, wait time.Duration) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, max(wait, 10*time.Millisecond))
	defer cancel()
	batch, err := c.Fetch(1, jetstream.FetchContext(ctx))
	if err != nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	for msg := range batch.Messages() {
		return msg, nil
	}
	if err := batch.Error(); err != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("pull: %w", err)
	}
	return nil, nil //nolint:nilnil // nothing came, which is no error here
}

func (d *delivery) Message() Message { return d.m }

// InProgress implements Delivery. The server confirms it, so that a worker that
// is cut off learns of it.
func (d *delivery) InProgress(ctx context.Context) error {
	return d.tell(ctx, "+WPI")
}

// Ack implements Delivery.
func (d *delivery) Ack(ctx context.Context) error { return d.tell(ctx, "+ACK") }

// Handback implements Delivery.
func (d *delivery) Handback(ctx context.Context, delay time.Duration) error {
	if delay <= 0 {
		return d.tell(ctx, "-NAK")
	}
	return d.tell(ctx, `-NAK {"delay": `+strconv.FormatInt(delay.Nanoseconds(), 10)+`}`)
}

// tell sends an acknowledgement of some kind and waits for the server's
// confirmation. Telling twice does no harm.
func (d *delivery) tell(ctx context.Context, what string) error {
	err := jsretry.Do(ctx, d.q.cfg.Timeout, func(ctx context.Context) error {
		if _, err := d.q.nc.RequestWithContext(ctx, d.msg.Reply(), []byte(what)); err != nil {
			return fmt.Errorf("ask for a confirmation: %w", err)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("tell %s about %s: %w", what, d.msg.Subject(), err)
	}
	return nil
}

// Cancel implements Queue.
func (q *JetStream) Cancel(ctx context.Context, task render.ID) error {
	if err := q.gatewayOnly(); err != nil {
		return fmt.Errorf("broadcast a cancellation: %w", err)
	}
	if _, ok := render.ParseID(string(task)); !ok {
		return errors.New("broadcast a cancellation: malformed render id")
	}
	ctx, cancel := context.WithTimeout(ctx, q.cfg.Timeout)
	defer cancel()
	if err := q.nc.Publish(q.root+"cancel."+string(task), nil); err != nil {
		return fmt.Errorf("broadcast a cancellation: %w", err)
	}
	if err := q.nc.FlushWithContext(ctx); err != nil {
		return fmt.Errorf("broadcast a cancellation: %w", err)
	}
	return nil
}

// OnCancel implements Queue.
func (q *JetStream) OnCancel(fn func(render.ID)) (stop func(), err error) {
	prefix := q.root + "cancel."
	sub, err := q.nc.Subscribe(prefix+"*", func(msg *nats.Msg) {
		if id, ok := render.ParseID(strings.TrimPrefix(msg.Subject, prefix)); ok {
			fn(id)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("listen for cancellations: %w", err)
	}
	return func() {
		if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			q.log.Warn("stop listening for cancellations", "error", err)
		}
	}, nil
}

// Bury implements Queue.
func (q *JetStream) Bury(ctx context.Context, d DeadLetter) error {
	key, ok := d.Work.Key()
	if !ok {
		return errors.New("bury: malformed work")
	}
	data, err := wire.Marshal(wire.FromDeadLetter(d))
	if err != nil {
		return fmt.Errorf("bury: %w", err)
	}
	if _, err := q.publish(ctx, q.dead, &nats.Msg{Subject: q.root + "dead." + key, Data: data}); err != nil {
		return fmt.Errorf("bury: %w", err)
	}
	return nil
}

// DeadLetters implements Queue.
func (q *JetStream) DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error) {
	var state jetstream.StreamState
	err := jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		info, err := q.dead.Info(ctx)
		if err != nil {
			return fmt.Errorf("ask for their number: %w", err)
		}
		state = info.State
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("dead letters: %w", err)
	}
	var letters []DeadLetter
	for seq := state.LastSeq; seq >= max(state.FirstSeq, 1) && len(letters) < limit; seq-- {
		d, err := q.deadLetter(ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // expired, or removed by an operator
		}
		if err != nil {
			return nil, fmt.Errorf("dead letter %d: %w", seq, err)
		}
		letters = append(letters, d)
	}
	return letters, nil
}

func (q *JetStream) deadLetter(ctx context.Context, seq uint64) (DeadLetter, error) {
	var msg *jetstream.RawStreamMsg
	err := jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) (err error) {
		if msg, err = q.dead.GetMsg(ctx, seq); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		return nil
	})
	if err != nil {
		return DeadLetter{}, err
	}
	p := &vidforgev1.DeadLetter{}
	if err := proto.Unmarshal(msg.Data, p); err != nil {
		return DeadLetter{}, fmt.Errorf("decode: %w", err)
	}
	return wire.ToDeadLetter(p)
}

// Depth implements Queue.
func (q *JetStream) Depth(ctx context.Context, class render.Class) (Depth, error) {
	if err := q.gatewayOnly(); err != nil {
		return Depth{}, fmt.Errorf("depth of %s: %w", class, err)
	}
	c, ok := q.classes[class]
	if !ok {
		return Depth{}, fmt.Errorf("depth: unknown class %q", class)
	}
	var d Depth
	err := jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
		backlog, err := c.backlog.Info(ctx)
		if err != nil {
			return fmt.Errorf("ask the backlog: %w", err)
		}
		work, err := c.work.Info(ctx)
		if err != nil {
			return fmt.Errorf("ask the class: %w", err)
		}
		d = Depth{Backlog: count(backlog.NumPending), Ready: count(work.NumPending), Running: work.NumAckPending}
		return nil
	})
	if err != nil {
		return Depth{}, fmt.Errorf("depth of %s: %w", class, err)
	}
	return d, nil
}

// Unfinished implements Queue.
func (q *JetStream) Unfinished(ctx context.Context, class render.Class) (int, error) {
	if !slices.Contains(render.Classes(), class) {
		return 0, fmt.Errorf("count works: unknown class %q", class)
	}
	n := 0
	for name, s := range map[string]jetstream.Stream{"backlog": q.backlog, "work": q.work} {
		err := jsretry.Do(ctx, q.cfg.Timeout, func(ctx context.Context) error {
			info, err := s.Info(ctx, jetstream.WithSubjectFilter(q.root+name+"."+string(class)+".>"))
			if err != nil {
				return fmt.Errorf("ask the %s stream: %w", name, err)
			}
			n += len(info.State.Subjects)
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("count works of %s: %w", class, err)
		}
	}
	return n, nil
}

func count(n uint64) int { return int(min(n, 1<<31-1)) }
