package gateway

import (
	"fmt"
	"net/http"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/gateway/internal/limits"
	"github.com/vidforge/vidforge/gateway/internal/session"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// caller is whose request it turned out to be, for its line in the log.
type caller struct{ tenant string }

type callerKey struct{}

// admit stands behind authentication. What another gateway hands over was
// admitted there.
func (s *server) admit(refuse func(w http.ResponseWriter, r *http.Request, err error), next http.Handler) http.Handler {
	gated := s.gate.Middleware(refuse, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if who, ok := r.Context().Value(callerKey{}).(*caller); ok {
			req, _ := auth.RequestFrom(r.Context())
			who.tenant = req.Tenant.Key()
		}
		if session.HandedOver(r.Context()) {
			next.ServeHTTP(w, r)
			return
		}
		gated.ServeHTTP(w, r)
	})
}

// refuseMCP answers a request to an MCP endpoint in the words of JSON-RPC where
// it is one, else as the HTTP API does.
func refuseMCP(endpoint *contract.Service, fail func(w http.ResponseWriter, r *http.Request, err error)) func(w http.ResponseWriter, r *http.Request, err error) {
	return func(w http.ResponseWriter, r *http.Request, err error) {
		if !endpoint.Refuse(w, r, err) {
			fail(w, r, err)
		}
	}
}

// sized refuses bodies that are too long.
func sized(fail func(w http.ResponseWriter, r *http.Request, err error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := contract.CheckBody(r); err != nil {
			fail(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// quotas gives tenants of the keys file their own quotas. It reads the file for
// itself, again when it changes.
func (c Config) quotas() (func(render.Tenant, farm.Limits) farm.Limits, error) {
	if c.KeysFile == "" {
		return nil, nil //nolint:nilnil // nobody has any of their own
	}
	keys, err := auth.OpenKeys(c.KeysFile, c.acceptKeys, time.Now, c.Logger)
	if err != nil {
		return nil, fmt.Errorf("read the limits of tenants: %w", err)
	}
	return func(tenant render.Tenant, l farm.Limits) farm.Limits {
		own := keys.Limits(tenant)
		if own.MaxConcurrent != nil {
			l.MaxConcurrent = *own.MaxConcurrent
		}
		if own.RenderMinutes != nil {
			l.RenderTime = time.Duration(*own.RenderMinutes) * time.Minute
		}
		if own.StorageBytes != nil {
			l.StorageBytes = *own.StorageBytes
		}
		return l
	}, nil
}

// shownLimits are the limits that a tenant is told.
func (s *server) shownLimits(f facade, of func(render.Tenant) limits.Limits) func(render.Tenant) contract.Limits {
	return func(tenant render.Tenant) contract.Limits {
		l, q := of(tenant), f.LimitsOf(tenant)
		out := contract.Limits{
			MaxAssetBytes: f.Limits().MaxAssetBytes, MaxStorageBytes: q.StorageBytes, MaxConcurrentRenders: q.MaxConcurrent, RequestsPerSecond: l.RequestRate, RequestsAtOnce: l.RequestBurst,
			MaxOpenRequests: l.OpenRequests, MaxSessions: max(0, s.cfg.MaxSessions),
		}
		if q.Window == render.WindowDay {
			out.RenderMinutesPerDay = int(q.RenderTime.Minutes())
		} else {
			out.RenderMinutesPerMonth = int(q.RenderTime.Minutes())
		}
		return out
	}
}

// limitsOf tells what a tenant may use.
func (s *server) limitsOf(a *auth.Authenticator) func(render.Tenant) limits.Limits {
	base := limits.Limits{
		RequestRate: max(0, s.cfg.RequestRate), RequestBurst: max(0, s.cfg.RequestBurst), OpenRequests: max(0, s.cfg.MaxOpenRequests),
	}
	return func(tenant render.Tenant) limits.Limits {
		if a.Keys == nil {
			return base
		}
		return base.With(a.Keys.Limits(tenant))
	}
}
