package farm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
)

// Endpoints are where the four stores of a farm are reached. They hold
// credentials.
type Endpoints struct {
	// NATSURL is one URL or several with commas between them, nats:// or tls://.
	// Credentials may be part of a URL.
	NATSURL string
	// NATS says how to authenticate there.
	NATS NATSAccess
	// RedisURL is redis://[user:password@]host:port[/db], or rediss:// for TLS;
	// see progress.Endpoint for clusters and Sentinel.
	RedisURL string
	// Redis says how to authenticate there.
	Redis progress.Access
	// S3 is the object store.
	S3 blob.Config
	// Prefix begins every name in NATS and Redis, so that several farms can
	// share the servers (each with a bucket of its own). [A-Za-z0-9]*.
	Prefix string
}

// DialOptions say how the stores are opened.
type DialOptions struct {
	// Name of this process, shown by the NATS server.
	Name string
	// Role of this process. A worker uses what a gateway has made, and waits
	// for it. Defaults to one that may do everything.
	Role access.Role
	// Tuning fills what the settings of the stores leave open.
	Tuning   Tuning
	Ledger   ledger.Config
	Jobs     jobs.Config
	Progress progress.Config
	// Waits is called with the name of each store before Dial waits for it.
	// Optional.
	Waits func(store string)
	// Logger gets the connections' changes, and what Dial waits for. Defaults
	// to slog.Default().
	Logger *slog.Logger
}

// Backends are the opened stores.
type Backends struct {
	Stores
	nats  *nats.Conn
	redis io.Closer
	blobs *blob.S3
}

// Dial says what it waits for after firstWaitLog, and then ever more rarely.
const (
	firstWaitLog = 5 * time.Second
	lastWaitLog  = time.Minute
)

// waitLog says in the log what Dial waits for, again and again, and why.
type waitLog struct {
	log   *slog.Logger
	waits func(string)
}

func (w waitLog) during(ctx context.Context, store string, why func() error, do func() error) error {
	w.waits(store)
	began, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		timer := time.NewTimer(firstWaitLog)
		defer timer.Stop()
		for pause := firstWaitLog; ; {
			select {
			case <-timer.C:
				pause = min(2*pause, lastWaitLog)
				timer.Reset(pause)
				w.log.WarnContext(ctx, "waits for a store", "store", store, "seconds", int(time.Since(began).Seconds()), "error", why())
			case <-done:
				return
			}
		}
	}()
	err := do()
	close(done)
	<-ended
	return err
}

// Dial connects to the stores. It waits for NATS and its JetStream until ctx
// ends, since nothing goes without them; S3 and Redis may come up later. A
// connection that is lost is made again, for ever.
func Dial(ctx context.Context, e Endpoints, o DialOptions) (_ *Backends, err error) {
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if err := o.Tuning.Validate(); err != nil {
		return nil, fmt.Errorf("farm: %w", err)
	}
	o.Tuning.apply(&o)
	o.Ledger.Role, o.Jobs.Role = o.Role, o.Role
	o.Ledger.API, o.Jobs.API = e.NATS.API, e.NATS.API
	if o.Role == access.Worker {
		e.S3.CreateBucket = false
	}
	o.Ledger.Prefix = cmp.Or(o.Ledger.Prefix, e.Prefix)
	o.Jobs.Prefix = cmp.Or(o.Jobs.Prefix, e.Prefix)
	o.Progress.Prefix = cmp.Or(o.Progress.Prefix, e.Prefix)
	o.Progress.Logger = cmp.Or(o.Progress.Logger, o.Logger)
	if o.Waits == nil {
		o.Waits = func(string) {}
	}
	wait := waitLog{log: o.Logger, waits: o.Waits}
	b := &Backends{}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.Close())
		}
	}()
	if b.nats, err = dialNATS(ctx, e, o.Name, o.Logger, wait); err != nil {
		return nil, err
	}
	open := func() (err error) {
		if b.Ledger, err = ledger.Open(ctx, b.nats, o.Ledger); err != nil {
			return fmt.Errorf("farm: %w", err)
		}
		if b.Jobs, err = jobs.Open(ctx, b.nats, o.Jobs); err != nil {
			return fmt.Errorf("farm: %w", err)
		}
		return nil
	}
	if err = wait.during(ctx, "JetStream", b.nats.LastError, func() error { return wait.untilReady(ctx, open) }); err != nil {
		return nil, err
	}
	client, err := progress.Endpoint{URL: e.RedisURL, Access: e.Redis}.Connect()
	if err != nil {
		return nil, fmt.Errorf("farm: %w", err)
	}
	b.redis = client
	if b.Progress, err = progress.Open(ctx, client, o.Progress); err != nil {
		return nil, fmt.Errorf("farm: %w", err)
	}
	if b.blobs, err = openBlobs(ctx, e.S3, wait); err != nil {
		return nil, fmt.Errorf("farm: %w", err)
	}
	b.Blobs = b.blobs
	return b, nil
}

// lastError is the newest error of something that is tried again and again.
type lastError struct{ atomic.Value }

type someError struct{ error }

func (e *lastError) set(err error) { e.Store(someError{err}) }

func (e *lastError) get() error {
	err, _ := e.Load().(someError)
	return err.error
}

// openBlobs waits for a store in which it has to make the bucket; otherwise
// nothing is sent yet.
func openBlobs(ctx context.Context, c blob.Config, wait waitLog) (s *blob.S3, err error) {
	var last lastError
	err = wait.during(ctx, "S3", last.get, func() error {
		for n := 0; ; n++ {
			if s, err = blob.Open(ctx, c); err == nil || !errors.Is(err, blob.ErrUnavailable) {
				return err
			}
			last.set(err)
			if !sleep(ctx, retryDelay(min(n, 3))) {
				return err
			}
		}
	})
	return s, err
}

// readyPause is how long a worker waits before it looks again for what a gateway
// makes.
const readyPause = time.Second

// untilReady opens what a gateway may not have made yet.
func (w waitLog) untilReady(ctx context.Context, open func() error) error {
	for said := false; ; said = true {
		err := open()
		if err == nil || !errors.Is(err, ledger.ErrNotReady) && !errors.Is(err, jobs.ErrNotReady) {
			return err
		}
		if !said {
			w.waits("a gateway to set up NATS")
			w.log.InfoContext(ctx, "waits for a gateway to set up NATS", "error", err)
		}
		if !sleep(ctx, readyPause) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Close closes the connections. Whoever uses the stores has ended before.
func (b *Backends) Close() error {
	var err error
	if b.redis != nil {
		err = b.redis.Close()
	}
	if b.blobs != nil {
		b.blobs.Close()
	}
	if b.nats != nil {
		b.nats.Close()
	}
	if err != nil {
		return fmt.Errorf("farm: close: %w", err)
	}
	return nil
}
