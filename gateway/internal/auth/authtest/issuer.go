// Package authtest is an authorization server as far as resource servers see it:
// keys, metadata, and tokens with any content.
package authtest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer serves its keys at /keys. The embedded server's URL is its identifier.
type Issuer struct {
	*httptest.Server

	tb      testing.TB
	mu      sync.Mutex
	answers Answers
	fetches int
}

// Answers are what an issuer answers.
type Answers struct {
	// Set is the key set.
	Set any
	// Broken: every answer is 500.
	Broken bool
	// Meta are documents by path. Nil: the usual one, of RFC 8414.
	Meta map[string]any
	// If Hold is set, /keys tells Arrived, then waits for Hold.
	Hold, Arrived chan struct{}
}

// New starts an issuer with these keys.
func New(tb testing.TB, keys ...jose.JSONWebKey) *Issuer {
	tb.Helper()
	i := &Issuer{tb: tb}
	i.Publish(keys...)
	i.Server = httptest.NewServer(http.HandlerFunc(i.serve))
	tb.Cleanup(i.Close)
	return i
}

func (i *Issuer) serve(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	a := i.answers
	if r.URL.Path == "/keys" {
		i.fetches++
	}
	i.mu.Unlock()
	if a.Meta == nil {
		a.Meta = map[string]any{"/.well-known/oauth-authorization-server": map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"}}
	}
	doc, ok := a.Meta[r.URL.Path]
	if r.URL.Path == "/keys" {
		if a.Hold != nil {
			a.Arrived <- struct{}{}
			<-a.Hold
		}
		doc, ok = a.Set, true
	}
	switch {
	case a.Broken:
		http.Error(w, "broken", http.StatusInternalServerError)
	case !ok:
		http.NotFound(w, r)
	default:
		if err := json.NewEncoder(w).Encode(doc); err != nil {
			i.tb.Error(err)
		}
	}
}

// Publish makes these the issuer's keys.
func (i *Issuer) Publish(keys ...jose.JSONWebKey) {
	public := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{}}
	for _, k := range keys {
		public.Keys = append(public.Keys, k.Public())
	}
	i.Change(func(a *Answers) { a.Set = public })
}

// Change changes what is answered from now on.
func (i *Issuer) Change(fn func(a *Answers)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	fn(&i.answers)
}

// KeyFetches counts the requests for keys.
func (i *Issuer) KeyFetches() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

// NewKey makes a key pair for signatures.
func NewKey(tb testing.TB, kid string, alg jose.SignatureAlgorithm) jose.JSONWebKey {
	tb.Helper()
	var k any
	var err error
	switch alg {
	case jose.ES256:
		k, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.ES384:
		k, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case jose.EdDSA:
		_, k, err = ed25519.GenerateKey(rand.Reader)
	default:
		k, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return jose.JSONWebKey{Key: k, KeyID: kid, Algorithm: string(alg), Use: "sig"}
}

// Sign makes a token of typ at+jwt. A header value of nil leaves that header
// away.
func Sign(tb testing.TB, k jose.JSONWebKey, payload []byte, headers map[jose.HeaderKey]any) string {
	tb.Helper()
	opts := (&jose.SignerOptions{}).WithType("at+jwt")
	for name, v := range headers {
		if v == nil {
			delete(opts.ExtraHeaders, name)
		} else {
			opts.WithHeader(name, v)
		}
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(k.Algorithm), Key: k}, opts)
	if err != nil {
		tb.Fatal(err)
	}
	sig, err := signer.Sign(payload)
	if err != nil {
		tb.Fatal(err)
	}
	token, err := sig.CompactSerialize()
	if err != nil {
		tb.Fatal(err)
	}
	return token
}

// Claims are those of a token for a resource that is good for five minutes from
// now, of subject alice and tenant acme with every scope, with changes; a nil
// leaves a claim away.
func (i *Issuer) Claims(now time.Time, resource string, changes map[string]any) []byte {
	i.tb.Helper()
	at := now.Unix()
	c := map[string]any{
		"iss": i.URL, "sub": "alice", "aud": resource, "tenant": "acme", "scope": "openid render:write asset:read asset:write",
		"iat": at, "nbf": at, "exp": at + 300,
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	p, err := json.Marshal(c)
	if err != nil {
		i.tb.Fatal(err)
	}
	return p
}
