// Package worker does the farm's work: it claims stages and carries them out
// with ffmpeg. Any number of workers may run; one that dies costs the stage that
// it was at.
package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/blob"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ops"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/telemetry"
	"github.com/vidforge/vidforge/worker/internal/encoder"
	"github.com/vidforge/vidforge/worker/internal/ffmpeg"
	"github.com/vidforge/vidforge/worker/internal/gate"
	"github.com/vidforge/vidforge/worker/internal/scratch"
	"github.com/vidforge/vidforge/worker/internal/stage"
)

// Config of a worker process.
type Config struct {
	// Endpoints of the farm's servers.
	Endpoints farm.Endpoints
	// Tuning is what the programs of a farm agree on.
	Tuning farm.Tuning
	// ID names the worker in leases, results and listings. Defaults to the
	// host's name and a random part.
	ID string
	// Version is shown in listings.
	Version string
	// OpsListen is the address of /healthz, /readyz and /metrics; port 0 is any
	// free one. Empty: there is none.
	OpsListen string
	// Registry holds what /metrics shows. Defaults to a new one.
	Registry *prometheus.Registry `json:"-"`
	// Slots is how many encoding stages run at once. Defaults to 2: ffmpeg
	// uses all cores by itself, but the sound need not wait for the picture.
	Slots int
	// PreviewSlots is how many short stages (probe, preview, plan) run at
	// once beside them, so that a person does not wait for an encode.
	// Defaults to 1.
	PreviewSlots int
	// ScratchDir holds the files of running jobs. Defaults to the system's
	// temporary directory.
	ScratchDir string
	// ScratchFree is how many bytes must be free where ScratchDir is for the
	// worker to take work. Defaults to 512 MiB.
	ScratchFree int64
	// Devices are the graphics devices that encode: "auto" for those that there
	// are, "none", or a list such as "nvidia:0,dri:/dev/dri/renderD128". Each of
	// them is tried at start. Defaults to auto.
	Devices string
	// Policy bounds plans.
	Policy render.Policy
	// Grace is how long running stages may go on after the worker was asked
	// to stop, before they are handed back. Zero hands back at once.
	Grace time.Duration
	// Ready is called once when the worker takes work. Optional.
	Ready func() `json:"-"`
	// Logger defaults to slog.Default().
	Logger *slog.Logger `json:"-"`
}

// fetchWait is how long one pull waits for work.
const fetchWait = 10 * time.Second

// devicesDir is where device nodes are.
const devicesDir = "/dev"

// beatEvery is how often a worker says that it lives.
const beatEvery = 10 * time.Second

// Run takes work until ctx ends, then hands back or finishes what runs (see
// Config.Grace). It returns an error only when it cannot start.
func Run(ctx context.Context, cfg Config) (err error) {
	cfg.Slots = cmp.Or(cfg.Slots, 2)
	cfg.PreviewSlots = cmp.Or(cfg.PreviewSlots, 1)
	cfg.ScratchFree = cmp.Or(cfg.ScratchFree, 512<<20)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.ID == "" {
		host, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("worker id: %w", err)
		}
		cfg.ID = host + "-" + render.NewAttemptID()[:6]
	}
	tools, err := ffmpeg.Find(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end before it began
		}
		return fmt.Errorf("find ffmpeg: %w", err)
	}
	found, _ := encoder.Found(tools)
	if lacks := lacking(tools); len(lacks) > 0 {
		// Work that needs one goes back for another worker.
		cfg.Logger.WarnContext(ctx, "this worker cannot do all renders: its ffmpeg was built without something", "version", tools.Version, "lacks", lacks)
	}
	dir, err := scratch.Open(cfg.ScratchDir)
	if err != nil {
		return fmt.Errorf("open scratch: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	prover := encoder.Prover{Tools: tools, Scratch: dir.Path(), Cache: encoder.CacheFile(filepath.Dir(dir.Path()))}
	devices, err := proveDevices(ctx, cfg, prover)
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end before it began
		}
		return err
	}
	operators, err := serveOperators(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, operators.Close()) }()
	backends, err := farm.Dial(ctx, cfg.Endpoints, farm.DialOptions{
		Name: "vidforge-worker " + cfg.ID, Role: access.Worker, Tuning: cfg.Tuning, Logger: cfg.Logger,
		Waits: func(store string) { operators.NotReady("waits for " + store) },
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil // it was told to end before it began
		}
		return fmt.Errorf("reach the stores: %w", err)
	}
	defer func() { err = errors.Join(err, backends.Close()) }()
	metrics, err := telemetry.NewMetrics()
	if err != nil {
		return fmt.Errorf("make metrics: %w", err)
	}
	w := &worker{
		cfg: cfg, log: cfg.Logger.With("worker", cfg.ID), started: time.Now(), encoders: found, devices: devices, prover: prover,
		farm:    farm.New(backends.Stores, farm.Config{Role: access.Worker, Policy: cfg.Policy, Tuning: cfg.Tuning, Metrics: metrics, Logger: cfg.Logger, Holder: cfg.ID}),
		stores:  backends.Stores,
		running: map[*farm.Claim]struct{}{},
		ops:     operators,
	}
	w.blobs = w.gate(ctx, "object store", metrics, w.stores.Blobs.Ping)
	w.space = w.gate(ctx, "scratch space", metrics, func(context.Context) error { return room(dir, cfg.ScratchFree) })
	w.runner = &stage.Runner{
		Tools: tools, Scratch: dir, Policy: cfg.Policy, Metrics: metrics, Logger: cfg.Logger,
		Patience: patience, Trouble: w.blobs.Close,
	}
	return w.run(ctx)
}

// patience is the least time for which a finished stage waits for the object
// store.
const patience = time.Minute

func (w *worker) gate(ctx context.Context, name string, m *telemetry.Metrics, check func(context.Context) error) *gate.Gate {
	return gate.New(gate.Config{
		Name: name, Check: check, Logger: w.log,
		Changed: func(closed bool) { m.WorkerPaused(context.WithoutCancel(ctx), name, closed) },
	})
}

// room is an error while there is less space than a worker needs to begin.
func room(dir *scratch.Dir, least int64) error {
	free, err := dir.Free()
	if err == nil && free < least {
		err = fmt.Errorf("%w: %d bytes are free in %s, less than %d; make room there, or change the settings scratch-dir or scratch-free", scratch.ErrFull, free, dir.Path(), least)
	}
	return err
}

// operators is who is told whether the worker takes work.
type operators interface {
	NotReady(reason string)
	Ready(check func(context.Context) error)
	Close() error
}

// nobody asks.
type nobody struct{}

func (nobody) NotReady(string)                   {}
func (nobody) Ready(func(context.Context) error) {}
func (nobody) Close() error                      { return nil }

func serveOperators(ctx context.Context, cfg Config) (operators, error) {
	if cfg.OpsListen == "" {
		return nobody{}, nil
	}
	s, err := ops.Start(ctx, ops.Options{Listen: cfg.OpsListen, Registry: cfg.Registry, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	return s, nil
}

// check asks the stores that nothing goes without.
func (w *worker) check(ctx context.Context) error {
	if err := errors.Join(w.blobs.Err(), w.space.Err()); err != nil {
		return fmt.Errorf("paused: %w", err)
	}
	if err := w.stores.Ledger.Ping(ctx); err != nil {
		return fmt.Errorf("ledger: %w", err)
	}
	if err := w.stores.Blobs.Ping(ctx); err != nil {
		return fmt.Errorf("blob store: %w", err)
	}
	return nil
}

type worker struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	// encoders are the software encoders that this machine's ffmpeg has.
	encoders []string
	devices  []*device
	prover   encoder.Prover
	farm     *farm.Farm
	stores   farm.Stores
	runner   *stage.Runner
	ops      operators
	// blobs and space hold the slots back while the object store is away or
	// the disk is full.
	blobs, space *gate.Gate
	busy         atomic.Int64

	mu      sync.Mutex
	running map[*farm.Claim]struct{}
}

func (w *worker) run(ctx context.Context) error {
	unsubscribe, err := w.stores.Jobs.OnCancel(w.interrupt)
	if err != nil {
		return fmt.Errorf("subscribe to cancels: %w", err)
	}
	defer unsubscribe()
	// Running stages outlive ctx by the grace time.
	work, kill := context.WithCancel(context.WithoutCancel(ctx))
	defer kill()
	stop := context.AfterFunc(ctx, func() {
		if w.cfg.Grace == 0 {
			kill()
			return
		}
		time.AfterFunc(w.cfg.Grace, kill)
	})
	defer stop()
	w.register(ctx) // before it takes work: plans depend on who is there
	var g errgroup.Group
	for range w.cfg.PreviewSlots {
		g.Go(func() error { w.slot(ctx, work, render.ClassPreview, nil); return nil })
	}
	for range w.cfg.Slots {
		g.Go(func() error { w.slot(ctx, work, render.ClassCPU, nil); return nil })
	}
	for _, d := range w.devices {
		g.Go(func() error { w.slot(ctx, work, render.ClassGPU, d); return nil })
	}
	g.Go(func() error { w.beat(ctx); return nil })
	g.Go(func() error { w.blobs.Run(ctx); return nil })
	g.Go(func() error { w.space.Run(ctx); return nil })
	w.log.InfoContext(ctx, "worker takes work", "slots", w.cfg.Slots, "preview_slots", w.cfg.PreviewSlots, "devices", len(w.devices))
	w.ops.Ready(w.check)
	if w.cfg.Ready != nil {
		w.cfg.Ready()
	}
	draining := context.AfterFunc(ctx, func() {
		w.ops.NotReady("draining")
		w.log.Info("worker drains", "running", w.busy.Load(), "grace", w.cfg.Grace.String())
	})
	defer draining()
	return g.Wait()
}

// slot does one piece of work after the other, on a device if it is one's slot.
func (w *worker) slot(ctx, work context.Context, class render.Class, d *device) {
	for failures := 0; ctx.Err() == nil; {
		if !w.open(ctx) {
			continue
		}
		c, err := w.farm.Claim(ctx, class, w.cfg.ID, fetchWait)
		switch {
		case err == nil:
			failures = 0
			if err := w.carryOut(work, c, w.runnerFor(d)); d != nil && deviceFailed(err) {
				w.mend(ctx, d)
			}
		case errors.Is(err, jobs.ErrNone), ctx.Err() != nil:
			failures = 0
		case storeAway(err): // needed to settle what others left half done
			w.blobs.Close(err)
		default:
			w.log.WarnContext(ctx, "claim", "class", class, "error", err)
			failures++
			pause(ctx, min(30*time.Second, 500*time.Millisecond<<min(failures, 6)))
		}
	}
}

// open waits until the worker has what all work needs; false asks to look
// again.
func (w *worker) open(ctx context.Context) bool {
	if err := room(w.runner.Scratch, w.cfg.ScratchFree); err != nil {
		w.space.Close(err)
	}
	w.space.Wait(ctx)
	w.blobs.Wait(ctx)
	return ctx.Err() == nil && w.space.Err() == nil && w.blobs.Err() == nil
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (w *worker) carryOut(work context.Context, c *farm.Claim, runner *stage.Runner) error {
	w.mu.Lock()
	w.running[c] = struct{}{}
	w.mu.Unlock()
	w.busy.Add(1)
	defer func() {
		w.busy.Add(-1)
		w.mu.Lock()
		delete(w.running, c)
		w.mu.Unlock()
	}()
	err := runner.Run(work, c)
	switch {
	case err == nil:
		w.blobs.Passed()
		w.space.Passed()
	case errors.Is(err, scratch.ErrFull), errors.Is(err, scratch.ErrPromised), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		w.space.Close(err)
	case storeAway(err):
		w.blobs.Close(err)
	}
	return err
}

// storeAway reports whether the object store is to blame.
func storeAway(err error) bool {
	return errors.Is(err, blob.ErrUnavailable) || errors.Is(err, blob.ErrRefused)
}

// interrupt stops the stages of a cancelled render before their next beat.
func (w *worker) interrupt(id render.ID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.running {
		if c.Work.Task == id {
			c.Interrupt()
		}
	}
}

// beat registers the worker again and again.
func (w *worker) beat(ctx context.Context) {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			w.register(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) register(ctx context.Context) {
	classes, encoders, devices := w.abilities()
	err := w.stores.Progress.Beat(ctx, progress.Worker{
		ID: w.cfg.ID, Version: w.cfg.Version, Classes: classes,
		Slots: w.cfg.Slots + devices, Busy: int(w.busy.Load()), Encoders: encoders, Devices: devices, Started: w.started, Seen: time.Now(),
	})
	if err != nil && ctx.Err() == nil {
		w.log.DebugContext(ctx, "register", "error", err)
	}
}
