package ledger

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/pkg/wire"
	vidforgev1 "github.com/vidforge/vidforge/proto/vidforge/v1"
)

// Account is one quota's record of one tenant.
type Account struct {
	// Name is the quota's: [a-z0-9-]+.
	Name  string
	Usage render.Usage
}

func usageKey(t render.Tenant, account string) (string, error) {
	if !namePattern.MatchString(account) {
		return "", malformed("account")
	}
	return t.Key() + "." + account, nil
}

func decodeUsage(e entry) (render.Usage, *vidforgev1.Usage, error) {
	origin := &vidforgev1.Usage{}
	if err := proto.Unmarshal(e.data, origin); err != nil {
		return render.Usage{}, nil, fmt.Errorf("decode usage %s: %w", e.key, err)
	}
	u, err := wire.ToUsage(origin)
	if err != nil {
		return render.Usage{}, nil, fmt.Errorf("decode usage %s: %w", e.key, err)
	}
	return u, origin, nil
}

// Usage implements Ledger.
func (l *JetStream) Usage(ctx context.Context, tenant render.Tenant, account string) (render.Usage, error) {
	key, err := usageKey(tenant, account)
	if err != nil {
		return render.Usage{}, fmt.Errorf("read usage: %w", err)
	}
	e, err := l.usage.get(ctx, key)
	if err != nil {
		return render.Usage{}, fmt.Errorf("read usage %s: %w", account, err)
	}
	u, _, err := decodeUsage(e)
	return u, err
}

// ChangeUsage implements Ledger.
func (l *JetStream) ChangeUsage(ctx context.Context, tenant render.Tenant, account string, keep time.Duration, change func(*render.Usage) (bool, error)) (render.Usage, error) {
	key, err := usageKey(tenant, account)
	if err != nil {
		return render.Usage{}, fmt.Errorf("change usage: %w", err)
	}
	for {
		e, err := l.usage.look(ctx, key)
		if err != nil {
			return render.Usage{}, fmt.Errorf("read usage %s: %w", account, err)
		}
		u, origin := render.Usage{Tenant: tenant}, (*vidforgev1.Usage)(nil)
		if e.live() {
			if u, origin, err = decodeUsage(e); err != nil {
				return render.Usage{}, err
			}
		}
		if changed, err := change(&u); err != nil || !changed {
			return u, err
		}
		next := wire.FromUsage(u)
		if origin != nil {
			wire.CarryUnknown(next, origin)
		}
		data, err := wire.Marshal(next)
		if err != nil {
			return render.Usage{}, fmt.Errorf("change usage %s: %w", account, err)
		}
		_, err = l.usage.put(ctx, key, data, e.revision, keep)
		if errors.Is(err, ErrConflict) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return render.Usage{}, fmt.Errorf("change usage %s: %w", account, err)
		}
		return u, nil
	}
}

// Accounts implements Ledger.
func (l *JetStream) Accounts(ctx context.Context) iter.Seq2[Account, error] {
	return func(yield func(Account, error) bool) {
		for e, err := range l.usage.scan(ctx) {
			var a Account
			if err == nil {
				_, a.Name, _ = strings.Cut(e.key, ".")
				a.Usage, _, err = decodeUsage(e)
			}
			if !yield(a, err) {
				return
			}
		}
	}
}
