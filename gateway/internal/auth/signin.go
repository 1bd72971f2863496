package auth

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// Paths of the sign-in below the public URL. The second one is the redirect URI
// that is registered at the OpenID provider.
const (
	SignInPath   = "/sign-in"
	CallbackPath = "/sign-in/callback"
	SignOutPath  = "/sign-out"
)

const (
	// signedInFor is how long a person stays signed in. There is no list of
	// sessions to strike one from, so it is short.
	signedInFor = time.Hour
	// signInWithin is how long a sign-in at the provider may take.
	signInWithin = 10 * time.Minute
	// providerTimeout bounds one request to the provider.
	providerTimeout = 10 * time.Second

	personCookie = "vidforge_person"
	beginCookie  = "vidforge_sign_in"
	// consoleSubject is who signed in by the code on the console.
	consoleSubject = "console"
)

// SignInConfig configures a SignIn.
type SignInConfig struct {
	// Issuer is the OpenID provider, ClientID and ClientSecret what it knows the
	// gateway by. Without an issuer people sign in by Code.
	Issuer, ClientID, ClientSecret string
	// TenantClaim of the ID token names the person's tenant. Defaults to
	// "tenant".
	TenantClaim string
	// Code is what the console of a farm shows that only its own machine can
	// reach; whoever knows it is Local's tenant. Without an issuer.
	Code string
	// Public is the URL at which browsers reach the gateway. Required; https
	// unless it is a loopback address.
	Public *url.URL
	// Secret of the farm. Required.
	Secret []byte
	// Now is the clock. Defaults to time.Now.
	Now func() time.Time
	// Logger defaults to slog.Default().
	Logger *slog.Logger
}

// SignIn signs people in to the pages: by OpenID Connect (authorization code
// with PKCE, state and nonce), or by a code from the console. It keeps nothing;
// what a person's browser holds is sealed with the farm's secret.
type SignIn struct {
	cfg    SignInConfig
	seal   sealer
	client *http.Client

	// turn is held by whoever looks at what follows.
	turn     chan struct{}
	provider *oidc.Provider // nil until it was reached
	tried    time.Time      // when it could not be
}

// NewSignIn makes a SignIn. The provider is asked for when somebody signs in.
func NewSignIn(c SignInConfig) (*SignIn, error) {
	c.TenantClaim = cmp.Or(c.TenantClaim, "tenant")
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if _, err := secureURL(c.Public.String()); err != nil {
		return nil, fmt.Errorf("public URL %s, where people sign in, %w", c.Public, err)
	}
	if c.Issuer != "" {
		if _, err := secureURL(c.Issuer); err != nil {
			return nil, fmt.Errorf("OpenID provider %q %w", c.Issuer, err)
		}
		if c.ClientID == "" {
			return nil, errors.New("an OpenID provider needs a client id")
		}
	}
	s, err := newSealer(c.Secret)
	if err != nil {
		return nil, err
	}
	client := keyClient()
	client.Timeout = providerTimeout
	return &SignIn{cfg: c, seal: s, client: client, turn: make(chan struct{}, 1)}, nil
}

// ByCode reports whether people sign in by the console's code.
func (s *SignIn) ByCode() bool { return s.cfg.Issuer == "" }

// person is what the browser of a signed-in person keeps.
type person struct {
	Tenant  string `json:"t"`
	Issuer  string `json:"i,omitempty"`
	Subject string `json:"s"`
	// Session is another one after each sign-in.
	Session string    `json:"n"`
	Expires time.Time `json:"e"`
}

// Person is who is signed in at the browser that sends a request. session tells
// one sign-in from another; it is no secret.
func (s *SignIn) Person(r *http.Request) (who Principal, session string, ok bool) {
	cookie, err := r.Cookie(personCookie)
	if err != nil {
		return Principal{}, "", false
	}
	var p person
	if s.seal.open(personCookie, cookie.Value, &p) != nil || !s.cfg.Now().Before(p.Expires) || p.Issuer != s.cfg.Issuer {
		return Principal{}, "", false
	}
	return Principal{Tenant: render.Tenant(p.Tenant), Issuer: p.Issuer, Subject: p.Subject, Scopes: []string{apikey.ScopeRenderWrite}}, p.Session, true
}

func (s *SignIn) keep(w http.ResponseWriter, p person) error {
	p.Session, p.Expires = rand.Text(), s.cfg.Now().Add(signedInFor)
	sealed, err := s.seal.seal(personCookie, p)
	if err != nil {
		return err
	}
	s.setCookie(w, personCookie, sealed, signedInFor)
	return nil
}

func (s *SignIn) setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	c := &http.Cookie{ //nolint:gosec // http is a loopback address: see NewSignIn
		Name: name, Value: value, Path: s.cfg.Public.Path + "/", MaxAge: int(life.Seconds()),
		HttpOnly: true, Secure: s.cfg.Public.Scheme == "https", SameSite: http.SameSiteLaxMode,
	}
	if life <= 0 {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// SignOut makes the browser forget the person.
func (s *SignIn) SignOut(w http.ResponseWriter) { s.setCookie(w, personCookie, "", 0) }

// begun is what the browser keeps of a sign-in under way.
type begun struct {
	State    string    `json:"s"`
	Nonce    string    `json:"n"`
	Verifier string    `json:"v"`
	Render   render.ID `json:"r"`
	Expires  time.Time `json:"e"`
}

// Begin returns the provider's page for a person who wants to decide on a render,
// and makes the browser remember that it asked for it.
func (s *SignIn) Begin(ctx context.Context, w http.ResponseWriter, id render.ID) (string, error) {
	config, _, err := s.reach(ctx)
	if err != nil {
		return "", err
	}
	b := begun{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(), Render: id, Expires: s.cfg.Now().Add(signInWithin)}
	sealed, err := s.seal.seal(beginCookie, b)
	if err != nil {
		return "", err
	}
	s.setCookie(w, beginCookie, sealed, signInWithin)
	return config.AuthCodeURL(b.State, oidc.Nonce(b.Nonce), oauth2.S256ChallengeOption(b.Verifier)), nil
}

// Finish takes the provider's answer: the person is signed in, and the render is
// the one that it began with.
func (s *SignIn) Finish(ctx context.Context, w http.ResponseWriter, r *http.Request) (render.ID, error) {
	var b begun
	cookie, err := r.Cookie(beginCookie)
	if err == nil {
		err = s.seal.open(beginCookie, cookie.Value, &b)
	}
	q := r.URL.Query()
	if err != nil || !s.cfg.Now().Before(b.Expires) || subtle.ConstantTimeCompare([]byte(q.Get("state")), []byte(b.State)) != 1 {
		return "", invalid("This sign-in was not begun in this browser, or too long ago; open the approval page again.")
	}
	s.setCookie(w, beginCookie, "", 0)
	if q.Get("error") != "" || q.Get("code") == "" {
		return "", invalid("The OpenID provider did not sign you in; open the approval page again.")
	}
	p, err := s.exchange(ctx, q.Get("code"), b)
	if err != nil {
		return "", err
	}
	return b.Render, s.keep(w, p)
}

// exchange asks the provider who the person of a code is.
func (s *SignIn) exchange(ctx context.Context, code string, b begun) (person, error) {
	config, provider, err := s.reach(ctx)
	if err != nil {
		return person{}, err
	}
	ctx = oidc.ClientContext(ctx, s.client)
	token, err := config.Exchange(ctx, code, oauth2.VerifierOption(b.Verifier))
	if err != nil {
		s.cfg.Logger.WarnContext(ctx, "sign-in failed", "issuer", s.cfg.Issuer, "error", errorCode(err))
		return person{}, invalid("The OpenID provider did not take its own code back; open the approval page again.")
	}
	raw, _ := token.Extra("id_token").(string)
	id, err := provider.Verifier(&oidc.Config{ClientID: s.cfg.ClientID, Now: s.cfg.Now}).Verify(ctx, raw)
	if err != nil || subtle.ConstantTimeCompare([]byte(id.Nonce), []byte(b.Nonce)) != 1 {
		s.cfg.Logger.WarnContext(ctx, "ID token refused", "issuer", s.cfg.Issuer, "error", err)
		return person{}, invalid("The OpenID provider's ID token is not good; open the approval page again.")
	}
	claims := claims{}
	if err := id.Claims(&claims); err != nil {
		return person{}, fmt.Errorf("read ID token: %w", err)
	}
	p := person{Tenant: claims.text(s.cfg.TenantClaim), Issuer: s.cfg.Issuer, Subject: id.Subject}
	switch {
	case !plainName(p.Tenant, maxTenant):
		return person{}, invalid("The ID token names no tenant in the claim %s, so there is nothing that you may decide.", s.cfg.TenantClaim)
	case !plainName(p.Subject, maxSubject):
		return person{}, invalid("The ID token's sub is not a name that can be recorded.")
	}
	return p, nil
}

// errorCode is what may be logged of a failed exchange: the answer itself could
// hold anything.
func errorCode(err error) string {
	if re, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		return re.Response.Status + " " + re.ErrorCode
	}
	return err.Error()
}

// reach finds the provider's endpoints.
func (s *SignIn) reach(ctx context.Context) (*oauth2.Config, *oidc.Provider, error) {
	p, err := s.discover(ctx)
	if err != nil {
		e := render.Errorf(render.CodeUnavailable, render.BlameFarm, "The OpenID provider cannot be reached; try again in a moment.")
		e.Cause = fmt.Errorf("discover OpenID provider: %w", err)
		return nil, nil, e
	}
	return &oauth2.Config{
		ClientID: s.cfg.ClientID, ClientSecret: s.cfg.ClientSecret, Endpoint: p.Endpoint(),
		RedirectURL: s.cfg.Public.String() + CallbackPath, Scopes: []string{oidc.ScopeOpenID},
	}, p, nil
}

var errUnreachable = errors.New("it could not be reached a moment ago")

// discover asks for the provider's metadata once, when it answers. Those who
// want it at once share the question, and one that failed is not asked again at
// once: whoever has no credential can make us ask.
func (s *SignIn) discover(ctx context.Context) (*oidc.Provider, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for metadata: %w", context.Cause(ctx))
	}
	switch {
	case s.provider != nil:
		return s.provider, nil
	case !s.tried.IsZero() && s.cfg.Now().Sub(s.tried) < retryKeysAfter:
		return nil, errUnreachable
	}
	// A request that ends does not end the question, which is for all.
	p, err := oidc.NewProvider(oidc.ClientContext(context.WithoutCancel(ctx), s.client), s.cfg.Issuer)
	if err != nil {
		s.tried = s.cfg.Now()
		return nil, fmt.Errorf("ask for metadata: %w", err)
	}
	s.provider = p
	return p, nil
}

// SignInByCode signs whoever knows the console's code in.
func (s *SignIn) SignInByCode(w http.ResponseWriter, code string) error {
	if !s.ByCode() || s.cfg.Code == "" || subtle.ConstantTimeCompare([]byte(code), []byte(s.cfg.Code)) != 1 {
		return invalid("This is not the code that the farm's console shows.")
	}
	return s.keep(w, person{Tenant: string(Local().Tenant), Subject: consoleSubject})
}
