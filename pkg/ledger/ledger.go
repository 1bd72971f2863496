// Package ledger keeps what must not be lost: renders, assets, idempotency
// keys, concurrency slots, stage results, attempts and leases, as JetStream
// key-value records under compare-and-set.
//
// Every read that decides something is answered by the stream's leader: a
// follower may not have seen an acknowledged write yet. Tenants enter keys
// only as render.Tenant.Key, ids only after their strict pattern matched.
package ledger

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/render"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

var (
	// ErrNotFound is returned when the key does not exist, has expired, or
	// the id does not match its pattern.
	ErrNotFound = errors.New("ledger: not found")
	// ErrExists is returned when a create finds the key taken.
	ErrExists = errors.New("ledger: exists already")
	// ErrConflict is returned when a compare-and-set lost: read again,
	// decide again.
	ErrConflict = errors.New("ledger: changed in the meantime")
	// ErrNoSlot is returned when a tenant holds all its slots.
	ErrNoSlot = errors.New("ledger: no free slot")
	// ErrLeased is returned when somebody else holds a lease.
	ErrLeased = errors.New("ledger: leased by another")
	// ErrLeaseLost is returned when a lease expired or was taken over.
	ErrLeaseLost = errors.New("ledger: lease lost")
)

// RenderEntry is a render record as read: the record, and what Update needs to
// write its successor (revision, fields that a newer version wrote).
type RenderEntry struct {
	Record   *render.Record
	Revision uint64 // of its state
	origin   *vidforgev1.RenderRecord
	approval part
}

// AssetEntry is an asset record as read.
type AssetEntry struct {
	Asset    *render.Asset
	Revision uint64
	origin   *vidforgev1.Asset
}

type (
	// Binding is what an idempotency key is bound to.
	Binding = render.Binding
	// Outcome is how an attempt ended.
	Outcome = render.Outcome
	// Attempt is one try at a work.
	Attempt = render.Attempt
	// History is every attempt at one work, oldest first.
	History = render.History
)

// Outcomes of an attempt.
const (
	OutcomeOpen     = render.OutcomeOpen
	OutcomeDone     = render.OutcomeDone
	OutcomeFailed   = render.OutcomeFailed
	OutcomeHandback = render.OutcomeHandback
	OutcomeLost     = render.OutcomeLost
)

// Lease is a held lease. It is not safe for concurrent use.
type Lease interface {
	// Renew extends the lease by its whole time. ErrLeaseLost when it ran out
	// or was taken over.
	Renew(ctx context.Context) error
	// Release gives the lease up, if it is still held. Releasing a lost lease
	// is no error and harms nobody.
	Release(ctx context.Context) error
}

// Sign is a hint at a record that was written.
type Sign struct {
	ID render.ID
	// Tenant is whose render it is where a state was written, which is not to be
	// trusted more than whoever wrote it; else "".
	Tenant render.Tenant
	// Ended says that the state is a terminal one.
	Ended bool
}

// SlotHolder is one taken slot.
type SlotHolder struct {
	Tenant render.Tenant
	Slot   int
	Task   render.ID
	// Taken is the server's time of the taking.
	Taken time.Time
}

// Ledger is the durable record of the farm. All methods may be called at once.
// Errors other than the package's own mean that the outcome is unknown: for a
// write, it may have happened.
type Ledger interface {
	// CreateRender stores a new record. ErrExists if the id is taken.
	CreateRender(ctx context.Context, rec *render.Record) (RenderEntry, error)
	// GetRender reads a record from the leader. ErrNotFound for unknown,
	// foreign and malformed ids alike.
	GetRender(ctx context.Context, tenant render.Tenant, id render.ID) (RenderEntry, error)
	// UpdateRender replaces prev by next if nothing came between, else
	// ErrConflict. Unknown fields of prev are kept. A terminal record expires
	// by itself at next.Expires and is never replaced again (ErrConflict).
	UpdateRender(ctx context.Context, prev RenderEntry, next *render.Record) (RenderEntry, error)
	// Renders iterates over every stored record of every tenant, in no order.
	// One that changes meanwhile may come twice. It is for reconciliation, not
	// for requests.
	Renders(ctx context.Context) iter.Seq2[RenderEntry, error]
	// WatchRenders calls fn at every record that is written from now on, one
	// after the other, until ctx ends, and returns nil then. It may lag behind
	// an acknowledged write and may skip some: a hint, never an answer.
	WatchRenders(ctx context.Context, fn func(Sign)) error

	// CreateAsset, GetAsset and UpdateAsset are as for renders. An asset
	// expires at Asset.Expires.
	CreateAsset(ctx context.Context, a *render.Asset) (AssetEntry, error)
	GetAsset(ctx context.Context, tenant render.Tenant, id render.AssetID) (AssetEntry, error)
	UpdateAsset(ctx context.Context, prev AssetEntry, next *render.Asset) (AssetEntry, error)
	// DeleteAsset removes the record if it is still at prev's revision.
	DeleteAsset(ctx context.Context, prev AssetEntry) error
	// ListAssets returns up to limit (at least one) assets of the tenant in order of id,
	// those after the id `after` ("" from the start), and the id to go on
	// from ("" at the end).
	ListAssets(ctx context.Context, tenant render.Tenant, after render.AssetID, limit int) ([]*render.Asset, render.AssetID, error)
	// Assets iterates over every stored asset of every tenant.
	Assets(ctx context.Context) iter.Seq2[AssetEntry, error]

	// Bind binds an idempotency key (its HMAC in hex) for window, unless it
	// is bound already: then the present binding is returned with created
	// false.
	Bind(ctx context.Context, tenant render.Tenant, keyHash string, b Binding, window time.Duration) (got Binding, created bool, err error)
	// Unbind removes a binding that is still at b.Revision.
	Unbind(ctx context.Context, tenant render.Tenant, keyHash string, b Binding) error

	// TakeSlot takes the lowest free of the tenant's slots 0 to limit-1 for
	// the task. ErrNoSlot when all are taken. A task that holds one already
	// gets the same one.
	TakeSlot(ctx context.Context, tenant render.Tenant, task render.ID, limit int) (int, error)
	// FreeSlot frees the slot if the task still holds it.
	FreeSlot(ctx context.Context, tenant render.Tenant, slot int, task render.ID) error
	// Slots iterates over every taken slot. It may lag behind an acknowledged
	// write: it is for reconciliation.
	Slots(ctx context.Context) iter.Seq2[SlotHolder, error]

	// ChangeUsage changes what a tenant has used of one quota, by its account
	// ([a-z0-9-]+): change gets the present usage, empty where there is none,
	// and reports whether it changed it. It may be called several times, since
	// others change it too; only the last call counts. Its error is returned as
	// it is, and nothing is written then. The account is kept for that long
	// after its last change.
	ChangeUsage(ctx context.Context, tenant render.Tenant, account string, keep time.Duration, change func(*render.Usage) (changed bool, err error)) (render.Usage, error)
	// Usage reads an account from the leader. ErrNotFound when there is none.
	Usage(ctx context.Context, tenant render.Tenant, account string) (render.Usage, error)
	// Accounts iterates over every account of every tenant. It may lag behind
	// an acknowledged write: it is for reconciliation.
	Accounts(ctx context.Context) iter.Seq2[Account, error]

	// RenderOf, AssetOf and SlotsOf read from the leader, as GetRender and
	// GetAsset do, for who knows a tenant only by its key (render.Tenant.Key),
	// as it stands in the keys of objects.
	RenderOf(ctx context.Context, tenantKey string, id render.ID) (RenderEntry, error)
	AssetOf(ctx context.Context, tenantKey string, id render.AssetID) (AssetEntry, error)
	SlotsOf(ctx context.Context, tenantKey string) ([]SlotHolder, error)

	// Epoch returns the ledger's epoch, made by the first caller.
	Epoch(ctx context.Context) (Epoch, error)
	// TurnEpoch raises the turn of an epoch that is still as it was read.
	// ErrConflict when it is not, or when the turn would not rise.
	TurnEpoch(ctx context.Context, prev Epoch, turn uint64) (Epoch, error)

	// PutResult records the result of a work. The first one counts: first is
	// true for it, and every later call returns that first result.
	PutResult(ctx context.Context, res *render.StageResult) (counts *render.StageResult, first bool, err error)
	// GetResult reads the result that counts. ErrNotFound while there is none.
	GetResult(ctx context.Context, w render.Work) (*render.StageResult, error)
	// CountResults counts, by one question to the leader, the results of the
	// encode step (segment and audio) of a generation.
	CountResults(ctx context.Context, tenant render.Tenant, task render.ID, generation uint32) (int, error)
	// Results reads every result of a generation, in order of stage and index.
	Results(ctx context.Context, tenant render.Tenant, task render.ID, generation uint32) ([]*render.StageResult, error)

	// OpenAttempt adds an attempt to the work's history and returns the
	// history with it. An earlier attempt that is still open is closed as
	// lost: only the holder of the work's lease may call this. Of very long
	// histories the oldest attempts are dropped that count for nothing:
	// handbacks, and further ones of the same worker and outcome.
	OpenAttempt(ctx context.Context, w render.Work, a Attempt) (History, error)
	// CloseAttempt sets the attempt's outcome. Closing a closed one changes
	// nothing. ErrNotFound when the work has no such attempt.
	CloseAttempt(ctx context.Context, w render.Work, id string, o Outcome, reason string) (History, error)
	// AttemptHistory reads a history; an unknown work has an empty one.
	AttemptHistory(ctx context.Context, w render.Work) (History, error)

	// LeaseWork takes the lease of a work for holder. ErrLeased while
	// somebody else holds it; the same holder gets it anew, and its earlier
	// Lease is lost. The lease time is the ledger's, counted by the
	// server from the last renewal; no two hosts' clocks are compared.
	LeaseWork(ctx context.Context, w render.Work, holder string) (Lease, error)
	// LeaseName takes a named lease (a leadership). Names are [a-z0-9-]+.
	// Leadership is an optimisation: everything stays right under two leaders.
	LeaseName(ctx context.Context, name, holder string) (Lease, error)
	// LeaseHolder tells who holds a named lease. ErrNotFound when nobody does.
	LeaseHolder(ctx context.Context, name string) (holder string, err error)

	// Secret returns the farm's 32 random bytes of that name ([a-z0-9-]+),
	// made by the first caller.
	Secret(ctx context.Context, name string) ([]byte, error)

	// Ping asks the leader for a sign of life.
	Ping(ctx context.Context) error
}

// Config sizes the ledger's buckets.
type Config struct {
	// Shards is the number of buckets that records are hashed over. Defaults
	// to what is there, else 1; 8 suits a cluster. It cannot change once
	// records exist.
	Shards int
	// Replicas of every bucket: 1, 3 or 5. Defaults to what is there, else 1.
	Replicas int
	// LeaseTTL is how long a lease lives without renewal, 15 to 30 s, rounded
	// to seconds. Defaults to 20 s.
	LeaseTTL time.Duration
	// Timeout bounds every single call to the server. Defaults to 5 s.
	Timeout time.Duration
	// Role of this program. A worker makes no buckets and cannot use all of
	// them; see Access. Defaults to one that may do everything.
	Role access.Role
	// API is the prefix of JetStream's API, $JS.API by default. It differs where
	// an account imports the JetStream of another.
	API string
	// Prefix is put before every bucket's name, so that tests and farms can
	// share a server. [A-Za-z0-9]*.
	Prefix string
	// Now is the clock that expiry times (of assets and finished renders) are
	// counted from. Defaults to time.Now.
	Now func() time.Time
}
