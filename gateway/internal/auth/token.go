package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-jose/go-jose/v4"
	josejson "github.com/go-jose/go-jose/v4/json"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// Bounds of a token.
const (
	maxToken = 16 << 10
	// maxTenant and maxSubject are bytes; OpenID Connect Core section 2 allows
	// a subject 255.
	maxTenant  = 256
	maxSubject = 255
	// maxCached tokens of one half of the cache.
	maxCached = 4096
)

// TokensConfig says which access tokens are taken.
type TokensConfig struct {
	// Issuers of tokens. Required.
	Issuers []Issuer
	// TenantClaim is the top-level claim that names the tenant. Defaults to
	// "tenant".
	TenantClaim string
	// Algorithms of signatures: asymmetric ones of RFC 7518 and 8037. Defaults
	// to all of them.
	Algorithms []string
	// Leeway is how far the clocks of issuers may be off. Zero means not at all.
	Leeway time.Duration
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Client fetches metadata and keys. Defaults to one that follows redirects
	// only to https.
	Client *http.Client
	// Logger defaults to slog.Default(). It never sees a token or a claim.
	Logger *slog.Logger
}

// Tokens verifies OAuth 2.1 access tokens: JWTs, signed by a key of an issuer
// that is trusted (RFC 9068). All methods may be called at once.
type Tokens struct {
	cfg        TokensConfig
	algorithms []jose.SignatureAlgorithm
	issuers    map[string]*keySet
	verified   tokenCache
}

// Algorithms are those that tokens may be signed with, in the order of their
// names.
func Algorithms() []string {
	return []string{"ES256", "ES384", "ES512", "EdDSA", "PS256", "PS384", "PS512", "RS256", "RS384", "RS512"}
}

// NewTokens reports the setting that is wrong. It fetches nothing yet: issuers
// may start later than gateways.
func NewTokens(c TokensConfig) (*Tokens, error) {
	c.TenantClaim = cmp.Or(c.TenantClaim, "tenant")
	if len(c.Algorithms) == 0 {
		c.Algorithms = Algorithms()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Client == nil {
		c.Client = keyClient()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	t := &Tokens{cfg: c, issuers: map[string]*keySet{}}
	for _, a := range c.Algorithms {
		if !slices.Contains(Algorithms(), a) {
			return nil, fmt.Errorf("algorithm %q is not one of %s", a, strings.Join(Algorithms(), ", "))
		}
		t.algorithms = append(t.algorithms, jose.SignatureAlgorithm(a))
	}
	if c.Leeway < 0 || c.Leeway > 10*time.Minute {
		return nil, errors.New("the leeway must be 0 to 10m")
	}
	if len(c.Issuers) == 0 {
		return nil, errors.New("there is no issuer")
	}
	for _, i := range c.Issuers {
		t.issuers[i.URL] = newKeySet(i, c.Client, c.Now, c.Logger)
	}
	return t, nil
}

// Issuers are the trusted issuers' identifiers, in the order of the settings.
func (t *Tokens) Issuers() []string {
	urls := make([]string, len(t.cfg.Issuers))
	for i := range urls {
		urls[i] = t.cfg.Issuers[i].URL
	}
	return urls
}

// Verify finds the principal of a token that was issued for a resource. A token
// that is not good is credential_invalid, with the reason; if its issuer's keys
// are not known and cannot be fetched, the error is unavailable.
func (t *Tokens) Verify(ctx context.Context, token, resource string) (Principal, error) {
	if len(token) > maxToken {
		return Principal{}, invalid("The token is longer than %d bytes.", maxToken)
	}
	id := cacheKey{sha256.Sum256([]byte(token)), resource}
	if v, ok := t.verified.get(id); ok && v.keys == v.issuer.snapshot(ctx) && t.cfg.Now().Before(v.until) {
		return v.principal, nil
	}
	sig, err := jose.ParseSignedCompact(token, t.algorithms)
	if err != nil || len(sig.Signatures) != 1 {
		return Principal{}, invalid("The credential is no token (JWT) signed with one of %s.", strings.Join(t.cfg.Algorithms, ", ")).WithCause(err)
	}
	header := sig.Signatures[0].Protected
	if err := checkHeader(header); err != nil {
		return Principal{}, err
	}
	// Not believed before the signature is verified below; but what is wrong
	// already needs no keys.
	c, err := parseClaims(sig.UnsafePayloadWithoutVerification())
	if err != nil {
		return Principal{}, err
	}
	issuer, ok := t.issuers[c.text("iss")]
	if !ok {
		return Principal{}, invalid("The token's issuer is not trusted here.")
	}
	v := verifiedToken{issuer: issuer}
	if v.until, err = t.checkTimes(c); err != nil {
		return Principal{}, err
	}
	if !slices.Contains(c.texts("aud"), resource) {
		return Principal{}, invalid("The token was not issued for %s; request one with that resource.", resource)
	}
	if v.principal, err = t.principal(c, issuer.issuer.URL); err != nil {
		return Principal{}, err
	}
	if v.keys, err = verifySignature(ctx, sig, header, issuer); err != nil {
		return Principal{}, err
	}
	t.verified.put(id, v)
	return v.principal, nil
}

func invalid(format string, args ...any) *render.Error {
	return render.Errorf(render.CodeCredentialInvalid, render.BlameCaller, format, args...)
}

// checkHeader refuses tokens that are of another kind, or that ask for what is
// not done here. Keys that a header brings along are never looked at.
func checkHeader(h jose.Header) error {
	if typ, ok := h.ExtraHeaders[jose.HeaderType]; ok {
		s, _ := typ.(string)
		// RFC 9068 section 4 asks for at+jwt; most servers still write JWT.
		switch strings.ToLower(strings.TrimPrefix(strings.ToLower(s), "application/")) {
		case "at+jwt", "jwt":
		default:
			return invalid("The token is not an access token: its typ is not at+jwt.")
		}
	}
	for _, name := range []jose.HeaderKey{"crit", "b64"} {
		if _, ok := h.ExtraHeaders[name]; ok {
			return invalid("The token's header has %s, which is not supported.", name)
		}
	}
	return nil
}

// verifySignature returns the keys among which the signature's was.
func verifySignature(ctx context.Context, sig *jose.JSONWebSignature, h jose.Header, issuer *keySet) (*keys, error) {
	at := issuer.snapshot(ctx)
	fit := at.match(h)
	if anyVerifies(sig, fit) {
		return at, nil
	}
	if h.KeyID == "" || len(fit) == 0 {
		// The key may be new.
		fresh, err := issuer.renew(ctx, at)
		if fresh != at && anyVerifies(sig, fresh.match(h)) {
			return fresh, nil
		}
		if err != nil {
			e := render.Errorf(render.CodeUnavailable, render.BlameFarm, "The keys of the token's issuer cannot be fetched right now.").WithCause(err)
			e.RetryAfter = retryKeysAfter
			return nil, e
		}
	}
	return nil, invalid("The token's signature is by no key of its issuer.")
}

func anyVerifies(sig *jose.JSONWebSignature, candidates []jose.JSONWebKey) bool {
	return slices.ContainsFunc(candidates, func(k jose.JSONWebKey) bool {
		_, err := sig.Verify(k.Key)
		return err == nil
	})
}

// claims are a token's payload.
type claims map[string]any

// parseClaims refuses what different parsers would read differently: bytes that
// are no UTF-8, and members that are there twice.
func parseClaims(payload []byte) (claims, error) {
	var c claims
	if !utf8.Valid(payload) {
		return nil, invalid("The token's payload is not UTF-8.")
	}
	if err := josejson.Unmarshal(payload, &c); err != nil || c == nil {
		return nil, invalid("The token's payload is not a JSON object.").WithCause(err)
	}
	return c, nil
}

// text is a claim that is a string, else "".
func (c claims) text(name string) string {
	s, _ := c[name].(string)
	return s
}

// texts is a claim that is a string or a list of them. Anything else in it
// makes it empty.
func (c claims) texts(name string) []string {
	switch v := c[name].(type) {
	case string:
		return []string{v}
	case []any:
		list := make([]string, 0, len(v))
		for _, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil
			}
			list = append(list, s)
		}
		return list
	default:
		return nil
	}
}

// seconds is a NumericDate; ok is false if it is there and is none.
func (c claims) seconds(name string) (at float64, present, ok bool) {
	v, present := c[name]
	if !present {
		return 0, false, true
	}
	at, ok = v.(float64)
	// Until the year 9999.
	return at, true, ok && !math.IsNaN(at) && at >= 0 && at < 253402300800
}

// checkTimes returns until when the token is good.
func (t *Tokens) checkTimes(c claims) (time.Time, error) {
	now, leeway := float64(t.cfg.Now().UnixMilli())/1e3, t.cfg.Leeway.Seconds()
	exp, hasExp, okExp := c.seconds("exp")
	nbf, hasNbf, okNbf := c.seconds("nbf")
	iat, hasIat, okIat := c.seconds("iat")
	switch {
	case !hasExp || !okExp || !okNbf || !okIat:
		return time.Time{}, invalid("The token's times are not numbers, or exp is missing.")
	case now >= exp+leeway:
		return time.Time{}, invalid("The token is expired; request a new one.")
	case hasNbf && now+leeway < nbf, hasIat && now+leeway < iat:
		return time.Time{}, invalid("The token is not valid yet.")
	}
	return time.UnixMilli(int64((exp + leeway) * 1e3)), nil
}

// principal is whom the claims name.
func (t *Tokens) principal(c claims, issuer string) (Principal, error) {
	tenant, subject := c.text(t.cfg.TenantClaim), c.text("sub")
	switch _, bound := c["cnf"]; {
	case bound:
		// Whoever stole such a token must not be able to use it as a bearer.
		return Principal{}, invalid("The token is bound to a key (cnf), which is not supported; request a bearer token.")
	case !plainName(tenant, maxTenant):
		return Principal{}, invalid("The token names no tenant: the claim %s must be a string of 1 to %d bytes without control characters.", t.cfg.TenantClaim, maxTenant)
	case !plainName(subject, maxSubject) || subject == Local().Subject || strings.HasPrefix(subject, keySubject):
		return Principal{}, invalid("The token's sub is missing, or is not a name that can be recorded.")
	}
	return Principal{Tenant: render.Tenant(tenant), Issuer: issuer, Subject: subject, Scopes: scopesOf(c)}, nil
}

// plainName reports whether a name can be stored and shown as it is. U+FFFD is
// what a parser makes of half a character, so that different names would become
// one.
func plainName(s string, most int) bool {
	return s != "" && len(s) <= most && utf8.ValidString(s) && strings.TrimSpace(s) == s &&
		!strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) })
}

// scopesOf are the scopes that mean something here: scope is a string (RFC 9068
// section 2.2.3), scp is what others write, as list or string.
func scopesOf(c claims) []string {
	var held []string
	for _, claim := range []string{"scope", "scp"} {
		for _, s := range c.texts(claim) {
			held = append(held, strings.Fields(s)...)
		}
	}
	var scopes []string
	for _, s := range apikey.Scopes() {
		if slices.Contains(held, s) {
			scopes = append(scopes, s)
		}
	}
	return scopes
}

// cacheKey names a token without holding it.
type cacheKey struct {
	token    [sha256.Size]byte
	resource string
}

// verifiedToken counts until it expires or its issuer's keys were fetched again.
type verifiedToken struct {
	principal Principal
	issuer    *keySet
	keys      *keys
	until     time.Time
}

// tokenCache remembers tokens that were good, so that a client that polls costs
// one verification, not one a poll. It holds two halves: when the newer one is
// full it becomes the older, and what was that is forgotten.
type tokenCache struct {
	mu           sync.Mutex
	newer, older map[cacheKey]verifiedToken
}

func (c *tokenCache) get(k cacheKey) (verifiedToken, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v, ok := c.newer[k]; ok {
		return v, true
	}
	v, ok := c.older[k]
	if ok {
		c.putLocked(k, v)
	}
	return v, ok
}

func (c *tokenCache) put(k cacheKey, v verifiedToken) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, v)
}

func (c *tokenCache) putLocked(k cacheKey, v verifiedToken) {
	if c.newer == nil || len(c.newer) >= maxCached {
		c.newer, c.older = map[cacheKey]verifiedToken{}, c.newer
	}
	c.newer[k] = v
}
