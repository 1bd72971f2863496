// Package local runs a whole farm in this process: NATS, Redis, S3, a worker
// and a gateway, all below one data directory that one process at a time uses.
//
// While a farm runs, the working directory of the process is not the caller's:
// see package embedded.
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/worker"
)

// Options of a farm.
type Options struct {
	// DataDir keeps everything. A farm that is started again with it goes on
	// where the last one ended, however that ended. Required, absolute.
	DataDir string
	// Listen and OpsListen are the addresses of the gateway; port 0 is any
	// free one. Required.
	Listen, OpsListen string
	// PublicURL is how clients reach the gateway. Defaults to the address that
	// it listens on.
	PublicURL string
	// KeysFile holds API keys; "" asks for none, which only a loopback
	// address allows.
	KeysFile string
	// ApprovalPolicy is agent or human; see gateway.Config.
	ApprovalPolicy string
	// Stdio serves the client on the standard streams as well, by Farm.Stdio. The
	// start then does not wait until the worker has found out what it can do.
	Stdio *gateway.Stdio
	// Slots is how many encoding stages run at once; 0 leaves it to the worker.
	Slots int
	// Devices are the graphics devices that encode; see worker.Config.
	Devices string
	// Version of the worker, for listings; the gateway knows its own.
	Version string
	// Logger is required.
	Logger *slog.Logger
}

// closeTimeout bounds each step of a shutdown.
const closeTimeout = 30 * time.Second

// Farm is a running farm.
type Farm struct {
	// URL of the gateway, without a path, and of its health and metrics.
	URL, OpsURL string
	// SignInCode is what a person types in on the approval page; empty where
	// nobody has to.
	SignInCode string
	// Stdio handles requests of the client on the standard streams, nil without
	// Options.Stdio.
	Stdio http.Handler

	log   *slog.Logger
	close []func() error // in the order of the start

	failed     chan struct{}
	failedOnce sync.Once
}

// part is a server that runs until it is cancelled.
type part struct {
	name        string
	ready, done chan struct{}
	err         error // set before done is closed
}

// Start starts a farm and waits until it takes requests and work. ctx bounds
// the start only. On failure nothing is left running.
func Start(ctx context.Context, o Options) (_ *Farm, err error) {
	if !filepath.IsAbs(o.DataDir) {
		return nil, fmt.Errorf("data directory %q is not absolute", o.DataDir)
	}
	l, err := acquire(ctx, o.DataDir)
	if err != nil {
		return nil, err
	}
	f := &Farm{log: o.Logger, failed: make(chan struct{})}
	f.close = append(f.close, l.release)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := l.announce(Holder{PID: os.Getpid()}); err != nil {
		return nil, err
	}
	scratch := filepath.Join(o.DataDir, "scratch")
	// What is there belongs to a process that is gone: the lock says so.
	if err := os.RemoveAll(scratch); err != nil {
		return nil, fmt.Errorf("clear the scratch directory: %w", err)
	}
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return nil, fmt.Errorf("make the scratch directory: %w", err)
	}
	servers, err := embedded.Start(ctx, embedded.Options{Dir: filepath.Join(o.DataDir, "servers"), Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("start the embedded servers: %w", err)
	}
	f.close = append(f.close, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return servers.Close(ctx)
	})
	if err := announceEndpoints(o.DataDir, servers.Endpoints()); err != nil {
		return nil, err
	}
	// Both at once: the worker first tries out what ffmpeg can do.
	work := f.launch(ctx, "worker", func(ctx context.Context, ready func()) error {
		return worker.Run(ctx, worker.Config{
			Endpoints: servers.Endpoints(), Version: o.Version, Slots: o.Slots, Devices: o.Devices, ScratchDir: scratch, Ready: ready, Logger: o.Logger,
		})
	})
	serve := f.launch(ctx, "gateway", func(ctx context.Context, ready func()) error {
		return gateway.Run(ctx, gateway.Config{
			Listen: o.Listen, OpsListen: o.OpsListen, PublicURL: o.PublicURL, Endpoints: servers.Endpoints(),
			KeysFile: o.KeysFile, ApprovalPolicy: o.ApprovalPolicy, Stdio: o.Stdio, Logger: o.Logger,
			Ready: func(b gateway.Bound) {
				f.URL, f.OpsURL, f.Stdio, f.SignInCode = "http://"+b.Listen, "http://"+b.OpsListen, b.Stdio, b.SignInCode
				ready()
			},
		})
	})
	needed := []*part{work, serve}
	if o.Stdio != nil {
		needed = []*part{serve} // what it submits waits for the worker
	}
	for _, p := range needed {
		if err := f.await(ctx, p); err != nil {
			return nil, err
		}
	}
	return f, l.announce(Holder{PID: os.Getpid(), URL: f.URL, OpsURL: f.OpsURL})
}

// launch starts a part. A part that ends without being asked closes Failed.
func (f *Farm) launch(ctx context.Context, name string, do func(ctx context.Context, ready func()) error) *part {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &part{name: name, ready: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		err := do(life, sync.OnceFunc(func() { close(p.ready) }))
		switch {
		case err != nil:
			p.err = fmt.Errorf("%s: %w", name, err)
		case life.Err() == nil:
			p.err = fmt.Errorf("%s ended by itself", name)
		}
		if life.Err() == nil {
			f.failedOnce.Do(func() { close(f.failed) })
		}
	}()
	f.close = append(f.close, func() error {
		cancel()
		<-p.done
		return p.err
	})
	return p
}

// await waits until a part is ready. What it ended with instead, Close returns.
func (f *Farm) await(ctx context.Context, p *part) error {
	select {
	case <-p.ready:
		f.log.InfoContext(ctx, "started", "part", p.name)
		return nil
	case <-f.failed:
		return errors.New("the farm did not start")
	case <-ctx.Done():
		return fmt.Errorf("start %s: %w", p.name, ctx.Err())
	}
}

// Failed is closed when a part of the farm ended without being asked to. Close
// returns why.
func (f *Farm) Failed() <-chan struct{} { return f.failed }

// Close stops the farm in the reverse order of its start, so that nothing
// loses what it stands on, and waits for it.
func (f *Farm) Close() error {
	var errs []error
	for _, stop := range slices.Backward(f.close) {
		errs = append(errs, stop())
	}
	f.close = nil
	return errors.Join(errs...)
}
