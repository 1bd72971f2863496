// Package jobs moves work: stage messages, timers, cancel signals and dead
// letters, over JetStream.
//
// Every message is one piece of work with a subject of its own,
// <prefix>.<class>.<tenant>.<owner>.<generation>.<stage>.<index>, in work-queue
// streams that hold at most one message a subject. Publishing again while it
// waits or runs is refused, which is success; after the acknowledgement it is
// accepted. Nothing relies on the deduplication window.
//
// A message enters the backlog of its class; a dispatcher per class moves the
// next one, tenant by tenant, into the class stream, which holds about one
// message a free worker slot. So a tenant with thousands of renders delays
// another's by what is running, not by what is queued.
package jobs

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/render"
)

var (
	// ErrNone is returned by Fetch when nothing came within the wait.
	ErrNone = errors.New("jobs: nothing to do")
	// ErrForbidden is returned when the role of this program does not have what
	// a call needs. Nothing was asked of the server.
	ErrForbidden = errors.New("jobs: not for this role")
	// ErrNotReady is returned by Open to a worker while no gateway has made the
	// streams.
	ErrNotReady = errors.New("jobs: not set up yet")
)

type (
	// Message is a piece of work on its way to a worker.
	Message = render.Message
	// Timer is a hint that something is due.
	Timer = render.Timer
	// DeadLetter is a work that was given up.
	DeadLetter = render.DeadLetter
)

// Delivery is a fetched message. Exactly one of Ack, Handback and Drop ends it;
// without any it is delivered again after the ack wait.
type Delivery interface {
	Message() Message
	// InProgress restarts the ack wait.
	InProgress(ctx context.Context) error
	// Ack removes the message: its work is done and its follow-ups are
	// published. It waits for the server's confirmation.
	Ack(ctx context.Context) error
	// Handback offers the message again after the delay.
	Handback(ctx context.Context, delay time.Duration) error
}

// Queue is the farm's work. All methods may be called at once.
type Queue interface {
	// Enqueue publishes messages and waits until all are stored; a message
	// whose work waits or runs already counts as stored. It retries through
	// a change of leader until ctx ends.
	Enqueue(ctx context.Context, msgs ...Message) error
	// Fetch waits up to wait for one message of a class. ErrNone if none came.
	Fetch(ctx context.Context, class render.Class, wait time.Duration) (Delivery, error)

	// Schedule stores a timer. The same (task, name) again replaces it.
	Schedule(ctx context.Context, t Timer) error
	// FetchTimer waits up to wait for a timer that fired. ErrNone if none did.
	// ack removes it.
	FetchTimer(ctx context.Context, wait time.Duration) (t Timer, ack func(context.Context) error, err error)

	// Cancel tells every worker that the task was cancelled. It is a hint
	// that may get lost; workers also look at the record at every beat.
	Cancel(ctx context.Context, task render.ID) error
	// OnCancel calls fn for each cancelled task until stop is called.
	OnCancel(fn func(render.ID)) (stop func(), err error)

	// Bury stores a dead letter, once per work.
	Bury(ctx context.Context, d DeadLetter) error
	// DeadLetters returns up to limit of them, newest first.
	DeadLetters(ctx context.Context, limit int) ([]DeadLetter, error)

	// Dispatch moves messages of a class from backlog to class stream until
	// ctx ends, and returns nil then. Two dispatchers of a class may run; they
	// only waste effort.
	Dispatch(ctx context.Context, class render.Class) error
	// Depth counts the messages of a class: waiting in the backlog, ready in
	// the class stream, and delivered to workers. The numbers are the server's
	// own counts, which lag a little; the backlog's may be off by a few until
	// a dispatcher has looked at all of it.
	Depth(ctx context.Context, class render.Class) (Depth, error)
	// Unfinished counts the works of a class that wait or run; one on its way
	// from the backlog to the class stream may count twice. Unlike Depth it
	// names each of them, so it is for classes of which few wait.
	Unfinished(ctx context.Context, class render.Class) (int, error)
}

// Depth is how much work of a class there is.
type Depth struct{ Backlog, Ready, Running int }

// Config sizes streams and consumers. The server's own consumer limits (512
// waiting pulls, 1000 pending acknowledgements) would cap the farm, so both
// are always set.
type Config struct {
	// Replicas of every stream: 1, 3 or 5. Defaults to what is there, else 1.
	Replicas int
	// AckWait is how long a delivery lives without InProgress, 15 to 30 s.
	// Defaults to 20 s.
	AckWait time.Duration
	// MaxWorkers is the largest number of works of one class that may run at
	// once, those handed back with a delay among them. Defaults to 4096.
	MaxWorkers int
	// Window is how many messages the dispatcher keeps ready in a class
	// stream beside the waiting pulls. Defaults to 2.
	Window int
	// Poll is the mean time between two looks of a dispatcher at the whole
	// backlog, in case that hints were lost. Defaults to 5 s.
	Poll time.Duration
	// Timeout bounds every single call to the server. Defaults to 5 s.
	Timeout time.Duration
	// Role of this program. A worker makes no streams and can only fetch, end
	// and publish work; see Access. Defaults to one that may do everything.
	Role access.Role
	// API is the prefix of JetStream's API, $JS.API by default. It differs where
	// an account imports the JetStream of another.
	API string
	// Prefix is put before every stream's and subject's name: [A-Za-z0-9]*.
	Prefix string
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}
