// Package auth finds out who sends a request: access tokens of an authorization
// server, API keys from a file, or nobody in particular on a farm that only its
// own machine can reach. It also keeps browsers of other origins away.
package auth

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// Principal is who sends a request.
type Principal struct {
	Tenant render.Tenant
	// Issuer vouches for the subject; empty for API keys and Local.
	Issuer string
	// Subject names the person or program in records and logs; it is no secret.
	// Of a token it is the claim sub.
	Subject string
	Scopes  []string
}

// Local is the principal of a farm that runs without authentication.
func Local() Principal {
	return Principal{Tenant: render.LocalTenant, Subject: "local", Scopes: apikey.Scopes()}
}

// Key tells principals apart: sessions and limits belong to it. It stays the
// same for other tokens of the same subject, and shows nothing of what it is
// made of.
func (p Principal) Key() string {
	h := sha256.New()
	for _, part := range []string{string(p.Tenant), p.Issuer, p.Subject} {
		// hash.Hash never fails; the lengths keep the parts apart.
		_, _ = io.WriteString(h, strconv.Itoa(len(part))+":"+part)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)))[:26]
}

// HasAny reports whether the principal holds one of the scopes. No scopes asks
// for nothing.
func (p Principal) HasAny(scopes ...string) bool {
	return len(scopes) == 0 || slices.ContainsFunc(scopes, func(s string) bool { return slices.Contains(p.Scopes, s) })
}

// Request is what the HTTP layer knows of a request.
type Request struct {
	Principal
	// SignedIn is the sign-in of a person at the pages: it tells one from
	// another. Empty for programs and their credentials.
	SignedIn string
	// ID correlates answers with logs.
	ID string
	// Span is the server span.
	Span trace.SpanContext
}

type requestKey struct{}

// WithRequest puts the request into a context.
func WithRequest(ctx context.Context, r Request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// RequestFrom takes the request out of a context; ok is false if there is none.
func RequestFrom(ctx context.Context) (r Request, ok bool) {
	r, ok = ctx.Value(requestKey{}).(Request)
	return r, ok
}
