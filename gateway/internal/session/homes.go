package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/vidforge/vidforge/pkg/ledger"
)

// addressFresh is for how long an address is used without a new look. It may be
// stale without harm: whoever answers there must hold the farm's key, and a
// gateway with another name does not know the session.
const addressFresh = 10 * time.Second

// errGone is returned for a home that is not there any more.
var errGone = errors.New("session: the home is gone")

// homes finds the addresses of gateways.
type homes struct {
	registry Registry
	looks    singleflight.Group

	mu    sync.Mutex
	known map[replica]address
}

type address struct {
	hostport string
	seen     time.Time
}

func newHomes(r Registry) *homes { return &homes{registry: r, known: map[replica]address{}} }

// find returns the address of a home, errGone, or an error that says nothing
// about it. While the registry does not answer, what it said last is good.
func (h *homes) find(ctx context.Context, home replica) (string, error) {
	h.mu.Lock()
	a, ok := h.known[home]
	h.mu.Unlock()
	if ok && time.Since(a.seen) < addressFresh {
		return a.hostport, nil
	}
	hostport, err := h.look(ctx, home)
	if err != nil && !errors.Is(err, errGone) && ok {
		return a.hostport, nil
	}
	return hostport, err
}

// look asks the registry.
func (h *homes) look(ctx context.Context, home replica) (string, error) {
	if h.registry == nil {
		return "", errGone
	}
	v, err, _ := h.looks.Do(string(home), func() (any, error) {
		// The first who asks must not take its leave for all.
		hostport, err := h.registry.LeaseHolder(context.WithoutCancel(ctx), home.lease()) // the ledger bounds it
		h.mu.Lock()
		defer h.mu.Unlock()
		switch {
		case err == nil:
			h.known[home] = address{hostport, time.Now()}
			h.forgetOld()
			return hostport, nil
		case errors.Is(err, ledger.ErrNotFound):
			delete(h.known, home)
			return "", errGone
		default:
			return "", fmt.Errorf("session: look for a home: %w", err)
		}
	})
	hostport, _ := v.(string)
	return hostport, err //nolint:wrapcheck // made above
}

// forgetOld keeps what is known as small as a farm: homes come and go with
// every deployment.
func (h *homes) forgetOld() {
	for home, a := range h.known {
		if time.Since(a.seen) > time.Hour {
			delete(h.known, home)
		}
	}
}

// Join enters this gateway into the registry under the address at which others
// reach its Serve, and keeps it there until Close.
func (s *Sessions) Join(ctx context.Context, hostport string) error {
	lease, err := s.opts.Registry.LeaseName(ctx, s.me.lease(), hostport)
	if err != nil {
		return fmt.Errorf("session: enter the registry: %w", err)
	}
	s.wg.Go(func() { s.stay(s.closing, lease, hostport) })
	return nil
}

// stay renews the entry, and takes it anew when an outage outlasted it.
func (s *Sessions) stay(ctx context.Context, lease ledger.Lease, hostport string) {
	tick := time.NewTicker(s.opts.RenewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.leave(ctx, lease)
			return
		case <-tick.C:
		}
		err := lease.Renew(ctx)
		if errors.Is(err, ledger.ErrLeaseLost) {
			var again ledger.Lease
			if again, err = s.opts.Registry.LeaseName(ctx, s.me.lease(), hostport); err == nil {
				lease = again
			}
		}
		if err != nil && ctx.Err() == nil {
			s.opts.Logger.WarnContext(ctx, "other gateways may not find this one's sessions", "error", err)
		}
	}
}

// leaveTimeout bounds the last word to the registry; without it the entry
// expires by itself.
const leaveTimeout = 3 * time.Second

func (s *Sessions) leave(ctx context.Context, lease ledger.Lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		s.opts.Logger.WarnContext(ctx, "leave the registry of gateways", "error", err)
	}
}

// Close makes every session unknown from now on, ends the streams that were
// handed over, and takes the gateway out of the registry. Call it when the
// sessions are about to be closed.
func (s *Sessions) Close() {
	s.close()
	s.wg.Wait()
	s.out.CloseIdleConnections()
}
