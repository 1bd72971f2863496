package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"regexp"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/vidforge/vidforge/pkg/internal/jsretry"
	"github.com/vidforge/vidforge/pkg/render"
)

// keep is how long results, attempts and slots live when nothing else ends
// them: longer than any render.
const keep = render.RenderRetention + 24*time.Hour

var (
	namePattern   = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	hashPattern   = regexp.MustCompile(`^[0-9a-f]{32,128}$`)
	prefixPattern = regexp.MustCompile(`^[A-Za-z0-9]*$`)
)

// JetStream is the Ledger in JetStream key-value buckets:
//
//	renders_<shard>  <tenant>.<render>
//	works_<shard>    result.<work>, attempts.<work>
//	assets           <tenant>.<asset>
//	idem             <tenant>.<key hash>
//	slots            <tenant>.<number>
//	leases           work.<work>, name.<name>
//	secrets          <name>
//
// where <tenant> is render.Tenant.Key and <work> is render.Work.Key. A key's
// shard is a hash of it, a work's that of its owner. Values are the protobuf
// messages of module proto.
type JetStream struct {
	cfg                                  Config
	renders, works                       []*bucket
	assets, idem, slots, leases, secrets *bucket
}

var _ Ledger = (*JetStream)(nil)

// Open makes the ledger's buckets where they are missing, and adjusts replicas
// and lease time where they are there. It fails if the records that are there
// are spread over another number of shards.
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
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(cfg.Timeout))
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
	bucketName := func(kind string) string { return l.cfg.Prefix + "vidforge_" + kind }
	err := jsretry.Do(ctx, l.cfg.Timeout, func(ctx context.Context) error {
		first, err := js.Stream(ctx, "KV_"+bucketName("renders_0"))
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
	if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	l.cfg.Shards, l.cfg.Replicas = cmp.Or(l.cfg.Shards, 1), cmp.Or(l.cfg.Replicas, 1)
	shards := map[string]string{shardsKey: strconv.Itoa(l.cfg.Shards)}
	base := bucketConfig{replicas: l.cfg.Replicas, timeout: l.cfg.Timeout}
	for i := range l.cfg.Shards {
		for kind, list := range map[string]*[]*bucket{"renders_": &l.renders, "works_": &l.works} {
			c := base
			c.name, c.metadata = bucketName(kind+strconv.Itoa(i)), shards
			b, err := openBucket(ctx, js, c)
			if err != nil {
				return err
			}
			*list = append(*list, b)
		}
	}
	for kind, at := range map[string]**bucket{"assets": &l.assets, "idem": &l.idem, "slots": &l.slots, "leases": &l.leases, "secrets": &l.secrets} {
		c := base
		c.name = bucketName(kind)
		if kind == "leases" {
			c.maxAge = l.cfg.LeaseTTL
		}
		if *at, err = openBucket(ctx, js, c); err != nil {
			return err
		}
	}
	return nil
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
