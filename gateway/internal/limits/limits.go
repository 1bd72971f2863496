// Package limits keeps one client from taking the gateway away from others: it
// bounds a tenant's requests a second, over all gateways, and how many requests
// and streams one credential has open at this one.
package limits

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// Limits are what one tenant may use. 0 is no limit.
type Limits struct {
	// RequestRate is requests a second over time, RequestBurst how many at once.
	RequestRate  float64
	RequestBurst int
	// OpenRequests of one credential at one gateway: streams, held calls,
	// uploads and downloads among them.
	OpenRequests int
}

// With replaces what the tenant has of its own.
func (l Limits) With(own apikey.Limits) Limits {
	replace(&l.RequestRate, own.RequestRate)
	replace(&l.RequestBurst, own.RequestBurst)
	replace(&l.OpenRequests, own.OpenRequests)
	if l.RequestRate > 0 && own.RequestBurst == nil {
		l.RequestBurst = cmp.Or(l.RequestBurst, int(math.Ceil(l.RequestRate)))
	}
	return l
}

func replace[T any](v, own *T) {
	if own != nil {
		*v = *own
	}
}

// Rates counts requests for all gateways of a farm.
type Rates interface {
	// AllowRequest takes one of the tenant's tokens. When there is none,
	// retryAfter is when there will be.
	AllowRequest(ctx context.Context, tenant render.Tenant, perSecond float64, burst int) (ok bool, retryAfter time.Duration)
}

// Gate admits requests. Make it with New; its methods may be called at once.
type Gate struct {
	rates Rates
	of    func(render.Tenant) Limits

	mu   sync.Mutex
	open map[string]int // by principal
}

// New makes a gate. of tells a tenant's limits as they now are.
func New(rates Rates, of func(render.Tenant) Limits) *Gate {
	return &Gate{rates: rates, of: of, open: map[string]int{}}
}

// openWait is a guess: nobody knows when one of a client's own requests ends.
const openWait = 5 * time.Second

// Middleware stands behind authentication. refuse answers what may not go on.
func (g *Gate) Middleware(refuse func(w http.ResponseWriter, r *http.Request, err error), next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, _ := auth.RequestFrom(r.Context())
		l := g.of(req.Tenant)
		leave, ok := g.enter(req.Key(), l.OpenRequests)
		if !ok {
			refuse(w, r, contract.TooMany("open_requests", l.OpenRequests, openWait))
			return
		}
		defer leave()
		if l.RequestRate > 0 && l.RequestBurst > 0 {
			if ok, wait := g.rates.AllowRequest(r.Context(), req.Tenant, l.RequestRate, l.RequestBurst); !ok {
				refuse(w, r, tooFast(l, wait))
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func (g *Gate) enter(principal string, limit int) (leave func(), ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if limit > 0 && g.open[principal] >= limit {
		return nil, false
	}
	g.open[principal]++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.open[principal]--; g.open[principal] == 0 {
			delete(g.open, principal)
		}
	}, true
}

// tooFast is the error of a request beyond the rate. It rounds up to the
// millisecond that clients read, so that the wait is long enough.
func tooFast(l Limits, wait time.Duration) *render.Error {
	e := render.Errorf(render.CodeRateLimited, render.BlameCaller,
		"This tenant sends more than %g requests a second. Wait as long as retry_after_ms says, then send the request again; poll no faster than the answers ask.", l.RequestRate)
	e.RetryAfter = (wait + time.Millisecond - 1).Truncate(time.Millisecond)
	e.Details = &render.Details{Reason: "too many requests", Extra: map[string]any{"limit": "requests", "per_second": l.RequestRate, "burst": l.RequestBurst}}
	return e
}
