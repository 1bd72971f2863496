package progress

import (
	"cmp"
	"context"
	_ "embed" // allow.lua
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/sony/gobreaker/v2"
	"google.golang.org/protobuf/proto"

	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
)

// Redis is a Board on Redis 6.2 or later, Valkey, or what speaks like them. It
// uses only what all of them have.
//
// Keys, behind the prefix: live:{task} is a hash of samples by work,
// {workers}:seen the set of worker ids, {workers}:<id> a worker, and
// rate:{tenant}:<what> a token bucket. The braces keep what is used together on
// one node of a cluster.
type Redis struct {
	client  redis.UniversalClient
	cfg     Config
	breaker *gobreaker.CircuitBreaker[struct{}]
	allow   *redis.Script
}

var _ Board = (*Redis)(nil)

// Open makes a board on a client of Connect. It does not wait for Redis: a farm
// starts without it.
func Open(_ context.Context, client redis.UniversalClient, cfg Config) (*Redis, error) {
	quiet()
	cfg.Deadline = cmp.Or(cfg.Deadline, 250*time.Millisecond)
	cfg.TTL = cmp.Or(cfg.TTL, time.Hour)
	cfg.WorkerTTL = cmp.Or(cfg.WorkerTTL, 30*time.Second)
	cfg.Failures = cmp.Or(cfg.Failures, 3)
	cfg.Cooldown = cmp.Or(cfg.Cooldown, 2*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.Default())
	if cfg.Deadline < 0 || cfg.TTL < 0 || cfg.WorkerTTL < 0 || cfg.Failures < 0 || cfg.Cooldown < 0 {
		return nil, errors.New("progress: Deadline, TTL, WorkerTTL, Failures and Cooldown must not be negative")
	}
	if !obeysContext(client) {
		return nil, errors.New("progress: the client must have ContextTimeoutEnabled, else a hanging Redis holds calls beyond the deadline")
	}
	b := &Redis{client: client, cfg: cfg, allow: redis.NewScript(allowSource)}
	b.breaker = gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        "redis",
		MaxRequests: 1,
		Timeout:     cfg.Cooldown,
		ReadyToTrip: func(c gobreaker.Counts) bool { return int(c.ConsecutiveFailures) >= cfg.Failures },
		IsExcluded:  func(err error) bool { _, gone := errors.AsType[callerError](err); return gone },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			cfg.Logger.Warn("redis breaker changed: live progress is lost while it is open", "from", from.String(), "to", to.String())
		},
	})
	return b, nil
}

func obeysContext(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		return c.Options().ContextTimeoutEnabled
	default:
		return true
	}
}

// callerError is a call that ended because the caller's own context did, which
// says nothing about Redis.
type callerError struct{ error }

func (e callerError) Unwrap() error { return e.error }

var (
	// Braces would end a key's hash tag.
	workerPattern = regexp.MustCompile(`^[!-)+-z|~]{1,200}$`)
	whatPattern   = regexp.MustCompile(`^[a-z0-9._-]{1,64}$`)
)

// call runs f within the deadline and behind the breaker.
func (b *Redis) call(ctx context.Context, what string, f func(context.Context) error) error {
	_, err := b.breaker.Execute(func() (struct{}, error) {
		limited, cancel := context.WithTimeout(ctx, b.cfg.Deadline)
		defer cancel()
		err := f(limited)
		if err != nil && ctx.Err() != nil {
			err = callerError{err}
		}
		return struct{}{}, err
	})
	if err != nil {
		return fmt.Errorf("progress: %s: %w", what, err)
	}
	return nil
}

func (b *Redis) liveKey(owner string) string { return b.cfg.Prefix + "live:{" + owner + "}" }

// Report implements Board.
func (b *Redis) Report(ctx context.Context, s Sample) error {
	value, err := wire.Marshal(wire.FromSample(s))
	if err != nil {
		return fmt.Errorf("progress: report: %w", err)
	}
	if _, ok := s.Work.Key(); !ok {
		return errors.New("progress: report: malformed work")
	}
	key := b.liveKey(s.Work.Owner())
	field := fmt.Sprintf("%d/%s/%d", s.Work.Generation, s.Work.Stage, s.Work.Index)
	return b.call(ctx, "report", func(ctx context.Context) error {
		_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, key, field, value)
			p.PExpire(ctx, key, b.cfg.TTL)
			return nil
		})
		return err //nolint:wrapcheck // call wraps
	})
}

// Live implements Board.
func (b *Redis) Live(ctx context.Context, task render.ID) (Live, bool) {
	if _, ok := render.ParseID(string(task)); !ok {
		return Live{}, false
	}
	var values map[string]string
	err := b.call(ctx, "live", func(ctx context.Context) (err error) {
		values, err = b.client.HGetAll(ctx, b.liveKey(string(task))).Result()
		return err //nolint:wrapcheck // call wraps
	})
	if err != nil {
		return Live{}, false
	}
	var live Live
	var newest uint32
	for _, v := range values {
		var p vidforgev1.ProgressSample
		if err := proto.Unmarshal([]byte(v), &p); err != nil {
			continue // of a version that is not ours; progress is no truth
		}
		s, err := wire.ToSample(&p)
		if err != nil || s.Work.Task != task {
			continue
		}
		newest = max(newest, s.Work.Generation)
		live.Samples = append(live.Samples, s)
	}
	live.Samples = slices.DeleteFunc(live.Samples, func(s Sample) bool { return s.Work.Generation != newest })
	slices.SortFunc(live.Samples, func(x, y Sample) int {
		return cmp.Or(cmp.Compare(x.Work.Stage, y.Work.Stage), cmp.Compare(x.Work.Index, y.Work.Index))
	})
	return live, len(live.Samples) > 0
}

// The workers' keys share a hash tag: they are listed together.
func (b *Redis) workersKey() string         { return b.cfg.Prefix + "{workers}:seen" }
func (b *Redis) workerKey(id string) string { return b.cfg.Prefix + "{workers}:" + id + ":worker" }

// Beat implements Board.
func (b *Redis) Beat(ctx context.Context, w Worker) error {
	if !workerPattern.MatchString(w.ID) {
		return errors.New("progress: beat: the worker's id must be 1 to 200 printable ASCII characters, without spaces, braces and asterisks")
	}
	value, err := wire.Marshal(wire.FromWorker(w))
	if err != nil {
		return fmt.Errorf("progress: beat: %w", err)
	}
	return b.call(ctx, "beat", func(ctx context.Context) error {
		_, err := b.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, b.workerKey(w.ID), value, b.cfg.WorkerTTL)
			p.SAdd(ctx, b.workersKey(), w.ID)
			p.PExpire(ctx, b.workersKey(), b.cfg.TTL)
			return nil
		})
		return err //nolint:wrapcheck // call wraps
	})
}

// Workers implements Board.
func (b *Redis) Workers(ctx context.Context) ([]Worker, error) {
	var workers []Worker
	err := b.call(ctx, "workers", func(ctx context.Context) error {
		ids, err := b.client.SMembers(ctx, b.workersKey()).Result()
		if err != nil || len(ids) == 0 {
			return err //nolint:wrapcheck // call wraps
		}
		keys := make([]string, len(ids))
		for i, id := range ids {
			keys[i] = b.workerKey(id)
		}
		values, err := b.client.MGet(ctx, keys...).Result()
		if err != nil {
			return err //nolint:wrapcheck // call wraps
		}
		var gone []any
		for i, v := range values {
			text, ok := v.(string)
			if !ok {
				gone = append(gone, ids[i])
				continue
			}
			var p vidforgev1.Worker
			if err := proto.Unmarshal([]byte(text), &p); err != nil {
				continue
			}
			if w, err := wire.ToWorker(&p); err == nil {
				workers = append(workers, w)
			}
		}
		if len(gone) == 0 {
			return nil
		}
		// One that beats at this very moment is listed again after its next
		// beat.
		return b.client.SRem(ctx, b.workersKey(), gone...).Err()
	})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(workers, func(x, y Worker) int { return cmp.Compare(x.ID, y.ID) })
	return workers, nil
}

//go:embed allow.lua
var allowSource string

// Allow implements Board. A rate or burst of zero or less means no limit; more
// tokens than the burst count as the burst.
func (b *Redis) Allow(ctx context.Context, tenant render.Tenant, what string, n int, perSecond float64, burst int) (bool, time.Duration) {
	if n <= 0 || burst <= 0 || !(perSecond > 0) {
		return true, 0
	}
	if !whatPattern.MatchString(what) {
		return false, 0
	}
	key := b.cfg.Prefix + "rate:{" + tenant.Key() + "}:" + what
	var wait int64
	err := b.call(ctx, "allow", func(ctx context.Context) (err error) {
		wait, err = b.allow.Run(ctx, b.client, []string{key}, 1e6/perSecond, burst, min(n, burst)).Int64()
		return err //nolint:wrapcheck // call wraps
	})
	if err != nil {
		return true, 0
	}
	return wait == 0, time.Duration(wait) * time.Microsecond
}

// Ping implements Board.
func (b *Redis) Ping(ctx context.Context) error {
	return b.call(ctx, "ping", func(ctx context.Context) error {
		return b.client.Ping(ctx).Err()
	})
}
