// Package farm is the one facade over the four stores: submit, look at, watch,
// decide and cancel renders, keep assets, claim and finish work, and put right
// what a crash left half done. The gateway, the worker, the command line and
// the tests all use it; none of them touches a store.
package farm

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
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
	// MaxAssetBytes of one upload. Defaults to 16 GiB.
	MaxAssetBytes int64
	// AssetRetention is how long an asset is kept after its upload. Defaults
	// to 7 days.
	AssetRetention time.Duration
	// Policy bounds plans. Defaults to one segment a render.
	Policy render.Policy
	// ReconcileEvery is the mean time between two looks at everything that is
	// not finished. Defaults to 15 s.
	ReconcileEvery time.Duration
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
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
	Trace   render.TraceContext
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

/* The methods of *Farm, all safe for concurrent use. Errors that a client may
see are *render.Error.

func New(s Stores, c Config) *Farm
func (f *Farm) Run(ctx context.Context) error   // dispatchers, timers, reconcile; until ctx ends
func (f *Farm) Ready(ctx context.Context) error // ledger and blobs answer (Redis may be down)

// Submit: idempotent under Request.IdempotencyKey. existing is true when the key named an existing render.
func (f *Farm) Submit(ctx, tenant render.Tenant, s Submission) (v *View, existing bool, err error)
func (f *Farm) Validate(ctx, tenant, req render.Request) (*Validation, error)
func (f *Farm) Get(ctx, tenant, id render.ID) (*View, error)          // render_not_found
// Watch calls fn with the present view and again after changes (record changes at once, live numbers at most every 2 s) until fn fails, ctx ends or the render is terminal.
func (f *Farm) Watch(ctx, tenant, id, fn func(*View) error) error
func (f *Farm) Decide(ctx, tenant, id, d render.Decision) (*View, error) // repeated same: success; approval_already_recorded, approval_not_pending
func (f *Farm) MintInput(ctx, tenant, id, in render.InputRequest) (*View, error) // stores it once; the view has the stored one
func (f *Farm) AnswerInput(ctx, tenant, id, key, action string) (*View, error)   // accept(url)/decline/cancel: no decision
func (f *Farm) Cancel(ctx, tenant, id, by string) (*View, error)      // terminal already: success with the view as it is
func (f *Farm) Video(ctx, tenant, id) (*Content, error)               // render_not_found, resource_not_ready
func (f *Farm) Preview(ctx, tenant, id) (*Content, error)
func (f *Farm) Log(ctx, tenant, id) (string, error)

func (f *Farm) Upload(ctx, tenant, u Upload) (*render.Asset, error)   // streams, then waits up to 30 s for the probe
func (f *Farm) Asset(ctx, tenant, id render.AssetID) (*render.Asset, error) // source_not_found
func (f *Farm) Assets(ctx, tenant, cursor string, limit int) (page []*render.Asset, next string, err error)
func (f *Farm) DeleteAsset(ctx, tenant, id) error
func (f *Farm) Workers(ctx) ([]progress.Worker, error)

// worker side
func (f *Farm) Claim(ctx, class render.Class, worker string, wait time.Duration) (*Claim, error) // jobs.ErrNone
*/
