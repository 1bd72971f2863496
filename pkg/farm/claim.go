package farm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/jobs"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/progress"
	"github.com/vidforge/vidforge/pkg/render"
)

var (
	// ErrNoLongerWanted is the cause of a claim's context when the render was
	// cancelled, has failed, or went on without this work.
	ErrNoLongerWanted = errors.New("farm: the work is no longer wanted")
	// ErrClaimLost is the cause of a claim's context when no beat succeeded
	// for so long that another worker may hold the work.
	ErrClaimLost = errors.New("farm: the claim is lost")
)

// Claim is a piece of work that this process does now. Exactly one of Complete,
// Fail and HandBack ends it; each of them stops the claim's beats.
type Claim struct {
	Work render.Work
	// Record is the render (nil for a probe), Asset the asset of a probe.
	Record *render.Record
	Asset  *render.Asset
	// Attempt is the attempt's random id, for object keys; Number counts the
	// attempts at this work from 1.
	Attempt string
	Number  int
	Trace   render.TraceContext
	// Enqueued is when the message was published.
	Enqueued time.Time

	farm     *Farm
	worker   string
	delivery jobs.Delivery
	lease    ledger.Lease
	history  ledger.History
	ctx      context.Context //nolint:containedctx // the claim is a lifetime
	cancel   context.CancelCauseFunc
	stop     chan struct{}
	stopOnce sync.Once
	beats    sync.WaitGroup
}

// Claim waits up to wait for a piece of work of a class and takes it: its
// message, its lease, and a place in its history. What turns out to be done, or
// not wanted any more, is settled on the way. jobs.ErrNone when there is nothing
// to do. The claim beats by itself until it is ended.
func (f *Farm) Claim(ctx context.Context, class render.Class, worker string, wait time.Duration) (*Claim, error) {
	d, err := f.stores.Jobs.Fetch(ctx, class, wait)
	if err != nil {
		return nil, fmt.Errorf("fetch %s work: %w", class, err)
	}
	c := &Claim{
		Work: d.Message().Work, Trace: d.Message().Trace, Enqueued: d.Message().Enqueued,
		Attempt: render.NewAttemptID(), farm: f, worker: worker, delivery: d, stop: make(chan struct{}),
	}
	c.hit(failpoint.ClaimFetched)
	taken, err := c.take(ctx)
	if errors.Is(err, ledger.ErrLeased) {
		// Its holder died a moment ago, or is slow and will lose the message.
		if err := d.Handback(context.WithoutCancel(ctx), leasedDelay); err != nil {
			return nil, fmt.Errorf("hand back %s %s, which is leased: %w", c.Work.Stage, c.Work.Owner(), err)
		}
		return nil, jobs.ErrNone
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("claim %s %s: %w", c.Work.Stage, c.Work.Owner(), err), c.untake(ctx))
	}
	if !taken {
		return nil, jobs.ErrNone
	}
	c.hit(failpoint.ClaimOpened)
	c.ctx, c.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	c.beats.Go(c.beat)
	return c, nil
}

// Context is the claim's lifetime: it ends when the work is no longer wanted or
// the claim is lost; context.Cause tells which. It does not end with the context
// of Claim: a worker that stops decides itself what becomes of its claims.
func (c *Claim) Context() context.Context { return c.ctx }

// hit is a failpoint of the claim's stage.
func (c *Claim) hit(p failpoint.Point) { failpoint.HitFor(p, string(c.Work.Stage)) }

// take does the reads and writes of a claim; false means that the message was
// settled because there is nothing to do.
func (c *Claim) take(ctx context.Context) (bool, error) {
	wanted, err := c.wanted(ctx)
	if err != nil {
		return false, err
	}
	if !wanted {
		return false, c.settleDone(ctx)
	}
	if _, err := c.farm.stores.Ledger.GetResult(ctx, c.Work); err == nil {
		return false, c.settleDone(ctx)
	} else if !errors.Is(err, ledger.ErrNotFound) {
		return false, fmt.Errorf("look for a result: %w", err)
	}
	c.lease, err = c.farm.stores.Ledger.LeaseWork(ctx, c.Work, c.worker+"/"+c.Attempt)
	if err != nil {
		return false, fmt.Errorf("lease: %w", err)
	}
	c.hit(failpoint.ClaimLeased)
	c.history, err = c.farm.stores.Ledger.OpenAttempt(ctx, c.Work, ledger.Attempt{ID: c.Attempt, Worker: c.worker, Opened: c.farm.now()})
	if err != nil {
		return false, fmt.Errorf("open the attempt: %w", err)
	}
	c.Number = len(c.history.Attempts)
	if reason := c.farm.exhausted(c.history); reason != "" {
		err := c.giveUp(ctx, &render.Failure{Code: render.CodeRenderFailed, Stage: c.Work.Stage, Temporary: true,
			Message: "The farm could not finish this render; submitting it again may succeed.", Reason: reason})
		if err == nil {
			c.release(ctx)
		}
		return false, err
	}
	if c.Record != nil {
		entry, _, err := c.farm.change(ctx, c.Work.Tenant, c.Work.Task, func(rec *render.Record) render.Event {
			if rec.State != render.StateQueued {
				return nil
			}
			return render.Claimed{}
		})
		if err != nil {
			return false, fmt.Errorf("mark as begun: %w", err)
		}
		c.Record = entry.Record
	}
	return true, nil
}

// untake offers a work that was not taken and not settled again soon, to
// anybody. What failed may be no more than that the worker was asked to stop.
func (c *Claim) untake(ctx context.Context) error {
	ctx, cancel := detached(ctx)
	defer cancel()
	var errs []error
	if c.lease != nil {
		_, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeHandback, "the claim failed")
		if !errors.Is(err, ledger.ErrNotFound) { // it was not opened
			errs = append(errs, err)
		}
		errs = append(errs, c.lease.Release(ctx))
	}
	return errors.Join(append(errs, c.delivery.Handback(ctx, retryDelay(1)))...)
}

// exhausted says why a work is given up, "" while it is not.
func (f *Farm) exhausted(h ledger.History) string {
	switch {
	case h.Count(ledger.OutcomeLost) >= f.cfg.MaxLost:
		return fmt.Sprintf("%d workers vanished during this stage", h.Count(ledger.OutcomeLost))
	case h.Workers(ledger.OutcomeFailed) >= f.cfg.MaxAttempts:
		return fmt.Sprintf("the stage failed on %d workers", h.Workers(ledger.OutcomeFailed))
	case h.Count(ledger.OutcomeFailed) >= 2*f.cfg.MaxAttempts:
		return fmt.Sprintf("the stage failed %d times", h.Count(ledger.OutcomeFailed))
	case faults(h) >= 2*f.cfg.MaxLost:
		return fmt.Sprintf("workers could not do the stage %d times", faults(h))
	}
	return ""
}

// faultPrefix begins the reason of an attempt that was handed back because its
// worker could not do it. Such hand-backs are bounded, unlike others: what looks
// like the worker's fault may be the job's, such as one that needs more memory
// than any worker has.
const faultPrefix = "worker: "

func faults(h ledger.History) int {
	n := 0
	for _, a := range h.Attempts {
		if a.Outcome == ledger.OutcomeHandback && strings.HasPrefix(a.Reason, faultPrefix) {
			n++
		}
	}
	return n
}

// wanted reads the record (or asset) and reports whether it waits for the work.
func (c *Claim) wanted(ctx context.Context) (bool, error) {
	if c.Work.Stage == render.StageProbe {
		entry, err := c.farm.stores.Ledger.GetAsset(ctx, c.Work.Tenant, c.Work.Asset)
		if errors.Is(err, ledger.ErrNotFound) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read the asset: %w", err)
		}
		c.Asset = entry.Asset
		return entry.Asset.State == render.AssetProbing, nil
	}
	entry, err := c.farm.stores.Ledger.GetRender(ctx, c.Work.Tenant, c.Work.Task)
	if errors.Is(err, ledger.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the render: %w", err)
	}
	c.Record = entry.Record
	return entry.Record.Wants(c.Work), nil
}

// settleDone acknowledges the message of a work that is done or not wanted,
// after its follow-ups were published once more: whoever did it may have died
// before that.
func (c *Claim) settleDone(ctx context.Context) error {
	if err := c.farm.follow(ctx, c.Work); err != nil {
		return err
	}
	c.hit(failpoint.ClaimDone)
	if err := c.delivery.Ack(ctx); err != nil {
		return fmt.Errorf("acknowledge finished work: %w", err)
	}
	return nil
}

// follow publishes what comes after a finished work.
func (f *Farm) follow(ctx context.Context, w render.Work) error {
	if w.Stage == render.StageProbe {
		return f.advanceAsset(ctx, w)
	}
	err := f.advance(ctx, w.Tenant, w.Task, true)
	if render.CodeOf(err) == render.CodeRenderNotFound {
		return nil
	}
	return err
}

// beat keeps message and lease, and ends the claim's context when the record
// does not want the work any more or when no beat succeeded for beatsInTime periods.
func (c *Claim) beat() {
	every := c.farm.cfg.Tuning.BeatEvery
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	last := time.Now()
	for {
		select {
		case <-c.stop:
			return
		case <-ticker.C:
		}
		ctx, cancel := context.WithTimeout(c.ctx, every)
		err := c.beatOnce(ctx)
		cancel()
		switch {
		case err == nil:
			last = time.Now()
		case errors.Is(err, ErrNoLongerWanted), errors.Is(err, ErrClaimLost):
			c.cancel(err)
			return
		case time.Since(last) > beatsInTime*every:
			c.cancel(fmt.Errorf("%w: no beat for %s: %w", ErrClaimLost, time.Since(last).Round(time.Second), err))
			return
		default:
			c.farm.log.Warn("beat failed", "render_id", c.Work.Owner(), "stage", c.Work.Stage, "error", err)
		}
	}
}

func (c *Claim) beatOnce(ctx context.Context) error {
	if err := c.lease.Renew(ctx); err != nil {
		if errors.Is(err, ledger.ErrLeaseLost) {
			return fmt.Errorf("%w: %w", ErrClaimLost, err)
		}
		return fmt.Errorf("renew the lease: %w", err)
	}
	if err := c.delivery.InProgress(ctx); err != nil {
		return fmt.Errorf("extend the delivery: %w", err)
	}
	probe := Claim{Work: c.Work, farm: c.farm}
	wanted, err := probe.wanted(ctx)
	if err != nil {
		return err
	}
	if !wanted {
		return ErrNoLongerWanted
	}
	return nil
}

// Interrupt ends the claim's context with ErrNoLongerWanted, for a cancel
// signal that came faster than the next beat.
func (c *Claim) Interrupt() { c.cancel(ErrNoLongerWanted) }

// Workers lists the workers that are alive, as far as it is known.
func (c *Claim) Workers(ctx context.Context) ([]progress.Worker, error) { return c.farm.Workers(ctx) }

// Unfinished counts the works of a class that wait or run.
func (c *Claim) Unfinished(ctx context.Context, class render.Class) (int, error) {
	n, err := c.farm.stores.Jobs.Unfinished(ctx, class)
	if err != nil {
		return 0, unavailable("count works", err)
	}
	return n, nil
}

// Report sends a progress sample; the claim fills in who and what. It never
// fails the work: the numbers are disposable.
func (c *Claim) Report(ctx context.Context, s progress.Sample) {
	s.Work, s.Worker, s.Attempt, s.At = c.Work, c.worker, c.Number, c.farm.now()
	if err := c.farm.stores.Progress.Report(ctx, s); err != nil {
		c.farm.log.DebugContext(ctx, "report progress", "render_id", c.Work.Owner(), "error", err)
	}
}

func (c *Claim) endBeats() {
	c.stopOnce.Do(func() { close(c.stop) })
	c.beats.Wait()
}

// Complete records the result of the work: the first one counts. It then moves
// the render on, publishes what follows, and acknowledges. counts is false when
// another attempt was first; then the objects of this one are removed. An error
// means that the message stays and somebody will look again.
func (c *Claim) Complete(res *render.StageResult) (counts bool, err error) {
	ctx, cancel := detached(c.ctx)
	defer cancel()
	defer c.cancel(nil)
	defer c.endBeats()
	res.Work, res.Attempt, res.Worker, res.Finished = c.Work, c.Attempt, c.worker, c.farm.now()
	first, mine, err := c.farm.stores.Ledger.PutResult(ctx, res)
	if err != nil {
		return false, fmt.Errorf("record the result of %s %s: %w", c.Work.Stage, c.Work.Owner(), err)
	}
	c.hit(failpoint.CompleteRecorded)
	mine = mine || first.Attempt == c.Attempt
	if !mine {
		failpoint.Hit(failpoint.CompleteSecond)
		c.removeObjects(ctx, res)
	}
	if _, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeDone, ""); err != nil {
		c.farm.log.WarnContext(ctx, "close the attempt", "render_id", c.Work.Owner(), "error", err)
	}
	c.hit(failpoint.CompleteClosed)
	// Of a work that another did, the message may be another's by now: it may be
	// acknowledged only when what follows was published.
	if err := c.finished(ctx, !mine); err != nil {
		return mine, err
	}
	c.hit(failpoint.CompleteAdvanced)
	if err := c.delivery.Ack(ctx); err != nil {
		return mine, fmt.Errorf("acknowledge %s %s: %w", c.Work.Stage, c.Work.Owner(), err)
	}
	c.hit(failpoint.CompleteAcked)
	c.release(ctx)
	return mine, nil
}

// finished moves the render (or asset) on after a result; again as for advance.
func (c *Claim) finished(ctx context.Context, again bool) error {
	if c.Work.Stage == render.StageProbe {
		return c.farm.advanceAsset(ctx, c.Work)
	}
	err := c.farm.advance(ctx, c.Work.Tenant, c.Work.Task, again)
	if render.CodeOf(err) == render.CodeRenderNotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return c.removeLate(ctx)
}

// removeLate deletes what came after the render had failed or was cancelled,
// when its leftovers were removed already.
func (c *Claim) removeLate(ctx context.Context) error {
	if c.farm.worker() {
		return nil // it may not delete: the sweep does
	}
	entry, err := c.farm.entry(ctx, c.Work.Tenant, c.Work.Task)
	if err != nil {
		return err
	}
	if s := entry.Record.State; !s.Terminal() || s == render.StateSucceeded {
		return nil
	}
	return c.farm.removeLeftovers(ctx, entry.Record)
}

// removeObjects deletes what an attempt that does not count has stored.
func (c *Claim) removeObjects(ctx context.Context, res *render.StageResult) {
	if c.farm.worker() {
		return // it may not delete: the sweep does
	}
	var keys []string
	for _, o := range []render.Object{res.Object, res.Overlay} {
		if o.Key != "" {
			keys = append(keys, o.Key)
		}
	}
	if err := c.farm.stores.Blobs.Delete(ctx, keys...); err != nil {
		c.farm.log.WarnContext(ctx, "remove objects of an attempt that does not count", "render_id", c.Work.Owner(), "error", err)
	}
}

// Fail ends the claim with an error, by whose fault it was: the source's or the
// caller's ends the render at once; the job's is tried again elsewhere until the
// limits are reached; the worker's or the farm's goes back uncounted. After the
// claim was lost or became unwanted, Fail leaves everything to others.
func (c *Claim) Fail(cause error) error {
	ctx, cancel := detached(c.ctx)
	defer cancel()
	defer c.cancel(nil)
	stopped := context.Cause(c.ctx)
	c.endBeats()
	switch {
	case errors.Is(stopped, ErrClaimLost):
		return nil // neither ack nor nak: it may settle another's delivery
	case errors.Is(stopped, ErrNoLongerWanted):
		c.release(ctx)
		return c.settleIfDone(ctx)
	}
	e := render.AsError(cause)
	switch e.Blame {
	case render.BlameSource, render.BlameCaller:
		if _, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeFailed, e.Error()); err != nil {
			return fmt.Errorf("close the attempt: %w", err)
		}
		failpoint.Hit(failpoint.FailClosed)
		defer c.release(ctx)
		return c.giveUp(ctx, failureOf(e, c.Work.Stage))
	case render.BlameWorker:
		return c.handBack(ctx, faultPrefix+e.Error(), retryDelay(faults(c.history)))
	case render.BlameFarm:
		return c.handBack(ctx, e.Error(), retryDelay(c.history.Count(ledger.OutcomeHandback)))
	default:
		return c.failJob(ctx, e)
	}
}

func (c *Claim) failJob(ctx context.Context, e *render.Error) error {
	h, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeFailed, e.Error())
	if err != nil {
		return fmt.Errorf("close the attempt: %w", err)
	}
	failpoint.Hit(failpoint.FailClosed)
	c.farm.log.WarnContext(ctx, "stage failed", "render_id", c.Work.Owner(), "stage", c.Work.Stage, "attempt", c.Number, "error", e)
	defer c.release(ctx)
	if c.farm.exhausted(h) != "" || c.fallsBack() {
		failure := failureOf(e, c.Work.Stage)
		failure.Temporary = true
		return c.giveUp(ctx, failure)
	}
	if err := c.delivery.Handback(ctx, retryDelay(h.Count(ledger.OutcomeFailed))); err != nil {
		return fmt.Errorf("offer the work again: %w", err)
	}
	return nil
}

func failureOf(e *render.Error, stage render.Stage) *render.Failure {
	f := &render.Failure{Code: e.Code, Message: e.Message, Temporary: e.Temporary, Stage: stage}
	if f.Code == render.CodeInternalError {
		f.Code, f.Message = render.CodeRenderFailed, "The farm could not finish this render; submitting it again may succeed."
	}
	if e.Details != nil {
		f.Field, f.Reason = e.Details.Field, e.Details.Reason
		if lines, ok := e.Details.Extra[DetailLogTail].([]string); ok {
			f.LogTail = lines
		}
	}
	return f
}

// DetailLogTail is the member of an error's Details.Extra that carries the
// encoder's last lines ([]string) into the render's failure.
const DetailLogTail = "log_tail"

// fallsBack reports whether the render begins its encoding again, without
// hardware, when this work is given up: whatever the failure looks like, if it
// is the source's it comes again.
func (c *Claim) fallsBack() bool {
	return c.Record != nil && c.Record.FallsBack() && (c.Work.Stage == render.StageSegment || c.Work.Stage == render.StageAssemble)
}

// giveUp buries the work and fails the render (or marks the asset, or begins
// without hardware), then acknowledges.
func (c *Claim) giveUp(ctx context.Context, failure *render.Failure) error {
	back := c.fallsBack()
	if describe := render.Describe(failure.Code); describe.Temporary && !back {
		if err := c.farm.stores.Jobs.Bury(ctx, jobs.DeadLetter{Work: c.Work, Reason: failure.Reason, Failure: failure, At: c.farm.now()}); err != nil {
			return fmt.Errorf("bury: %w", err)
		}
		failpoint.Hit(failpoint.FailBuried)
	}
	if c.Work.Stage == render.StageProbe {
		facts := &render.Facts{Kind: "other", Reason: failure.Message, Code: failure.Code, Video: -1, Audio: -1}
		if _, _, err := c.farm.stores.Ledger.PutResult(ctx, &render.StageResult{Work: c.Work, Attempt: c.Attempt, Worker: c.worker, Finished: c.farm.now(), Facts: facts}); err != nil {
			return fmt.Errorf("record the failed probe: %w", err)
		}
		return c.settleDone(ctx)
	}
	entry, _, err := c.farm.change(ctx, c.Work.Tenant, c.Work.Task, func(rec *render.Record) render.Event {
		if !rec.Wants(c.Work) {
			return nil
		}
		if back {
			return render.Restarted{Generation: c.Work.Generation, Reason: failure.Message}
		}
		return render.Failed{Failure: *failure}
	})
	if err != nil && render.CodeOf(err) != render.CodeRenderNotFound {
		return fmt.Errorf("fail the render: %w", err)
	}
	if err == nil {
		if err := c.farm.settle(ctx, entry.Record); err != nil {
			return fmt.Errorf("settle: %w", err)
		}
	}
	failpoint.Hit(failpoint.FailSettled)
	if err := c.delivery.Ack(ctx); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	return nil
}

// HandBack ends the claim without a result and without blame, for instance
// because the worker stops; another may take the work at once.
func (c *Claim) HandBack(reason string) error {
	ctx, cancel := detached(c.ctx)
	defer cancel()
	defer c.cancel(nil)
	stopped := context.Cause(c.ctx)
	c.endBeats()
	if errors.Is(stopped, ErrClaimLost) {
		return nil
	}
	return c.handBack(ctx, reason, 0)
}

func (c *Claim) handBack(ctx context.Context, reason string, delay time.Duration) error {
	if _, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeHandback, reason); err != nil {
		return fmt.Errorf("close the attempt: %w", err)
	}
	failpoint.Hit(failpoint.HandbackClosed)
	c.release(ctx)
	failpoint.Hit(failpoint.HandbackReleased)
	if err := c.delivery.Handback(ctx, delay); err != nil {
		return fmt.Errorf("hand back: %w", err)
	}
	return nil
}

// settleIfDone acknowledges a message only if a leader read says that nobody
// waits for its work.
func (c *Claim) settleIfDone(ctx context.Context) error {
	if _, err := c.farm.stores.Ledger.CloseAttempt(ctx, c.Work, c.Attempt, ledger.OutcomeHandback, "no longer wanted"); err != nil {
		return fmt.Errorf("close the attempt: %w", err)
	}
	wanted, err := c.wanted(ctx)
	if err != nil {
		return err
	}
	if wanted {
		if err := c.delivery.Handback(ctx, 0); err != nil {
			return fmt.Errorf("hand back: %w", err)
		}
		return nil
	}
	return c.settleDone(ctx)
}

func (c *Claim) release(ctx context.Context) {
	if err := c.lease.Release(ctx); err != nil {
		c.farm.log.WarnContext(ctx, "release the lease", "render_id", c.Work.Owner(), "error", err)
	}
}

// leasedDelay is how long a work that somebody else holds is left alone.
const leasedDelay = 2 * time.Second

// retryDelay grows from one second to a minute.
func retryDelay(n int) time.Duration {
	return min(time.Minute, time.Second<<min(max(0, n), 6))
}
