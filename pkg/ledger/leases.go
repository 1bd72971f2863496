package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/vidforge/vidforge/pkg/access"
	"github.com/vidforge/vidforge/pkg/render"
)

// lease is a key whose value is "<token> <holder>". The token is new for each
// taking, so that a lease knows its own key from a successor's.
type lease struct {
	bucket   *bucket
	key      string
	value    string
	revision uint64
}

var _ Lease = (*lease)(nil)

// workLease begins the keys of works' leases, which is all that workers take,
// and nameLease those of names.
const (
	workLease = "work."
	nameLease = "name."
)

// LeaseWork implements Ledger.
func (l *JetStream) LeaseWork(ctx context.Context, w render.Work, holder string) (Lease, error) {
	key, err := workKey(workLease, w)
	if err != nil {
		return nil, fmt.Errorf("lease: %w", err)
	}
	return l.lease(ctx, key, holder)
}

// LeaseName implements Ledger.
func (l *JetStream) LeaseName(ctx context.Context, name, holder string) (Lease, error) {
	if !namePattern.MatchString(name) {
		return nil, fmt.Errorf("lease: %w", malformed("name"))
	}
	if l.cfg.Role == access.Worker {
		return nil, fmt.Errorf("lease %s: %w", name, ErrForbidden)
	}
	return l.lease(ctx, nameLease+name, holder)
}

// LeaseHolder implements Ledger.
func (l *JetStream) LeaseHolder(ctx context.Context, name string) (string, error) {
	if !namePattern.MatchString(name) {
		return "", fmt.Errorf("lease holder: %w", malformed("name"))
	}
	e, err := l.leases.get(ctx, nameLease+name)
	if err != nil {
		return "", fmt.Errorf("lease holder %s: %w", name, err)
	}
	_, holder, _ := strings.Cut(string(e.data), " ")
	return holder, nil
}

func (l *JetStream) lease(ctx context.Context, key, holder string) (Lease, error) {
	taken := &lease{bucket: l.leases, key: key, value: rand.Text() + " " + holder}
	for {
		e, err := l.leases.look(ctx, key)
		if err != nil {
			return nil, fmt.Errorf("lease %s: %w", key, err)
		}
		if e.live() {
			if _, by, _ := strings.Cut(string(e.data), " "); by != holder {
				return nil, fmt.Errorf("lease %s: %w", key, ErrLeased)
			}
		}
		taken.revision, err = l.leases.put(ctx, key, []byte(taken.value), e.revision, 0)
		if err == nil {
			return taken, nil
		}
		if !errors.Is(err, ErrConflict) {
			return nil, fmt.Errorf("lease %s: %w", key, err)
		}
	}
}

// Renew implements Lease.
func (l *lease) Renew(ctx context.Context) error {
	return l.change(ctx, "renew", func() (uint64, error) {
		return l.bucket.put(ctx, l.key, []byte(l.value), l.revision, 0)
	})
}

// Release implements Lease.
func (l *lease) Release(ctx context.Context) error {
	err := l.change(ctx, "release", func() (uint64, error) {
		return 0, l.bucket.remove(ctx, l.key, l.revision)
	})
	if errors.Is(err, ErrLeaseLost) {
		return nil
	}
	return err
}

// change repeats a compare-and-set that lost to an earlier call of this very
// lease, whose outcome was unknown.
func (l *lease) change(ctx context.Context, what string, set func() (uint64, error)) error {
	for {
		revision, err := set()
		if err == nil {
			l.revision = revision
			return nil
		}
		if !errors.Is(err, ErrConflict) {
			return fmt.Errorf("%s lease %s: %w", what, l.key, err)
		}
		e, err := l.bucket.look(ctx, l.key)
		if err != nil {
			return fmt.Errorf("%s lease %s: %w", what, l.key, err)
		}
		if !e.live() || string(e.data) != l.value {
			return fmt.Errorf("%s lease %s: %w", what, l.key, ErrLeaseLost)
		}
		l.revision = e.revision
	}
}
