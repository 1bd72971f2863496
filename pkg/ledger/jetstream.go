package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
)

// keep is how long results, attempts and slots live when nothing else ends
// them: longer than any render.
const keep = render.RenderRetention + 24*time.Hour

// longest is how long any key lives that nobody touches: a bucket's own limit,
// also for what a program left without a time of its own.
const longest = longestRender + 24*time.Hour

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	hashPattern   = regexp.MustCompile(`^[0-9a-f]{32,128}$`)
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9]*$`)
)

// JetStream is the Ledger in JetStream key-value buckets:
//
//	renders_<shard>  <tenant>.<render>
//	intents_<shard>  <tenant>.<render>.submission, <tenant>.<render>.approval
//	works_<shard>    result.<work>, attempts.<work>
//	assets           <tenant>.<asset>
//	idem             <tenant>.<key hash>
//	slots            <tenant>.<number>
//	leases           work.<work>, name.<name>
//	secrets          <name>
//	usage            <tenant>.<account>
//
// where <tenant> is render.Tenant.Key and <work> is render.Work.Key. A key's
// shard is a hash of it, a work's that of its owner. Values are the protobuf
// messages of module proto.
type JetStream struct {
	cfg                                  Config
	renders, intents, works              []*bucket
	assets, idem, slots, leases, secrets *bucket
	usage                                *bucket
	parts                                partCache
}

var _ Ledger = (*JetStream)(nil)

// Open makes the ledger's buckets where they are missing, and adjusts replicas
// and lease time where they are there; a worker only looks for those that it
// uses, and gets ErrNotReady while they are missing. Open fails if the records
// that are there are spread over another number of shards.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*JetStream, error) {
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, 20*time.Second).Round(time.Second)
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	switch {
	case cfg.Shards < 0 || cfg.Shards > 64:
		return nil, fmt.Errorf("ledger: %d shards, must be 1 to 64", cfg.Shards)
	case cfg.LeaseTTL < time.Second:
		return nil, fmt.Errorf("ledger: lease time %s, must be at least 1 s", cfg.LeaseTTL)
	case !prefixPattern.MatchString(cfg.Prefix):
		return nil, fmt.Errorf("ledger: prefix %q must consist of letters and digits", cfg.Prefix)
	}
	js, err := jsretry.Client(nc, cfg.API, cfg.Timeout)
	if err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	l := &JetStream{cfg: cfg}
	if err := l.open(ctx, js); err != nil {
		return nil, fmt.Errorf("ledger: %w", err)
	}
	return l, nil
}

const shardsKey = "vidforge-shards"

func (l *JetStream) open(ctx context.Context, js jetstream.JetStream) error {
	err := jsretry.Do(ctx, l.cfg.Timeout, func(ctx context.Context) error {
		first, err := js.Stream(ctx, l.cfg.streamName(kindRenders+"_0"))
		if err != nil {
			return fmt.Errorf("look for records: %w", err)
		}
		there := first.CachedInfo().Config
		was, err := strconv.Atoi(there.Metadata[shardsKey])
		if err != nil {
			return fmt.Errorf("bucket %s tells no number of shards: %w", there.Name, err)
		}
		l.cfg.Shards = cmp.Or(l.cfg.Shards, was)
		if was != l.cfg.Shards {
			return fmt.Errorf("the server's records are spread over %d shards, not %d", was, l.cfg.Shards)
		}
		l.cfg.Replicas = cmp.Or(l.cfg.Replicas, there.Replicas)
		return nil
	})
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && l.cfg.Role == access.Worker:
		return fmt.Errorf("%w: there is no bucket of records", ErrNotReady)
	case err != nil && !errors.Is(err, jetstream.ErrStreamNotFound):
		return err
	}
	l.cfg.Shards, l.cfg.Replicas = cmp.Or(l.cfg.Shards, 1), cmp.Or(l.cfg.Replicas, 1)
	for _, c := range l.cfg.buckets() {
		if c.access == accessNone {
			continue
		}
		b, err := openBucket(ctx, js, c)
		if err != nil {
			return err
		}
		l.place(c.kind, b)
	}
	for _, list := range [][]*bucket{l.renders, l.intents, l.works} {
		slices.Reverse(list) // they were opened from the last to the first
	}
	return nil
}

// place puts an opened bucket where it belongs. What a role may not use stays
// nil, and answers ErrForbidden.
func (l *JetStream) place(kind string, b *bucket) {
	switch kind {
	case kindRenders:
		l.renders = append(l.renders, b)
	case kindIntents:
		l.intents = append(l.intents, b)
	case kindWorks:
		l.works = append(l.works, b)
	case kindAssets:
		l.assets = b
	case kindIdem:
		l.idem = b
	case kindSlots:
		l.slots = b
	case kindLeases:
		l.leases = b
	case kindSecrets:
		l.secrets = b
	case kindUsage:
		l.usage = b
	}
}

// shard picks the bucket of an owner's keys.
func shard(buckets []*bucket, owner string) *bucket {
	h := fnv.New32a()
	_, _ = h.Write([]byte(owner))                       // never fails
	return buckets[int(h.Sum32()%uint32(len(buckets)))] //nolint:gosec // at most 64 buckets
}

// Ping asks the leader of the first bucket for a sign of life.
func (l *JetStream) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	if _, err := l.renders[0].stream.Info(ctx); err != nil {
		return fmt.Errorf("ledger: ask the leader for a sign of life: %w", err)
	}
	return nil
}

// until is a key's TTL so that it expires at t.
func (l *JetStream) until(t time.Time) time.Duration {
	return max(t.Sub(l.cfg.Now()), time.Second)
}

// malformed is the error of an id that exists nowhere.
func malformed(what string) error { return fmt.Errorf("malformed %s: %w", what, ErrNotFound) }
