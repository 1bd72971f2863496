// Package progress is the farm's live view: percent, frames, speed, worker
// beats, request rates, kept in Redis. All of it may be lost at any time
// without harm to a render; a farm whose Redis is down renders on and answers
// status without live numbers, without waiting.
package progress

import (
	"context"
	"log/slog"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

type (
	// Sample is how far one piece of work is.
	Sample = render.Sample
	// Worker is one registered worker process.
	Worker = render.Worker
)

// Live is what is known about a task's work right now.
type Live struct {
	// Samples are the latest of each work of the newest generation.
	Samples []Sample
}

// Board is the live view. Every method returns within the board's deadline
// also when Redis hangs, and at once while the breaker is open. All methods may
// be called at once.
//
// A worker's id is 1 to 200 printable ASCII characters without spaces, braces
// and asterisks; a bucket's name (what) is [a-z0-9._-]. With anything else, and
// with malformed render and asset ids, nothing is stored, known or allowed.
type Board interface {
	// Report stores the latest sample of a work.
	Report(ctx context.Context, s Sample) error
	// Live reads the samples of a task; ok is false when nothing is known,
	// also when Redis is down.
	Live(ctx context.Context, task render.ID) (live Live, ok bool)
	// Beat registers a worker for about half a minute.
	Beat(ctx context.Context, w Worker) error
	// Workers lists the registered workers.
	Workers(ctx context.Context) ([]Worker, error)
	// Allow takes n tokens from the tenant's bucket named what, which holds
	// burst and refills at perSecond. When refused, retryAfter is when it may
	// succeed. While Redis is down everything is allowed.
	Allow(ctx context.Context, tenant render.Tenant, what string, n int, perSecond float64, burst int) (ok bool, retryAfter time.Duration)
	// Ping asks Redis for a sign of life.
	Ping(ctx context.Context) error
}

// Config of a board.
type Config struct {
	// Deadline bounds every call. Defaults to 250 ms.
	Deadline time.Duration
	// TTL of a task's samples after the last report. Defaults to 1 h.
	TTL time.Duration
	// WorkerTTL is how long a worker is listed after its last beat. Defaults
	// to 30 s.
	WorkerTTL time.Duration
	// Failures in a row open the breaker. Defaults to 3.
	Failures int
	// Cooldown is how long the open breaker lets nothing through before it
	// tries one call. Defaults to 2 s.
	Cooldown time.Duration
	// Prefix is put before every key.
	Prefix string
	// Logger gets the breaker's changes. Defaults to slog.Default().
	Logger *slog.Logger
}
