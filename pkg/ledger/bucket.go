package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/internal/jsretry"
)

const (
	// opHeader is the key-value convention for deleted keys, so that the nats
	// command line shows our buckets as what they are.
	opHeader, opDelete = "KV-Operation", "DEL"
	// nonceHeader tells a writer whose first try timed out that the message
	// it finds is its own.
	nonceHeader = "Vidforge-Nonce"
	// markerTTL is how long a deleted key leaves a marker behind.
	markerTTL = time.Minute
)

// JetStream has two codes for a lost compare-and-set: 10071, and 10164 on
// replicated streams.
func wrongSequence(err error) bool {
	switch jsretry.ErrorCode(err) {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return true
	default:
		return false
	}
}

// entry is the last message of a key.
type entry struct {
	key      string
	data     []byte
	revision uint64 // the message's sequence; 0 when there is no message
	nonce    string
	deleted  bool
	stored   time.Time // the server's time
}

func (e entry) live() bool { return e.revision > 0 && !e.deleted }

// bucket is a key-value bucket in the layout of the KV convention. It writes
// to the subjects itself, because the client's KV type loses a key's TTL at
// every update; and its stream answers no direct gets, so that every read is
// the leader's.
type bucket struct {
	js      jetstream.JetStream
	stream  jetstream.Stream
	prefix  string // of subjects, with the last dot
	timeout time.Duration
	access  bucketAccess
}

type bucketConfig struct {
	kind     string
	name     string
	access   bucketAccess
	below    string // the keys that may be written
	replicas int
	maxAge   time.Duration // 0: keys live until their own TTL
	metadata map[string]string
	timeout  time.Duration
}

func openBucket(ctx context.Context, js jetstream.JetStream, c bucketConfig) (*bucket, error) {
	b := &bucket{js: js, prefix: "$KV." + c.name + ".", timeout: c.timeout, access: c.access}
	cfg := jetstream.StreamConfig{
		Name:              "KV_" + c.name,
		Subjects:          []string{b.prefix + ">"},
		MaxMsgsPerSubject: 1,
		MaxAge:            c.maxAge,
		Discard:           jetstream.DiscardNew,
		Storage:           jetstream.FileStorage,
		Replicas:          c.replicas,
		AllowRollup:       false, // a writer of one key could remove all others
		DenyDelete:        true,
		AllowMsgTTL:       true,
		AllowDirect:       false,
		Metadata:          c.metadata,
	}
	if c.maxAge > 0 {
		cfg.Duplicates = min(c.maxAge, 2*time.Minute) // the server refuses a window longer than the age
	}
	err := jsretry.Do(ctx, c.timeout, func(ctx context.Context) error {
		var err error
		if c.access != accessOwn {
			if b.stream, err = js.Stream(ctx, cfg.Name); err != nil {
				return fmt.Errorf("look for it: %w", err)
			}
			return nil
		}
		if b.stream, err = js.CreateOrUpdateStream(ctx, cfg); err != nil {
			return fmt.Errorf("create or update: %w", err)
		}
		return nil
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("%w: %w", ErrNotReady, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket %s: %w", c.name, err)
	}
	return b, nil
}

// allows reports whether this program's role may do that with the bucket. One
// that it may not even read is nil.
func (b *bucket) allows(a bucketAccess) bool { return b != nil && b.access >= a }

// last reads the last message of a key from the leader, once.
func (b *bucket) last(ctx context.Context, key string) (entry, error) {
	msg, err := b.stream.GetLastMsgForSubject(ctx, b.prefix+key)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return entry{key: key}, nil
	}
	if err != nil {
		return entry{}, fmt.Errorf("read the leader's last message: %w", err)
	}
	return entry{
		key: key, data: msg.Data, revision: msg.Sequence, stored: msg.Time,
		nonce: msg.Header.Get(nonceHeader), deleted: msg.Header.Get(opHeader) != "",
	}, nil
}

// look reads a key from the leader, also a deleted or absent one.
func (b *bucket) look(ctx context.Context, key string) (e entry, err error) {
	if !b.allows(accessRead) {
		return entry{}, ErrForbidden
	}
	err = jsretry.Do(ctx, b.timeout, func(ctx context.Context) error {
		e, err = b.last(ctx, key)
		return err
	})
	return e, err
}

// get reads a key from the leader. ErrNotFound when it is deleted or absent.
func (b *bucket) get(ctx context.Context, key string) (entry, error) {
	e, err := b.look(ctx, key)
	if err == nil && !e.live() {
		err = ErrNotFound
	}
	return e, err
}

// put writes a key whose last message has the expected revision (0: none, or
// expired). ErrConflict when it has another. A zero ttl keeps the key.
func (b *bucket) put(ctx context.Context, key string, data []byte, expected uint64, ttl time.Duration) (uint64, error) {
	if b == nil {
		return 0, ErrForbidden
	}
	return b.write(ctx, &nats.Msg{Subject: b.prefix + key, Data: data, Header: nats.Header{}}, expected, ttl)
}

// remove deletes a key at the revision, by a marker, because deleting the
// message is not a compare-and-set on a replicated stream.
func (b *bucket) remove(ctx context.Context, key string, revision uint64) error {
	if b == nil {
		return ErrForbidden
	}
	msg := &nats.Msg{Subject: b.prefix + key, Header: nats.Header{opHeader: {opDelete}}}
	_, err := b.write(ctx, msg, revision, markerTTL)
	return err
}

func (b *bucket) write(ctx context.Context, msg *nats.Msg, expected uint64, ttl time.Duration) (uint64, error) {
	if !b.allows(accessWrite) {
		return 0, ErrForbidden
	}
	nonce := rand.Text()
	msg.Header.Set(nonceHeader, nonce)
	opts := []jetstream.PublishOpt{jetstream.WithExpectLastSequencePerSubject(expected)}
	if ttl > 0 {
		opts = append(opts, jetstream.WithMsgTTL(max(ttl.Round(time.Second), time.Second)))
	}
	var revision uint64
	doubt := false // whether an earlier try may have been stored
	err := jsretry.Do(ctx, b.timeout, func(ctx context.Context) error {
		ack, err := b.js.PublishMsg(ctx, msg, opts...)
		switch {
		case err == nil:
			revision = ack.Sequence
			return nil
		case !wrongSequence(err):
			doubt = doubt || jsretry.Temporary(err)
			return fmt.Errorf("write: %w", err)
		case !doubt:
			return ErrConflict
		}
		last, err := b.last(ctx, strings.TrimPrefix(msg.Subject, b.prefix))
		switch {
		case err != nil:
			return err
		case last.nonce == nonce:
			revision = last.revision
			return nil
		case last.revision == expected: // the leader still works on a write, perhaps ours
			return jsretry.ErrAgain
		default:
			return ErrConflict
		}
	})
	return revision, err
}

// create writes a key that is absent or deleted. ErrExists when it is there.
func (b *bucket) create(ctx context.Context, key string, data []byte, ttl time.Duration) (uint64, error) {
	var expected uint64
	for {
		revision, err := b.put(ctx, key, data, expected, ttl)
		if !errors.Is(err, ErrConflict) {
			return revision, err
		}
		e, err := b.look(ctx, key)
		if err != nil {
			return 0, err
		}
		if e.live() {
			return 0, ErrExists
		}
		expected = e.revision
	}
}

// keys lists the keys below a prefix (with its last dot) by one question to
// the leader. Deleted keys may be among them.
func (b *bucket) keys(ctx context.Context, prefix string) ([]string, error) {
	if !b.allows(accessRead) {
		return nil, ErrForbidden
	}
	var keys []string
	err := jsretry.Do(ctx, b.timeout, func(ctx context.Context) error {
		info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.prefix+prefix+">"))
		if err != nil {
			return fmt.Errorf("ask for subjects: %w", err)
		}
		keys = make([]string, 0, len(info.State.Subjects))
		for subject := range info.State.Subjects {
			keys = append(keys, strings.TrimPrefix(subject, b.prefix))
		}
		return nil
	})
	return keys, err
}

// scan reads every live key. One that changes meanwhile may come twice.
func (b *bucket) scan(ctx context.Context) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		if err := b.walk(ctx, func(e entry) bool { return yield(e, nil) }); err != nil {
			yield(entry{}, err)
		}
	}
}

// consumer reads the bucket's messages in order. It may sit on a follower: what
// it says is no answer to a question.
func (b *bucket) consumer(ctx context.Context, from jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	if !b.allows(accessOwn) {
		return nil, ErrForbidden
	}
	var opened jetstream.Consumer
	err := jsretry.Do(ctx, b.timeout, func(ctx context.Context) error {
		c, err := b.stream.OrderedConsumer(ctx, from)
		if err != nil {
			return fmt.Errorf("open a consumer: %w", err)
		}
		opened = c
		return nil
	})
	return opened, err
}

// scanStall is how long a scan waits for a message before it asks anew what is
// left: a server may count messages that were replaced or expired meanwhile, and
// go on waiting with us.
const scanStall = time.Second

func (b *bucket) walk(ctx context.Context, fn func(entry) bool) error {
	last, quiet := uint64(0), time.Now()
	for {
		began := last
		done, err := b.walkFrom(ctx, &last, fn)
		switch {
		case done || err != nil:
			return err
		case last > began:
			quiet = time.Now()
		case time.Since(quiet) > b.timeout:
			return fmt.Errorf("read on in a scan: nothing came for %s", b.timeout)
		}
	}
}

// walkFrom goes on after the sequence last and keeps it up to date. It is not
// done when what the server says is left does not come.
func (b *bucket) walkFrom(ctx context.Context, last *uint64, fn func(entry) bool) (done bool, err error) {
	cons, err := b.consumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *last + 1, InactiveThreshold: consumerIdle,
	})
	if err != nil {
		return false, err
	}
	defer b.forget(ctx, cons)
	if cons.CachedInfo().NumPending == 0 {
		return true, nil
	}
	msgs, err := cons.Messages()
	if err != nil {
		return false, fmt.Errorf("start a scan: %w", err)
	}
	defer msgs.Stop()
	for {
		e, left, err := b.next(ctx, msgs)
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		*last = e.revision
		if e.live() && !fn(e) || left == 0 {
			return true, nil
		}
	}
}

// consumerIdle is how long the server keeps a consumer that nobody asks, if it
// could not be removed.
const consumerIdle = 30 * time.Second

// forget removes a scan's consumer: scans may be many, and a server's consumers
// are limited.
func (b *bucket) forget(ctx context.Context, cons jetstream.Consumer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
	defer cancel()
	_ = b.stream.DeleteConsumer(ctx, cons.CachedInfo().Name) // else it goes by itself
}

func (b *bucket) next(ctx context.Context, msgs jetstream.MessagesContext) (entry, uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, min(b.timeout, scanStall))
	defer cancel()
	msg, err := msgs.Next(jetstream.NextContext(ctx))
	if err != nil {
		return entry{}, 0, fmt.Errorf("read on in a scan: %w", err)
	}
	return b.entry(msg)
}

func (b *bucket) entry(msg jetstream.Msg) (e entry, left uint64, err error) {
	meta, err := msg.Metadata()
	if err != nil {
		return entry{}, 0, fmt.Errorf("read message metadata: %w", err)
	}
	return entry{
		key: strings.TrimPrefix(msg.Subject(), b.prefix), data: msg.Data(), revision: meta.Sequence.Stream,
		deleted: msg.Headers().Get(opHeader) != "", stored: meta.Timestamp,
	}, meta.NumPending, nil
}

// watch calls fn with each key written from now on, holding mu meanwhile,
// until stop is called, which waits for a running fn.
func (b *bucket) watch(ctx context.Context, mu *sync.Mutex, fn func(entry)) (stop func(), err error) {
	cons, err := b.consumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
	if err != nil {
		return nil, err
	}
	consuming, err := cons.Consume(func(msg jetstream.Msg) {
		if e, _, err := b.entry(msg); err == nil && e.live() {
			mu.Lock()
			defer mu.Unlock()
			fn(e)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("start a watch: %w", err)
	}
	return func() {
		consuming.Stop()
		<-consuming.Closed()
	}, nil
}
