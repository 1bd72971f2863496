package farm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/vidforge/vidforge/pkg/failpoint"
	"github.com/vidforge/vidforge/pkg/ledger"
	"github.com/vidforge/vidforge/pkg/render"
)

// Limits are what one tenant may use.
type Limits struct {
	// MaxConcurrent renders that are not finished, at least 1.
	MaxConcurrent int
	// RenderTime is the length of the videos that may be made in one Window;
	// renders that fail or are cancelled count for nothing. 0: no limit.
	RenderTime time.Duration
	// Window of RenderTime.
	Window render.Window
	// StorageBytes of uploads that are kept at once. 0: no limit.
	StorageBytes int64
}

// Names of limits in details.limit of errors.
const (
	limitConcurrent = "concurrent_renders"
	limitTime       = "render_minutes"
)

const (
	// timeAccount begins the name of the account of a window of render time.
	timeAccount = "time-"
	// holdWait is when a tenant whose quota is held by its own running renders
	// may ask again: nobody knows when one of them ends without a video.
	holdWait = 30 * time.Second
)

// LimitsOf are a tenant's limits as they now are.
func (f *Farm) LimitsOf(tenant render.Tenant) Limits {
	l := Limits{MaxConcurrent: f.cfg.MaxConcurrent, RenderTime: f.cfg.RenderTime, Window: f.cfg.RenderWindow, StorageBytes: f.cfg.StorageBytes}
	if f.cfg.LimitsOf != nil {
		l = f.cfg.LimitsOf(tenant, l)
	}
	return l
}

// quotaError is the refusal of what goes beyond a limit.
func quotaError(limit string, wait time.Duration, extra map[string]any, format string, args ...any) *render.Error {
	e := render.Errorf(render.CodeRenderQuotaExceeded, render.BlameCaller, format, args...)
	e.RetryAfter = wait
	e.Details = &render.Details{Reason: "the quota is used up", Extra: map[string]any{"limit": limit}}
	maps.Copy(e.Details.Extra, extra)
	return e
}

func noSlot(limit int) *render.Error {
	return quotaError(limitConcurrent, holdWait, map[string]any{"max": limit},
		"All %d concurrent renders of this tenant are in use. Wait for one to finish, or cancel one.", limit)
}

// length is how long the output of a spec will be.
func (f *Farm) length(source *render.SourceRef, spec render.Spec) time.Duration {
	return planLength(render.MakePlan(source.Facts, spec, 1, f.cfg.Policy))
}

func planLength(p render.Plan) time.Duration {
	rate := p.FrameRate.Float()
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(p.Frames) / rate * float64(time.Second))
}

// timeHold is what a render needs of its tenant's time, in milliseconds.
func timeHold(rec *render.Record, length time.Duration) render.Hold {
	return render.Hold{ID: string(rec.ID), Amount: max(1, length.Milliseconds()), At: rec.Created}
}

// hasTime refuses a render early if there is no time for it, so that it takes no
// slot; reserveTime decides.
func (f *Farm) hasTime(ctx context.Context, rec *render.Record, length time.Duration) error {
	l := f.LimitsOf(rec.Tenant)
	if l.RenderTime == 0 {
		return nil
	}
	if length > l.RenderTime {
		e := render.Errorf(render.CodeSourceTooLarge, render.BlameCaller,
			"The video would be %.1f s long, longer than the %.1f s that this tenant may make in a %s; render a shorter source.", length.Seconds(), l.RenderTime.Seconds(), l.Window)
		e.Details = &render.Details{Field: "source_asset_uri", Reason: "longer than the quota of a whole " + string(l.Window), Extra: map[string]any{"limit": limitTime, "max_seconds": l.RenderTime.Seconds()}}
		return e
	}
	u, err := f.stores.Ledger.Usage(ctx, rec.Tenant, timeAccount+l.Window.Name(rec.Created))
	if errors.Is(err, ledger.ErrNotFound) {
		return nil
	}
	if err != nil {
		return unavailable("read the used render time", err)
	}
	if u.Hold(timeHold(rec, length), l.RenderTime.Milliseconds()) != nil {
		return f.outOfTime(l, u, length)
	}
	return nil
}

// reserveTime sets aside the time that a render needs, before its record is
// written. What the record never comes to, and what the render does not use, is
// given back: by settleTime, at the latest by reconciliation.
func (f *Farm) reserveTime(ctx context.Context, rec *render.Record, length time.Duration) error {
	l := f.LimitsOf(rec.Tenant)
	if l.RenderTime == 0 {
		return nil
	}
	end := l.Window.End(rec.Created)
	u, err := f.stores.Ledger.ChangeUsage(ctx, rec.Tenant, timeAccount+l.Window.Name(rec.Created), f.keepTime(end), func(u *render.Usage) (bool, error) {
		before := len(u.Holds)
		err := u.Hold(timeHold(rec, length), l.RenderTime.Milliseconds())
		return len(u.Holds) > before, err
	})
	if errors.Is(err, render.ErrOverQuota) {
		return f.outOfTime(l, u, length)
	}
	if err != nil {
		return unavailable("set render time aside", err)
	}
	failpoint.Hit(failpoint.SubmitHeld)
	return nil
}

// keepTime is how long the account of a window that ends then is kept: longer
// than any render that began in it.
func (f *Farm) keepTime(end time.Time) time.Duration {
	return max(0, end.Sub(f.now())) + 2*render.RenderRetention
}

func (f *Farm) outOfTime(l Limits, u render.Usage, length time.Duration) *render.Error {
	now := f.now()
	wait := l.Window.End(now).Sub(now)
	if u.Used+length.Milliseconds() <= l.RenderTime.Milliseconds() {
		wait = holdWait // renders under way hold the rest, and may give it back
	}
	left := time.Duration(u.Room(l.RenderTime.Milliseconds())) * time.Millisecond
	return quotaError(limitTime, wait, map[string]any{
		"window": string(l.Window), "max_seconds": l.RenderTime.Seconds(), "left_seconds": left.Seconds(), "resets_at": l.Window.End(now).Format(time.RFC3339),
	}, "The video would be %.1f s long, and %.1f s of the %.1f s that this tenant may make in this %s are left. Wait for the next %s, or render a shorter source.",
		length.Seconds(), left.Seconds(), l.RenderTime.Seconds(), l.Window, l.Window)
}

// releaseTime gives back what was set aside for a render that another made.
func (f *Farm) releaseTime(ctx context.Context, rec *render.Record) {
	l := f.LimitsOf(rec.Tenant)
	if l.RenderTime == 0 {
		return
	}
	_, err := f.stores.Ledger.ChangeUsage(ctx, rec.Tenant, timeAccount+l.Window.Name(rec.Created), f.keepTime(l.Window.End(rec.Created)), func(u *render.Usage) (bool, error) {
		return u.Release(string(rec.ID), rec.Created), nil
	})
	if err != nil {
		f.log.WarnContext(ctx, "give back render time, left to reconciliation", "render_id", rec.ID, "error", err)
	}
}

// settleTime counts the length of a finished video, or nothing for a render that
// ended without one, and gives back what was set aside. It may be done any
// number of times.
func (f *Farm) settleTime(ctx context.Context, rec *render.Record) error {
	l := f.LimitsOf(rec.Tenant)
	if l.RenderTime == 0 {
		return nil
	}
	return f.settleAccount(ctx, rec, timeAccount+l.Window.Name(rec.Created), l.Window.End(rec.Created))
}

func (f *Farm) settleAccount(ctx context.Context, rec *render.Record, account string, end time.Time) error {
	used := int64(0)
	if rec.State == render.StateSucceeded && rec.Output != nil {
		used = rec.Output.Duration.Milliseconds()
	}
	_, err := f.stores.Ledger.ChangeUsage(ctx, rec.Tenant, account, f.keepTime(end), func(u *render.Usage) (bool, error) {
		return u.Settle(string(rec.ID), rec.Created, used), nil
	})
	if err != nil {
		return fmt.Errorf("settle render time: %w", err)
	}
	return nil
}

// reconcileTime settles what is set aside for renders that have ended, and gives
// back what is for renders that were never made.
func (f *Farm) reconcileTime(ctx context.Context) error {
	for account, err := range f.stores.Ledger.Accounts(ctx) {
		if err != nil {
			return fmt.Errorf("reconcile usage: %w", err)
		}
		if !strings.HasPrefix(account.Name, timeAccount) {
			continue
		}
		for _, h := range account.Usage.Holds {
			if err := f.reconcileHold(ctx, account, h); err != nil {
				f.log.WarnContext(ctx, "reconcile render time", "render_id", h.ID, "error", err)
			}
		}
	}
	return nil
}

func (f *Farm) reconcileHold(ctx context.Context, account ledger.Account, h render.Hold) error {
	tenant := account.Usage.Tenant
	entry, err := f.entry(ctx, tenant, render.ID(h.ID))
	end := f.now()
	switch {
	case err == nil && entry.Record.State.Terminal():
		return f.settleAccount(ctx, entry.Record, account.Name, end)
	case err == nil, f.now().Sub(h.At) < slotGrace: // perhaps its record is about to be written
		return nil
	case render.CodeOf(err) != render.CodeRenderNotFound:
		return err
	}
	_, err = f.stores.Ledger.ChangeUsage(ctx, tenant, account.Name, f.keepTime(end), func(u *render.Usage) (bool, error) {
		return u.Release(h.ID, h.At), nil
	})
	if err != nil {
		return fmt.Errorf("give back render time: %w", err)
	}
	return nil
}
