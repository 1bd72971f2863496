package farm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

const (
	timerWait = 5 * time.Second
	// slotGrace is how long a slot may be held without a record: a submit
	// takes the slot before it writes the record.
	slotGrace = 2 * time.Minute
)

// Run does the farm's own work until ctx ends: dispatchers of every class,
// timers, the feed of watchers, the settling of ends, reconciliation, sweeps. Any number of processes may run
// it at once.
func (f *Farm) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	ends := make(endings, maxEndings)
	for _, class := range render.Classes() {
		g.Go(func() error {
			return f.keep(ctx, "dispatch "+string(class), func(ctx context.Context) error { return f.stores.Jobs.Dispatch(ctx, class) })
		})
	}
	g.Go(func() error {
		return f.keep(ctx, "watch renders", func(ctx context.Context) error {
			return f.stores.Ledger.WatchRenders(ctx, func(sign ledger.Sign) {
				f.hub.wake(sign.ID)
				if sign.Ended {
					ends.add(sign)
				}
			})
		})
	})
	g.Go(func() error {
		f.settleEnds(ctx, ends)
		return nil
	})
	g.Go(func() error { return f.keep(ctx, "timers", f.fireTimers) })
	g.Go(func() error { return f.keep(ctx, "reconcile", f.reconcileForever) })
	g.Go(func() error { return f.keep(ctx, "sweep", f.sweepForever) })
	if err := g.Wait(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("run the farm: %w", err)
	}
	return nil
}

// keep runs fn again, with a growing pause, whenever it fails before ctx ends.
func (f *Farm) keep(ctx context.Context, what string, fn func(context.Context) error) error {
	for n := 0; ; n++ {
		err := fn(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // it was told to end
		}
		f.log.WarnContext(ctx, "interrupted, goes on", "part", what, "error", err)
		if !sleep(ctx, retryDelay(min(n, 4))) {
			return nil
		}
	}
}

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (f *Farm) fireTimers(ctx context.Context) error {
	for {
		t, ack, err := f.stores.Jobs.FetchTimer(ctx, timerWait)
		if errors.Is(err, jobs.ErrNone) {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was told to end
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("fetch a timer: %w", err)
		}
		if err := f.advance(ctx, t.Tenant, t.Task, false); err != nil && render.CodeOf(err) != render.CodeRenderNotFound {
			return err
		}
		failpoint.Hit(failpoint.TimerAdvanced)
		if err := ack(ctx); err != nil {
			return fmt.Errorf("acknowledge a timer: %w", err)
		}
	}
}

// fullPass is how many quick passes, over the renders that hold a slot, come
// for one over every record: finished ones are kept for a week and are many.
const fullPass = 20

func (f *Farm) reconcileForever(ctx context.Context) error {
	for n := 0; ; n++ {
		pass := f.reconcileSoon
		if n%fullPass == 0 {
			pass = f.Reconcile
		}
		if err := f.reconcileAsLeader(ctx, pass); err != nil {
			return err
		}
		every := f.cfg.Tuning.ReconcileEvery
		if !sleep(ctx, every/2+rand.N(every)) { //nolint:gosec // jitter
			return nil
		}
	}
}

// reconcileAsLeader spares the farm of many processes that all look at
// everything; correctness does not depend on the lease.
func (f *Farm) reconcileAsLeader(ctx context.Context, pass func(context.Context) error) error {
	lease, err := f.stores.Ledger.LeaseName(ctx, "reconcile", f.cfg.Holder)
	if errors.Is(err, ledger.ErrLeased) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("lease reconciliation: %w", err)
	}
	failpoint.Hit(failpoint.ReconcileLeased)
	err = pass(ctx)
	if rerr := lease.Release(context.WithoutCancel(ctx)); rerr != nil {
		f.log.WarnContext(ctx, "release reconciliation", "error", rerr)
	}
	return err
}

// Reconcile looks once at everything that is not finished: it moves on what has
// its results, publishes what may not have been published, times out what is
// overdue, keeps its assets from expiring, and frees slots that nobody uses. It is safe at any time, also twice
// at once.
func (f *Farm) Reconcile(ctx context.Context) error {
	for entry, err := range f.stores.Ledger.Renders(ctx) {
		if err != nil {
			return fmt.Errorf("reconcile renders: %w", err)
		}
		rec := entry.Record
		if rec.State.Terminal() {
			continue
		}
		if err := errors.Join(f.advance(ctx, rec.Tenant, rec.ID, true), f.holdInputs(ctx, rec)); err != nil {
			f.log.WarnContext(ctx, "reconcile", "render_id", rec.ID, "error", err)
		}
	}
	for entry, err := range f.stores.Ledger.Assets(ctx) {
		if err != nil {
			return fmt.Errorf("reconcile assets: %w", err)
		}
		if entry.Asset.State != render.AssetProbing {
			continue
		}
		if err := errors.Join(f.advanceAsset(ctx, probeWork(entry.Asset)), f.enqueueProbe(ctx, entry.Asset, render.TraceContext{})); err != nil {
			f.log.WarnContext(ctx, "reconcile", "asset", entry.Asset.ID, "error", err)
		}
	}
	return f.reconcileSoon(ctx)
}

// reconcileSoon is the quick pass: what is under way, and what is set aside for
// it.
func (f *Farm) reconcileSoon(ctx context.Context) error {
	return errors.Join(f.reconcileSlots(ctx), f.reconcileTime(ctx))
}

// reconcileSlots reconciles the renders that hold a slot, which is every one
// that is not finished, and frees the slots that nobody uses.
func (f *Farm) reconcileSlots(ctx context.Context) error {
	for holder, err := range f.stores.Ledger.Slots(ctx) {
		if err != nil {
			return fmt.Errorf("reconcile slots: %w", err)
		}
		if err := f.reconcileSlot(ctx, holder); err != nil {
			f.log.WarnContext(ctx, "reconcile", "render_id", holder.Task, "error", err)
		}
	}
	return nil
}

// reconcileSlotsOf settles those of a tenant's renders that have ended, which
// frees their slots.
func (f *Farm) reconcileSlotsOf(ctx context.Context, tenant render.Tenant) error {
	for holder, err := range f.stores.Ledger.Slots(ctx) {
		if err != nil {
			return fmt.Errorf("read slots: %w", err)
		}
		if holder.Tenant != tenant {
			continue
		}
		entry, err := f.stores.Ledger.GetRender(ctx, tenant, holder.Task)
		if errors.Is(err, ledger.ErrNotFound) {
			continue // perhaps not yet; see slotGrace
		}
		if err != nil {
			return fmt.Errorf("read a render: %w", err)
		}
		if !entry.Record.State.Terminal() {
			continue
		}
		if err := f.settle(ctx, entry.Record); err != nil {
			return err
		}
	}
	return nil
}

func (f *Farm) reconcileSlot(ctx context.Context, holder ledger.SlotHolder) error {
	err := f.advance(ctx, holder.Tenant, holder.Task, true)
	failpoint.Hit(failpoint.ReconcileAdvanced)
	if err == nil {
		var entry ledger.RenderEntry
		if entry, err = f.entry(ctx, holder.Tenant, holder.Task); err == nil && !entry.Record.State.Terminal() {
			return nil
		}
	}
	missing := render.CodeOf(err) == render.CodeRenderNotFound
	if err != nil && !missing {
		return err
	}
	if missing && f.cfg.Now().Sub(holder.Taken) < slotGrace {
		return nil
	}
	// Settling a finished render freed the slot that its record names; a second
	// submit of its key may have taken another one for it.
	if err := f.stores.Ledger.FreeSlot(ctx, holder.Tenant, holder.Slot, holder.Task); err != nil {
		return fmt.Errorf("free a slot: %w", err)
	}
	return nil
}
