// Package gate holds a worker back from taking work while something that all
// work needs is away: taking it would only hand it back, one work after the
// other.
package gate

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Config of a Gate.
type Config struct {
	// Name of what is needed, in logs and metrics: "object store".
	Name string
	// Check asks whether it is back. Required.
	Check func(context.Context) error
	// First is the wait before the first check; it doubles with each failure in
	// a row up to Most. They default to 1 s and 1 min.
	First, Most time.Duration
	// Changed is told each time the gate closes or opens. Optional.
	Changed func(closed bool)
	Logger  *slog.Logger
}

// checkTimeout bounds one check.
const checkTimeout = 30 * time.Second

// Gate is open until somebody closes it, and opens by itself when a check
// succeeds. Its methods may be called at once.
type Gate struct {
	cfg  Config
	wake chan struct{} // tells Run that the gate closed

	mu       sync.Mutex
	cause    error // nil while open
	since    time.Time
	failures int           // in a row
	opened   chan struct{} // closed when the gate opens; nil while it is open
}

// New makes an open gate, which opens again only while Run runs.
func New(c Config) *Gate {
	c.First = cmp.Or(c.First, time.Second)
	c.Most = cmp.Or(c.Most, time.Minute)
	if c.Changed == nil {
		c.Changed = func(bool) {}
	}
	return &Gate{cfg: c, wake: make(chan struct{}, 1)}
}

// Close closes the gate because of cause. A closed one stays as it is, so that
// the log tells each time only once.
func (g *Gate) Close(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failures++
	if g.cause != nil {
		return
	}
	g.cause, g.since, g.opened = cause, time.Now(), make(chan struct{})
	g.cfg.Logger.Error("worker pauses", "without", g.cfg.Name, "error", cause)
	g.cfg.Changed(true)
	g.wake <- struct{}{} // Run took the last one before it opened the gate
}

// Passed tells that work went well, which ends a row of failures.
func (g *Gate) Passed() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		g.failures = 0
	}
}

// Err is why the gate is closed, nil when it is open.
func (g *Gate) Err() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.cause == nil {
		return nil
	}
	return fmt.Errorf("%s, since %s: %w", g.cfg.Name, g.since.UTC().Format(time.RFC3339), g.cause)
}

// Wait returns when the gate is open or ctx has ended.
func (g *Gate) Wait(ctx context.Context) {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened == nil {
		return
	}
	select {
	case <-opened:
	case <-ctx.Done():
	}
}

// Run opens the gate whenever what it guards is back, until ctx ends.
func (g *Gate) Run(ctx context.Context) {
	for {
		select {
		case <-g.wake:
		case <-ctx.Done():
			return
		}
		for {
			timer := time.NewTimer(g.delay())
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return
			}
			if g.try(ctx) {
				break
			}
		}
	}
}

func (g *Gate) delay() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(g.cfg.Most, g.cfg.First<<min(max(0, g.failures-1), 16))
}

func (g *Gate) try(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := g.cfg.Check(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.failures++
		g.cause = err
		return false
	}
	g.cfg.Logger.Info("worker goes on", "with", g.cfg.Name, "paused", time.Since(g.since).Round(time.Millisecond))
	g.cfg.Changed(false)
	g.cause = nil
	close(g.opened)
	g.opened = nil
	return true
}
