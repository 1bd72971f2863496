package auth

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/vidforge/vidforge/gateway/internal/auth/authtest"
	"github.com/vidforge/vidforge/pkg/render"
)

const resource = "https://render.example.org/mcp"

// clockAt is a clock that tests move.
type clockAt struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clockAt) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clockAt) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

type bench struct {
	testing.TB

	issuer *authtest.Issuer
	clock  *clockAt
	key    jose.JSONWebKey
	tokens *Tokens
	logs   *bytes.Buffer
}

func newBench(t testing.TB, change ...func(*TokensConfig)) *bench {
	t.Helper()
	b := &bench{TB: t, clock: &clockAt{t: time.Unix(1_800_000_000, 0)}, key: authtest.NewKey(t, "k1", jose.ES256), logs: &bytes.Buffer{}}
	b.issuer = authtest.New(t, b.key)
	c := TokensConfig{Issuers: []Issuer{{URL: b.issuer.URL}}, Leeway: time.Minute, Now: b.clock.now, Logger: slog.New(slog.NewTextHandler(b.logs, nil))}
	for _, fn := range change {
		fn(&c)
	}
	var err error
	if b.tokens, err = NewTokens(c); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) claims(changes map[string]any) []byte {
	b.Helper()
	return b.issuer.Claims(b.clock.now(), resource, changes)
}

func (b *bench) token(changes map[string]any) string {
	b.Helper()
	return authtest.Sign(b.TB, b.key, b.claims(changes), nil)
}

func (b *bench) want(what, token string, code render.Code) *render.Error {
	b.Helper()
	p, err := b.tokens.Verify(b.Context(), token, resource)
	switch {
	case code == "" && err != nil:
		b.Errorf("%s: %v", what, err)
	case code == "":
	case err == nil:
		b.Errorf("%s: taken as %+v", what, p)
		return &render.Error{}
	case render.CodeOf(err) != code:
		b.Errorf("%s: %v, want %s", what, err, code)
	}
	if err == nil {
		return nil
	}
	return render.AsError(err)
}

func TestGoodTokens(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	p, err := b.tokens.Verify(t.Context(), b.token(nil), resource)
	if err != nil {
		t.Fatal(err)
	}
	if p.Tenant != "acme" || p.Subject != "alice" || p.Issuer != b.issuer.URL || !slices.Equal(p.Scopes, []string{"render:write", "asset:read", "asset:write"}) {
		t.Errorf("principal %+v", p)
	}
	for name, changes := range map[string]map[string]any{
		"audiences":         {"aud": []string{"https://other.example.org", resource}},
		"no iat and nbf":    {"iat": nil, "nbf": nil},
		"fractions":         {"exp": float64(b.clock.now().Unix()) + 0.5},
		"within the leeway": {"exp": b.clock.now().Unix() - 59},
		"a clock ahead":     {"nbf": b.clock.now().Unix() + 60, "iat": b.clock.now().Unix() + 60},
		"any script":        {"tenant": "Ünïcode 公司", "sub": "auth0|5f7c8ec7c33c6c004bbafe82"},
		"like a path":       {"tenant": "../../x/*.>.\\{}"},
	} {
		b.want(name, b.token(changes), "")
	}
	for _, typ := range []any{nil, "JWT", "jwt", "at+jwt", "AT+JWT", "application/at+jwt"} {
		b.want(fmt.Sprint("typ ", typ), authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"typ": typ}), "")
	}
	if n := b.issuer.KeyFetches(); n != 1 {
		t.Errorf("%d fetches of the keys", n)
	}
}

func TestScopes(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for name, c := range map[string]struct {
		changes map[string]any
		want    []string
	}{
		"none":         {map[string]any{"scope": nil}, nil},
		"unknown":      {map[string]any{"scope": "openid admin render:*"}, nil},
		"scp list":     {map[string]any{"scope": nil, "scp": []string{"asset:write"}}, []string{"asset:write"}},
		"scp string":   {map[string]any{"scope": nil, "scp": "asset:write render:write"}, []string{"render:write", "asset:write"}},
		"both":         {map[string]any{"scope": "render:write render:write", "scp": []string{"render:write"}}, []string{"render:write"}},
		"of no string": {map[string]any{"scope": []any{"render:write", 7}}, nil},
		"other case":   {map[string]any{"scope": "RENDER:WRITE"}, nil},
	} {
		p, err := b.tokens.Verify(t.Context(), b.token(c.changes), resource)
		if err != nil || !slices.Equal(p.Scopes, c.want) {
			t.Errorf("%s: %v, %v", name, p.Scopes, err)
		}
	}
}

func TestWrongClaims(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := b.clock.now().Unix()
	for name, changes := range map[string]map[string]any{
		"no issuer":           {"iss": nil},
		"another issuer":      {"iss": "https://evil.example.org"},
		"issuer with slash":   {"iss": b.issuer.URL + "/"},
		"issuers":             {"iss": []string{b.issuer.URL}},
		"no audience":         {"aud": nil},
		"another audience":    {"aud": "https://render.example.org/mcp/video-render"},
		"host as audience":    {"aud": "https://render.example.org"},
		"audience and slash":  {"aud": resource + "/"},
		"audience in capital": {"aud": strings.ToUpper(resource)},
		"begins like it":      {"aud": resource + "x"},
		"audience not a text": {"aud": []any{resource, 1}},
		"no expiry":           {"exp": nil},
		"expired":             {"exp": now - 60},
		"expiry as text":      {"exp": strconv.FormatInt(now+60, 10)},
		"expiry beyond time":  {"exp": 1e300},
		"negative expiry":     {"exp": -1},
		"not yet":             {"nbf": now + 61},
		"not yet, as text":    {"nbf": "soon"},
		"issued in future":    {"iat": now + 61},
		"no subject":          {"sub": nil},
		"empty subject":       {"sub": ""},
		"long subject":        {"sub": strings.Repeat("a", 256)},
		"subject of a key":    {"sub": "key:abcdefghij"},
		"subject local":       {"sub": "local"},
		"subject breaks line": {"sub": "alice\nlevel=error"},
		"subject turns text":  {"sub": "alice\u202e"},
		"no tenant":           {"tenant": nil},
		"empty tenant":        {"tenant": ""},
		"tenant of blanks":    {"tenant": "   "},
		"tenant and blank":    {"tenant": "acme "},
		"tenants":             {"tenant": []string{"acme"}},
		"tenant object":       {"tenant": map[string]any{"id": "acme"}},
		"tenant number":       {"tenant": 5},
		"tenant true":         {"tenant": true},
		"long tenant":         {"tenant": strings.Repeat("a", 257)},
		"tenant with NUL":     {"tenant": "acme\x00"},
		"tenant breaks line":  {"tenant": "acme\r\nx"},
		"tenant unseen":       {"tenant": "ac\u200bme"},
		"tenant half a rune":  {"tenant": "acme\ufffd"},
		"bound to a key":      {"cnf": map[string]any{"jkt": "x"}},
	} {
		b.want(name, b.token(changes), render.CodeCredentialInvalid)
	}
	for name, payload := range map[string]string{
		"no object":      `"x"`,
		"null":           `null`,
		"a list":         `[]`,
		"twice the same": strings.Replace(string(b.claims(nil)), "{", `{"tenant":"other",`, 1),
		"surrogate":      strings.Replace(string(b.claims(nil)), `"acme"`, `"\ud800"`, 1),
		"no UTF-8":       strings.Replace(string(b.claims(nil)), "acme", "acme\xff", 1),
		"no JSON":        "{",
		"and more":       string(b.claims(nil)) + "{}",
		"deep":           strings.Repeat(`{"a":`, 2000) + "1" + strings.Repeat("}", 2000),
	} {
		b.want(name, authtest.Sign(t, b.key, []byte(payload), nil), render.CodeCredentialInvalid)
	}
	if n := b.issuer.KeyFetches(); n != 0 {
		t.Errorf("wrong claims made %d fetches", n)
	}
}

func TestWrongSignatures(t *testing.T) {
	t.Parallel()
	rs := authtest.NewKey(t, "rs", jose.RS256)
	b := newBench(t)
	b.issuer.Publish(b.key, rs)
	good := b.token(nil)
	parts := strings.Split(good, ".")
	raw := func(header, payload string, sig []byte) string {
		e := base64.RawURLEncoding
		return e.EncodeToString([]byte(header)) + "." + e.EncodeToString([]byte(payload)) + "." + e.EncodeToString(sig)
	}
	forged := authtest.NewKey(t, "k1", jose.ES256)
	der, err := json.Marshal(rs.Public())
	if err != nil {
		t.Fatal(err)
	}
	hmacOf := func(secret []byte) string {
		return authtest.Sign(t, jose.JSONWebKey{Key: secret, KeyID: "rs", Algorithm: "HS256"}, b.claims(nil), nil)
	}
	n := rs.Key.(*rsa.PrivateKey).N.Bytes()
	for name, token := range map[string]string{
		"none":                  raw(`{"alg":"none","typ":"at+jwt"}`, string(b.claims(nil)), nil),
		"None":                  raw(`{"alg":"None","kid":"k1"}`, string(b.claims(nil)), []byte("x")),
		"no alg":                raw(`{"kid":"k1"}`, string(b.claims(nil)), []byte("x")),
		"HMAC of the key":       hmacOf(der),
		"HMAC of the modulus":   hmacOf(n),
		"another key":           authtest.Sign(t, forged, b.claims(nil), nil),
		"key in the header":     authtest.Sign(t, forged, b.claims(nil), map[jose.HeaderKey]any{"jwk": forged.Public()}),
		"key set in the header": authtest.Sign(t, forged, b.claims(nil), map[jose.HeaderKey]any{"jku": "https://evil.example.org/keys"}),
		"other payload":         parts[0] + "." + base64.RawURLEncoding.EncodeToString(b.claims(map[string]any{"tenant": "other"})) + "." + parts[2],
		"cut signature":         good[:len(good)-4],
		"no signature":          parts[0] + "." + parts[1] + ".",
		"two parts":             parts[0] + "." + parts[1],
		"four parts":            good + ".x",
		"key id of another":     authtest.Sign(t, jose.JSONWebKey{Key: b.key.Key, KeyID: "rs", Algorithm: "ES256"}, b.claims(nil), nil),
		"critical":              authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"crit": []string{"exp"}, "exp": 1}),
		"an ID token's kind":    authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"typ": "id+jwt"}),
		"a logout token":        authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"typ": "logout+jwt"}),
		"a proof":               authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"typ": "dpop+jwt"}),
		"typ no text":           authtest.Sign(t, b.key, b.claims(nil), map[jose.HeaderKey]any{"typ": 7}),
		"huge":                  b.token(map[string]any{"x": strings.Repeat("a", maxToken)}),
		"huge and no token":     strings.Repeat("a", 1<<20),
		"an encrypted one":      "eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..x.x.x",
		"JSON":                  `{"payload":"x","signatures":[]}`,
		"text":                  "letmein",
	} {
		b.want(name, token, render.CodeCredentialInvalid)
	}
	b.want("the good one", good, "")
}

// TestAlgorithms: only those of the settings, each with a key of its kind.
func TestAlgorithms(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *TokensConfig) { c.Algorithms = []string{"ES256", "EdDSA"} })
	es384, ed, rs := authtest.NewKey(t, "es384", jose.ES384), authtest.NewKey(t, "ed", jose.EdDSA), authtest.NewKey(t, "rs", jose.RS256)
	b.issuer.Publish(b.key, es384, ed, rs)
	b.want("ES256", b.token(nil), "")
	b.want("EdDSA", authtest.Sign(t, ed, b.claims(nil), nil), "")
	b.want("ES384", authtest.Sign(t, es384, b.claims(nil), nil), render.CodeCredentialInvalid)
	b.want("RS256", authtest.Sign(t, rs, b.claims(nil), nil), render.CodeCredentialInvalid)
	for _, bad := range []string{"none", "HS256", "RS1", "ES256K", ""} {
		if _, err := NewTokens(TokensConfig{Issuers: []Issuer{{URL: "https://x"}}, Algorithms: []string{bad}}); err == nil {
			t.Errorf("algorithm %q was taken", bad)
		}
	}
	all := newBench(t)
	ps := authtest.NewKey(t, "ps", jose.PS256)
	all.issuer.Publish(ps, es384, ed, rs)
	for _, k := range []jose.JSONWebKey{ps, es384, ed, rs} {
		all.want(k.Algorithm, authtest.Sign(t, k, all.claims(nil), nil), "")
	}
}

// TestSetsAreSifted: what else is in a key set is no key for tokens.
func TestSetsAreSifted(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	short, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Skip("this Go makes no short keys:", err)
	}
	weak := jose.JSONWebKey{Key: short, KeyID: "weak", Algorithm: "RS256"}
	enc := authtest.NewKey(t, "enc", jose.ES256)
	enc.Use = "enc"
	secret := map[string]string{"kty": "oct", "kid": "oct", "k": base64.RawURLEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))}
	b.issuer.Change(func(a *authtest.Answers) {
		a.Set = map[string]any{"keys": []any{7, map[string]string{"kty": "new"}, secret, weak.Public(), enc.Public(), b.key.Public()}}
	})
	b.want("good", b.token(nil), "")
	b.want("key for encryption", authtest.Sign(t, jose.JSONWebKey{Key: enc.Key, KeyID: "enc", Algorithm: "ES256"}, b.claims(nil), nil), render.CodeCredentialInvalid)
	if token := weakSign(t, short, b.claims(nil)); token != "" {
		b.want("short key", token, render.CodeCredentialInvalid)
	}
}

func weakSign(t *testing.T, k *rsa.PrivateKey, payload []byte) string {
	t.Helper()
	e := base64.RawURLEncoding
	input := e.EncodeToString([]byte(`{"alg":"RS256","kid":"weak"}`)) + "." + e.EncodeToString(payload)
	h := crypto.SHA256.New()
	h.Write([]byte(input))
	sig, err := rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, h.Sum(nil))
	if err != nil {
		return ""
	}
	return input + "." + e.EncodeToString(sig)
}

// TestRotation: a new key counts at once, a withdrawn one until the keys are
// fetched again, and unknown ones cause few fetches.
func TestRotation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	old, next := b.token(nil), authtest.NewKey(t, "k2", jose.ES256)
	b.want("old key", old, "")
	b.issuer.Publish(b.key, next)
	b.want("new key", authtest.Sign(t, next, b.claims(nil), nil), "")
	if n := b.issuer.KeyFetches(); n != 2 {
		t.Errorf("%d fetches after a rotation", n)
	}
	for i := range 50 {
		k := b.key
		k.KeyID = fmt.Sprint("made up ", i)
		b.want("unknown key id", authtest.Sign(t, k, b.claims(nil), nil), render.CodeCredentialInvalid)
	}
	if n := b.issuer.KeyFetches(); n != 2 {
		t.Errorf("%d fetches after unknown key ids", n)
	}
	b.clock.pass(retryKeysAfter)
	k := b.key
	k.KeyID = "yet another"
	b.want("unknown key id later", authtest.Sign(t, k, b.claims(nil), nil), render.CodeCredentialInvalid)
	if n := b.issuer.KeyFetches(); n != 3 {
		t.Errorf("%d fetches after an unknown key id later", n)
	}
	long := authtest.Sign(t, b.key, b.claims(map[string]any{"exp": b.clock.now().Unix() + 3600}), nil)
	b.want("long-lived", long, "")
	b.issuer.Publish(next)
	b.want("withdrawn, known", long, "")
	b.clock.pass(renewKeysEvery)
	b.want("withdrawn, fetched again", long, render.CodeCredentialInvalid)
}

// TestKeysWithoutNames: an issuer with one key need not name it.
func TestKeysWithoutNames(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.key.KeyID, b.key.Algorithm = "", "ES256"
	b.issuer.Publish(b.key)
	b.want("unnamed", b.token(nil), "")
	b.key = authtest.NewKey(t, "", jose.ES256)
	b.issuer.Publish(b.key)
	b.clock.pass(retryKeysAfter)
	b.want("unnamed, another", b.token(nil), "")
	b.want("unnamed, forged", authtest.Sign(t, authtest.NewKey(t, "", jose.ES256), b.claims(nil), nil), render.CodeCredentialInvalid)
}

// TestKeysOutOfReach: known keys go on, with new tokens too; what would need
// others is told to come again, not that its token is bad.
func TestKeysOutOfReach(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.issuer.Change(func(a *authtest.Answers) { a.Broken = true })
	if e := b.want("no keys yet", b.token(nil), render.CodeUnavailable); !e.Temporary || e.RetryAfter <= 0 {
		t.Errorf("error %+v", e)
	}
	b.want("no keys yet, at once again", b.token(nil), render.CodeUnavailable)
	b.issuer.Change(func(a *authtest.Answers) { a.Broken = false })
	b.clock.pass(retryKeysAfter)
	b.want("keys", b.token(nil), "")
	b.issuer.Change(func(a *authtest.Answers) { a.Broken = true })
	for range 3 {
		b.clock.pass(renewKeysEvery)
		b.want("known key", b.token(nil), "")
		unknown := authtest.NewKey(t, "k2", jose.ES256)
		b.want("unknown key", authtest.Sign(t, unknown, b.claims(nil), nil), render.CodeUnavailable)
		unknown.KeyID = "k1"
		b.want("forged", authtest.Sign(t, unknown, b.claims(nil), nil), render.CodeCredentialInvalid)
		b.want("expired", b.token(map[string]any{"exp": 1}), render.CodeCredentialInvalid)
	}
	if !strings.Contains(b.logs.String(), "cannot be fetched") {
		t.Error("nobody was told")
	}
	for _, secret := range []string{"eyJ", "alice", "acme"} {
		if strings.Contains(b.logs.String(), secret) {
			t.Errorf("the log holds %s: %s", secret, b.logs)
		}
	}
	b.issuer.Change(func(a *authtest.Answers) { a.Broken = false; a.Set = map[string]any{"keys": []any{}} })
	b.clock.pass(renewKeysEvery)
	b.want("a set without keys is none", b.token(nil), "")
}

// TestOneFetchForMany: those who wait for keys share a fetch, one that gives up
// does not end it, and whoever has keys does not wait.
func TestOneFetchForMany(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	hold, arrived := make(chan struct{}), make(chan struct{}, 1)
	b.issuer.Change(func(a *authtest.Answers) { a.Hold, a.Arrived = hold, arrived })
	token := b.token(nil)
	leaving, leave := context.WithCancel(t.Context())
	errs := make(chan error, 20)
	for i := range cap(errs) {
		go func() {
			ctx := t.Context()
			if i%2 == 0 {
				ctx = leaving
			}
			_, err := b.tokens.Verify(ctx, token, resource)
			errs <- err
		}()
	}
	<-arrived
	leave()
	close(hold)
	for range cap(errs) {
		if err := <-errs; err != nil && render.CodeOf(err) != render.CodeUnavailable {
			t.Error(err)
		}
	}
	if n := b.issuer.KeyFetches(); n != 1 {
		t.Errorf("%d fetches", n)
	}
	b.want("after all", token, "")

	hold = make(chan struct{})
	b.issuer.Change(func(a *authtest.Answers) { a.Hold = hold })
	b.clock.pass(renewKeysEvery)
	first := make(chan error, 1)
	fresh := b.token(nil)
	go func() {
		_, err := b.tokens.Verify(t.Context(), fresh, resource)
		first <- err
	}()
	<-arrived
	b.want("while keys are renewed", fresh, "")
	close(hold)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

// TestVerifiedTokens: a token is verified once, for one resource, until it ends.
func TestVerifiedTokens(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	token := b.token(nil)
	b.want("first", token, "")
	b.want("again", token, "")
	if _, err := b.tokens.Verify(t.Context(), token, resource+"/video-render"); render.CodeOf(err) != render.CodeCredentialInvalid {
		t.Errorf("for another resource: %v", err)
	}
	b.clock.pass(5*time.Minute + 59*time.Second)
	b.want("at the end of the leeway", token, "")
	b.clock.pass(time.Second)
	b.want("expired", token, render.CodeCredentialInvalid)
}

func TestCacheIsBounded(t *testing.T) {
	t.Parallel()
	var c tokenCache
	key := func(i int) (k cacheKey) { k.resource = strconv.Itoa(i); return k }
	for i := range 5 * maxCached {
		c.put(key(i), verifiedToken{principal: Principal{Subject: strconv.Itoa(i)}})
		if _, ok := c.get(key(0)); !ok {
			t.Fatalf("what is in use was forgotten after %d others", i)
		}
	}
	if n := len(c.newer) + len(c.older); n > 2*maxCached {
		t.Errorf("%d entries", n)
	}
	if _, ok := c.get(key(1)); ok {
		t.Error("what nobody uses is still there")
	}
	if v, ok := c.get(key(5*maxCached - 1)); !ok || v.principal.Subject != strconv.Itoa(5*maxCached-1) {
		t.Errorf("last: %+v", v)
	}
}

// TestDiscovery: where an issuer's keys are.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		issuer string // after the server's URL
		meta   func(url string) map[string]any
		jwks   string
		code   render.Code
	}{
		"RFC 8414": {"", func(u string) map[string]any {
			return map[string]any{"/.well-known/oauth-authorization-server": map[string]any{"issuer": u, "jwks_uri": u + "/keys"}}
		}, "", ""},
		"RFC 8414 with path": {"/realms/a", func(u string) map[string]any {
			return map[string]any{"/.well-known/oauth-authorization-server/realms/a": map[string]any{"issuer": u + "/realms/a", "jwks_uri": u + "/keys"}}
		}, "", ""},
		"OpenID": {"", func(u string) map[string]any {
			return map[string]any{"/.well-known/openid-configuration": map[string]any{"issuer": u, "jwks_uri": u + "/keys"}}
		}, "", ""},
		"OpenID with path": {"/realms/a/", func(u string) map[string]any {
			return map[string]any{"/realms/a/.well-known/openid-configuration": map[string]any{"issuer": u + "/realms/a/", "jwks_uri": u + "/keys"}}
		}, "", ""},
		"told where": {"/x", func(string) map[string]any { return map[string]any{} }, "/keys", ""},
		"of another issuer": {"", func(u string) map[string]any {
			return map[string]any{"/.well-known/openid-configuration": map[string]any{"issuer": "https://evil.example.org", "jwks_uri": u + "/keys"}}
		}, "", render.CodeUnavailable},
		"of an issuer almost named so": {"", func(u string) map[string]any {
			return map[string]any{"/.well-known/openid-configuration": map[string]any{"issuer": u + "/", "jwks_uri": u + "/keys"}}
		}, "", render.CodeUnavailable},
		"keys without TLS": {"", func(u string) map[string]any {
			return map[string]any{"/.well-known/openid-configuration": map[string]any{"issuer": u, "jwks_uri": "http://example.org/keys"}}
		}, "", render.CodeUnavailable},
		"nothing there": {"", func(string) map[string]any { return map[string]any{} }, "", render.CodeUnavailable},
		"no JSON":       {"", func(string) map[string]any { return map[string]any{"/.well-known/openid-configuration": 7} }, "", render.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var url string
			b := newBench(t, func(tc *TokensConfig) {
				url = tc.Issuers[0].URL
				tc.Issuers[0].URL += c.issuer
				if c.jwks != "" {
					tc.Issuers[0].JWKS = url + c.jwks
				}
			})
			b.issuer.Change(func(a *authtest.Answers) { a.Meta = c.meta(url) })
			b.want(name, b.token(map[string]any{"iss": url + c.issuer}), c.code)
		})
	}
}

// TestRedirects: keys are fetched only from where they may come from.
func TestRedirects(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for target, good := range map[string]bool{b.issuer.URL + "/keys": true, "http://example.org/keys": false} {
		moved := httptest.NewServer(http.RedirectHandler(target, http.StatusFound))
		t.Cleanup(moved.Close)
		tokens, err := NewTokens(TokensConfig{Issuers: []Issuer{{b.issuer.URL, moved.URL}}, Now: b.clock.now, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.Verify(t.Context(), b.token(nil), resource); (err == nil) != good {
			t.Errorf("moved to %s: %v", target, err)
		}
	}
}

// TestIssuersKeepApart: a key of one issuer signs nothing for another.
func TestIssuersKeepApart(t *testing.T) {
	t.Parallel()
	k2 := authtest.NewKey(t, "k1", jose.ES256) // the same name, as it happens
	second := authtest.New(t, k2)
	b := newBench(t, func(c *TokensConfig) { c.Issuers = append(c.Issuers, Issuer{URL: second.URL}) })
	b.want("first", b.token(nil), "")
	b.want("second", authtest.Sign(t, k2, b.claims(map[string]any{"iss": second.URL}), nil), "")
	b.want("the first's key for the second", b.token(map[string]any{"iss": second.URL}), render.CodeCredentialInvalid)
	b.want("the second's key for the first", authtest.Sign(t, k2, b.claims(nil), nil), render.CodeCredentialInvalid)
	second.Change(func(a *authtest.Answers) { a.Broken = true })
	b.clock.pass(renewKeysEvery)
	b.want("one of two is down", b.token(nil), "")
	if got := b.tokens.Issuers(); !slices.Equal(got, []string{b.issuer.URL, second.URL}) {
		t.Errorf("issuers %v", got)
	}
}

func TestTenantClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *TokensConfig) { c.TenantClaim = "https://example.org/org" })
	b.want("other claim", b.token(nil), render.CodeCredentialInvalid)
	p, err := b.tokens.Verify(t.Context(), b.token(map[string]any{"https://example.org/org": "beta"}), resource)
	if err != nil || p.Tenant != "beta" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestParseIssuers(t *testing.T) {
	t.Parallel()
	got, err := ParseIssuers("https://a.example.org/, https://b.example.org/x=https://b.example.org/keys?v=1\nhttp://127.0.0.1:9000")
	want := []Issuer{{URL: "https://a.example.org/"}, {"https://b.example.org/x", "https://b.example.org/keys?v=1"}, {URL: "http://127.0.0.1:9000"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{
		"http://a.example.org", "a.example.org", "https://", "https://u:p@a.example.org", "https://a.example.org?x", "https://a.example.org#x",
		"https://a.example.org=", "https://a.example.org=http://a.example.org/keys", "https://a.example.org https://a.example.org", "ftp://a.example.org", "=https://a",
	} {
		if got, err := ParseIssuers(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
	if _, err := NewTokens(TokensConfig{}); err == nil {
		t.Error("no issuers were taken")
	}
	if _, err := NewTokens(TokensConfig{Issuers: want, Leeway: time.Hour}); err == nil {
		t.Error("an hour of leeway was taken")
	}
}

// TestPrincipalKey: the same for every token of a subject, another for everybody
// else.
func TestPrincipalKey(t *testing.T) {
	t.Parallel()
	seen := map[string]Principal{}
	for _, p := range []Principal{
		Local(), {Tenant: "a", Subject: "b"}, {Tenant: "a", Issuer: "b"}, {Tenant: "a", Issuer: "i", Subject: "b"}, {Tenant: "a", Issuer: "j", Subject: "b"},
		{Tenant: "ai", Subject: "b"}, {Tenant: "a", Issuer: "ib"}, {Tenant: "a1:", Subject: "b"}, {Tenant: "b", Issuer: "i", Subject: "b"},
	} {
		if other, ok := seen[p.Key()]; ok {
			t.Errorf("%+v and %+v have one key", p, other)
		}
		seen[p.Key()] = p
		p.Scopes = []string{"x"}
		if _, ok := seen[p.Key()]; !ok || len(p.Key()) != 26 {
			t.Errorf("%+v: key %s", p, p.Key())
		}
	}
	if got := (Principal{Tenant: "a", Issuer: "i", Subject: "b"}).Key(); got != "7lzrlee2uulfnkrm2i2lgyvfbo" {
		t.Errorf("keys are in records of other versions: %s", got)
	}
}

// FuzzToken: nothing that the issuer did not sign is taken.
func FuzzToken(f *testing.F) {
	b := newBench(f)
	good := b.token(nil)
	for _, s := range []string{
		"", ".", "..", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", strings.Repeat(".", 100), "vf_aaaaaaaaaa_", good, good[:len(good)-1], good + ".", " " + good,
		"eyJhbGciOiJFUzI1NiIsImNyaXQiOlsiYjY0Il0sImI2NCI6ZmFsc2V9.e30.AA", "{}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, token string) {
		// The signature's last character has bits that mean nothing, so a token
		// can be written in several ways.
		p, err := b.tokens.Verify(t.Context(), token, resource)
		switch {
		case err == nil && (p.Tenant != "acme" || p.Subject != "alice"):
			t.Fatalf("%q is %+v", token, p)
		case err != nil && (token == good || render.CodeOf(err) != render.CodeCredentialInvalid):
			t.Fatalf("%q: %v", token, err)
		}
	})
}

// FuzzClaims: whatever an issuer signs, a principal is only made of names that
// can be stored and shown.
func FuzzClaims(f *testing.F) {
	b := newBench(f)
	for _, s := range []string{
		string(b.claims(nil)), "{}", "null", "[]", `{"tenant":"a","tenant":"b"}`,
		string(b.claims(map[string]any{"tenant": "* > . /", "sub": "\u202e"})), string(b.claims(map[string]any{"scp": []any{1, nil}})),
		string(b.claims(map[string]any{"exp": 1e308})), string(b.claims(map[string]any{"aud": []any{[]any{resource}}})),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		p, err := b.tokens.Verify(t.Context(), authtest.Sign(t, b.key, payload, nil), resource)
		if err != nil {
			if render.CodeOf(err) != render.CodeCredentialInvalid {
				t.Fatalf("%q: %v", payload, err)
			}
			return
		}
		if !plainName(string(p.Tenant), maxTenant) || !plainName(p.Subject, maxSubject) || p.Issuer != b.issuer.URL || len(p.Scopes) > 3 || !bytes.Contains(payload, []byte(b.issuer.URL)) {
			t.Fatalf("%q is %+v", payload, p)
		}
	})
}

// FuzzHeaders: no header makes the middleware panic, let somebody in, or put
// what was sent into a challenge.
func FuzzHeaders(f *testing.F) {
	b := newBench(f)
	public := &url.URL{Scheme: "https", Host: "render.example.org"}
	a := &Authenticator{Tokens: b.tokens, Public: public, Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
		w.WriteHeader(render.Describe(render.CodeOf(err)).HTTPStatus)
	}}
	h, err := Guard(public, []string{"https://app.example.org"}, a.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("let in") })))
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range [][3]string{
		{"", "", ""}, {"Bearer", "null", "render.example.org"}, {"Bearer  x", "https://app.example.org", "x"}, {"bearer\tx", "https://app.example.org.evil.example", "evil.example"},
		{"Basic dmY6dmY=", "https://render.example.org", "["}, {"Bearer \"\\", "://", "[::1]:1"}, {"Bearer a.b.c, Bearer d", "https://[::1", ""},
	} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, authorization, origin, host string) {
		r := httptest.NewRequest(http.MethodPost, "/mcp", nil)
		r.Host = host
		r.Header.Set("Authorization", authorization)
		r.Header.Set("Origin", origin)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusUnauthorized && w.Code != http.StatusForbidden {
			t.Fatalf("%q, %q, %q: %d", authorization, origin, host, w.Code)
		}
		for _, c := range w.Header().Values("WWW-Authenticate") {
			if strings.Count(c, `"`)%2 != 0 || strings.ContainsAny(c, "\r\n\\") {
				t.Fatalf("challenge %q", c)
			}
		}
		if o := w.Header().Get("Access-Control-Allow-Origin"); o != "" && o != "https://app.example.org" {
			t.Fatalf("allowed %q", o)
		}
	})
}
