// Package idp is an OpenID provider and OAuth 2.1 authorization server for
// tests, by zitadel/oidc: people sign in on its page, programs by their secret,
// and both get signed tokens for the resource that they ask for (RFC 8707).
package idp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// User is a person who may sign in.
type User struct {
	Name, Password string
	// Subject is the claim sub. Tenant is the claim tenant, left away when empty.
	Subject, Tenant string
}

// Client is a program that is registered.
type Client struct {
	ID string
	// Secret of a program with one; without it the client is public and needs
	// PKCE.
	Secret string
	// RedirectURIs of sign-ins. With a secret and without these the client
	// speaks for itself (client credentials), as its ID.
	RedirectURIs []string
	// Tenant of a client that speaks for itself.
	Tenant string
}

// Options of a provider.
type Options struct {
	Users   []User
	Clients []Client
	// Scopes that clients may ask for beside those of OpenID.
	Scopes []string
}

// Provider is a running provider. The embedded server's URL is its issuer
// identifier; its metadata is at /.well-known/openid-configuration and its page
// for people at /login, with the fields username and password.
type Provider struct {
	*httptest.Server

	store *store
	login func(ctx context.Context, request string) string
}

// New runs a provider until the test ends.
func New(tb testing.TB, o Options) *Provider {
	tb.Helper()
	p := &Provider{store: newStore(o)}
	if err := p.store.rotate(); err != nil {
		tb.Fatal(err)
	}
	mux := http.NewServeMux()
	p.Server = httptest.NewServer(mux)
	tb.Cleanup(p.Close)
	config := &op.Config{CodeMethodS256: true, AuthMethodPost: true, SupportedScopes: append([]string{oidc.ScopeOpenID}, o.Scopes...)}
	if _, err := rand.Read(config.CryptoKey[:]); err != nil {
		tb.Fatal(err)
	}
	provider, err := op.NewProvider(config, p.store, op.StaticIssuer(p.URL), op.WithAllowInsecure())
	if err != nil {
		tb.Fatal(err)
	}
	p.login = op.AuthCallbackURL(provider)
	mux.Handle("GET /login", http.HandlerFunc(p.loginPage))
	mux.Handle("POST /login", op.NewIssuerInterceptor(provider.IssuerFromRequest).Handler(http.HandlerFunc(p.signIn)))
	mux.Handle("/", withResources(provider))
	return p
}

// Rotate signs with a new key from now on. The keys before it stay published
// until Withdraw.
func (p *Provider) Rotate(tb testing.TB) {
	tb.Helper()
	if err := p.store.rotate(); err != nil {
		tb.Fatal(err)
	}
}

// Withdraw publishes only the key that signs now.
func (p *Provider) Withdraw() { p.store.withdraw() }

// page is where people sign in.
const page = `<!doctype html><title>Sign in</title><form method="post"><input type="hidden" name="id" value="{{.}}"><label>Name <input name="username"></label><label>Password <input name="password" type="password"></label><button id="sign-in">Sign in</button></form>`

func (p *Provider) loginPage(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if err := template.Must(template.New("login").Parse(page)).Execute(w, r.FormValue("id")); err != nil {
		return // the browser left
	}
}

func (p *Provider) signIn(w http.ResponseWriter, r *http.Request) {
	id := r.FormValue("id")
	if err := p.store.signIn(id, r.FormValue("username"), r.FormValue("password")); err != nil {
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	http.Redirect(w, r, p.login(r.Context(), id), http.StatusFound)
}

type resourcesKey struct{}

// withResources hands down what the library knows nothing of: the resources
// that tokens are asked for.
func withResources(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseForm(); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), resourcesKey{}, r.Form["resource"])))
	})
}

func resourcesOf(ctx context.Context) []string {
	list, _ := ctx.Value(resourcesKey{}).([]string)
	return list
}

var errUnsupported = errors.New("idp: not supported by this provider")

// signingKey is a key pair as the library wants it.
type signingKey struct {
	id  string
	key any
	alg jose.SignatureAlgorithm
}

func (k signingKey) ID() string                                  { return k.id }
func (k signingKey) Key() any                                    { return k.key }
func (k signingKey) Algorithm() jose.SignatureAlgorithm          { return k.alg }
func (k signingKey) SignatureAlgorithm() jose.SignatureAlgorithm { return k.alg }
func (signingKey) Use() string                                   { return "sig" }

func unknown(what, id string) error { return fmt.Errorf("idp: unknown %s %q", what, id) }
