// Package farm is the one facade over the four stores: submit, look at, watch,
// decide and cancel renders, keep assets, claim and finish work, and put right
// what a crash left half done. The gateway, the worker, the command line and
// the tests all use it; none of them touches a store.
package farm

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
)

// Stores are what a farm stands on.
type Stores struct {
	Ledger   ledger.Ledger
	Jobs     jobs.Queue
	Progress progress.Board
	Blobs    blob.Store
}

// Config of a farm.
type Config struct {
	// MaxConcurrent renders of a tenant that are not finished. Defaults to 16.
	MaxConcurrent int
	// RenderTime is the length of the videos that a tenant may make in one
	// RenderWindow. Default to no limit, and a month.
	RenderTime   time.Duration
	RenderWindow render.Window
	// StorageBytes of a tenant's uploads that are kept at once. Default to no
	// limit.
	StorageBytes int64
	// LimitsOf gives a tenant other limits than all. Nil: nobody has any.
	LimitsOf func(tenant render.Tenant, all Limits) Limits
	// MaxAssetBytes of one upload. Defaults to 16 GiB.
	MaxAssetBytes int64
	// AssetRetention is how long an asset is kept after its upload, and longer
	// while an unfinished render uses it. Defaults to 7 days.
	AssetRetention time.Duration
	// PresignTTL is how long a presigned upload may begin, 1 second to 7 days.
	// Defaults to 1 h.
	PresignTTL time.Duration
	// MaxPresignBytes of one presigned upload, which is a single request of at
	// most 5 GiB in S3. Defaults to 5 GiB.
	MaxPresignBytes int64
	// OrphanAge is how old an object must be before a sweep may take it for an
	// orphan. An upload may last half as long. Defaults to 24 h.
	OrphanAge time.Duration
	// SweepEvery is the time between two sweeps. Defaults to 1 h.
	SweepEvery time.Duration
	// Policy bounds plans. Defaults to one segment a render.
	Policy render.Policy
	// Hardware is what submitted renders may be encoded on. Defaults to
	// render.HardwarePrefer.
	Hardware render.Hardware
	// Role of this process. A worker moves records on, and leaves to gateways
	// what it has no right to: assets, slots, timers, ended pauses, deletions.
	// Defaults to one that does everything.
	Role access.Role
	// Tuning is that of the stores.
	Tuning Tuning
	// MaxAttempts bounds how often a work may fail: on that many distinct
	// workers, or twice as often in all. Defaults to 3.
	MaxAttempts int
	// MaxLost bounds how often a work's worker may vanish. Defaults to 10.
	MaxLost int
	// ProbeWait is how long an upload waits for its probe. Defaults to 30 s.
	ProbeWait time.Duration
	// Holder names this process in leases. Defaults to a random name.
	Holder string
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Metrics counts renders that end. Nil counts nothing.
	Metrics *telemetry.Metrics
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// Progress is the live part of a view. Nil is unknown.
type Progress struct {
	Fraction                    *float64 // 0 to 1
	Stage                       render.Stage
	FramesDone, FramesTotal     *int64
	FPS, Speed                  *float64
	ETA                         *time.Duration
	SegmentsDone, SegmentsTotal *int
	Attempt                     *int
	LogTail                     []string // up to 20 lines
	// QueuePosition counts from 1 while queued.
	QueuePosition *int
}

// View is a render as it is now: the record of truth and, when known, live
// numbers. It is a snapshot and must not be changed.
type View struct {
	Record   *render.Record
	Progress Progress
}

// Submission is a request for a render.
type Submission struct {
	Request render.Request
	// IdempotencyWindow is how long the request's key stands for its render.
	// Keys of different windows are different keys. Defaults to
	// render.IdempotencyWindow.
	IdempotencyWindow time.Duration
	// TaskRetention is how long the id shall answer as a task after the end.
	// It is brought between render.MinTaskRetention and render.TaskRetention,
	// which is the default. A render that a key found keeps its own.
	TaskRetention time.Duration
	Trace         render.TraceContext
}

// Validation is what a render request would become.
type Validation struct {
	Spec     render.Spec
	Plan     render.Plan
	Duration time.Duration
	Warnings []string
	// Estimate is the expected time from now to the end, nil when unknown.
	Estimate *time.Duration
}

// Upload is a file on its way in.
type Upload struct {
	Name     string
	MIMEType string
	Size     int64  // bytes, -1 when unknown
	SHA256   string // hex, "" when unknown
	Body     io.Reader
	Trace    render.TraceContext
}

// Content is a stored object of a render, ready to be served.
type Content struct {
	Object   render.Object
	Name     string // for Content-Disposition
	MIMEType string
	Modified time.Time
	// Open reads length bytes from offset; length 0 reads to the end.
	Open func(ctx context.Context, offset, length int64) (io.ReadCloser, error)
	// Presign mints a URL at the store's public endpoint.
	Presign func(ctx context.Context, ttl time.Duration) (url string, expires time.Time, err error)
}

// Farm is the facade. Make it with New; its methods may be called at once.
// Errors that a client may see are *render.Error.
type Farm struct {
	stores Stores
	cfg    Config
	log    *slog.Logger
	hub    *hub
	gone   gone
	// readyName is the lease that Ready takes, this Farm's own.
	readyName string
}

// New makes a farm over open stores. It starts nothing; see Run.
func New(s Stores, c Config) *Farm {
	c.MaxConcurrent = cmp.Or(c.MaxConcurrent, 16)
	c.Hardware = cmp.Or(c.Hardware, render.HardwarePrefer)
	c.RenderWindow = cmp.Or(c.RenderWindow, render.WindowMonth)
	c.MaxAssetBytes = cmp.Or(c.MaxAssetBytes, 16<<30)
	c.AssetRetention = cmp.Or(c.AssetRetention, 7*24*time.Hour)
	c.PresignTTL = cmp.Or(c.PresignTTL, time.Hour)
	c.MaxPresignBytes = cmp.Or(c.MaxPresignBytes, 5<<30)
	c.OrphanAge = cmp.Or(c.OrphanAge, 24*time.Hour)
	c.SweepEvery = cmp.Or(c.SweepEvery, time.Hour)
	c.Tuning.ReconcileEvery = cmp.Or(c.Tuning.ReconcileEvery, 15*time.Second)
	c.Tuning.BeatEvery = c.Tuning.beat()
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 3)
	c.MaxLost = cmp.Or(c.MaxLost, 10)
	c.ProbeWait = cmp.Or(c.ProbeWait, 30*time.Second)
	c.Holder = cmp.Or(c.Holder, "farm-"+render.NewAttemptID())
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return &Farm{stores: s, cfg: c, log: c.Logger, hub: newHub(), gone: gone{since: map[string]time.Time{}}, readyName: "ready-" + render.NewAttemptID()}
}

// Limits returns the limits that a client may be told.
func (f *Farm) Limits() Config { return f.cfg }

// AllowRequest takes a token from the tenant's bucket of requests, which holds
// burst and refills at perSecond. When there is none, retryAfter is when there
// will be. While Redis is down everything is allowed, without waiting for it.
func (f *Farm) AllowRequest(ctx context.Context, tenant render.Tenant, perSecond float64, burst int) (ok bool, retryAfter time.Duration) {
	return f.stores.Progress.Allow(ctx, tenant, "requests", 1, perSecond, burst)
}

// Ready reports whether the farm can accept and answer: ledger and blobs must,
// Redis need not. The ledger is asked to write, since a full disk lets it answer
// reads.
func (f *Farm) Ready(ctx context.Context) error {
	lease, err := f.stores.Ledger.LeaseName(ctx, f.readyName, f.cfg.Holder)
	if err == nil {
		err = lease.Release(ctx)
	}
	if err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := f.stores.Blobs.Ping(ctx); err != nil {
		return fmt.Errorf("blob store: %w", err)
	}
	return nil
}

// Workers lists the workers that are alive, as far as it is known.
func (f *Farm) Workers(ctx context.Context) ([]progress.Worker, error) {
	ws, err := f.stores.Progress.Workers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list workers: %w", err)
	}
	return ws, nil
}

// worker reports whether this process has the rights of a worker only.
func (f *Farm) worker() bool { return f.cfg.Role == access.Worker }

// now is the clock in UTC, to the millisecond that records keep.
func (f *Farm) now() time.Time { return f.cfg.Now().UTC().Truncate(time.Millisecond) }

// settleTimeout bounds what must still happen after the caller went away: a
// closed connection ends the request, never the render.
const settleTimeout = 15 * time.Second

// detached keeps the values of ctx but neither its deadline nor its end.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
}

// unavailable classifies the failure of a store.
func unavailable(doing string, err error) *render.Error {
	e := render.Errorf(render.CodeUnavailable, render.BlameFarm, "A part of the farm is not reachable right now; send the request again.")
	e.RetryAfter = 2 * time.Second
	return e.WithCause(fmt.Errorf("%s: %w", doing, err))
}
