package idp

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// tokenLife is how long access tokens are good.
const tokenLife = 5 * time.Minute

// store keeps everything in memory.
type store struct {
	users   map[string]User
	clients map[string]Client
	scopes  []string

	mu       sync.Mutex
	keys     []signingKey // the last one signs
	made     int
	requests map[string]*request
	codes    map[string]string
}

var (
	_ op.Storage                        = (*store)(nil)
	_ op.ClientCredentialsStorage       = (*store)(nil)
	_ op.CanGetPrivateClaimsFromRequest = (*store)(nil)
	_ op.CanSetUserinfoFromRequest      = (*store)(nil)
)

func newStore(o Options) *store {
	s := &store{users: map[string]User{}, clients: map[string]Client{}, scopes: o.Scopes, requests: map[string]*request{}, codes: map[string]string{}}
	for _, u := range o.Users {
		s.users[u.Name] = u
	}
	for _, c := range o.Clients {
		s.clients[c.ID] = c
	}
	return s
}

func (s *store) rotate() error {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("idp: make key: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	s.keys = append(s.keys, signingKey{fmt.Sprintf("key-%d", s.made), k, jose.ES256})
	return nil
}

func (s *store) withdraw() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys = s.keys[len(s.keys)-1:]
}

func (s *store) SigningKey(context.Context) (op.SigningKey, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.keys[len(s.keys)-1], nil
}

func (s *store) SignatureAlgorithms(context.Context) ([]jose.SignatureAlgorithm, error) {
	return []jose.SignatureAlgorithm{jose.ES256}, nil
}

func (s *store) KeySet(context.Context) ([]op.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	public := make([]op.Key, len(s.keys))
	for i, k := range s.keys {
		if pair, ok := k.key.(*ecdsa.PrivateKey); ok {
			k.key = &pair.PublicKey
		}
		public[i] = k
	}
	return public, nil
}

// request is a sign-in under way, or a client that speaks for itself.
type request struct {
	oidc.AuthRequest

	id       string
	audience []string
	subject  string
	tenant   string
	at       time.Time
}

func (r *request) GetID() string                      { return r.id }
func (r *request) GetACR() string                     { return "" }
func (r *request) GetAMR() []string                   { return []string{"pwd"} }
func (r *request) GetAudience() []string              { return r.audience }
func (r *request) GetAuthTime() time.Time             { return r.at }
func (r *request) GetClientID() string                { return r.ClientID }
func (r *request) GetNonce() string                   { return r.Nonce }
func (r *request) GetRedirectURI() string             { return r.RedirectURI }
func (r *request) GetResponseType() oidc.ResponseType { return r.ResponseType }
func (r *request) GetResponseMode() oidc.ResponseMode { return r.ResponseMode }
func (r *request) GetScopes() []string                { return r.Scopes }
func (r *request) GetState() string                   { return r.State }
func (r *request) GetSubject() string                 { return r.subject }
func (r *request) Done() bool                         { return r.subject != "" }

func (r *request) GetCodeChallenge() *oidc.CodeChallenge {
	if r.CodeChallenge == "" {
		return nil
	}
	return &oidc.CodeChallenge{Challenge: r.CodeChallenge, Method: r.CodeChallengeMethod}
}

func (s *store) CreateAuthRequest(ctx context.Context, in *oidc.AuthRequest, _ string) (op.AuthRequest, error) {
	r := &request{AuthRequest: *in, id: rand.Text(), audience: resourcesOf(ctx)}
	if len(r.audience) == 0 {
		r.audience = []string{in.ClientID}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[r.id] = r
	return r, nil
}

// signIn says who a request is from.
func (s *store) signIn(id, name, password string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	u, known := s.users[name]
	r, ok := s.requests[id]
	if !ok || !known || subtle.ConstantTimeCompare([]byte(u.Password), []byte(password)) != 1 {
		return unknown("user or request", name)
	}
	signed := *r
	signed.subject, signed.tenant, signed.at = u.Subject, u.Tenant, time.Now()
	s.requests[id] = &signed
	return nil
}

func (s *store) AuthRequestByID(_ context.Context, id string) (op.AuthRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r, ok := s.requests[id]; ok {
		return r, nil
	}
	return nil, unknown("request", id)
}

func (s *store) AuthRequestByCode(ctx context.Context, code string) (op.AuthRequest, error) {
	s.mu.Lock()
	id := s.codes[code]
	delete(s.codes, code)
	s.mu.Unlock()
	return s.AuthRequestByID(ctx, id)
}

func (s *store) SaveAuthCode(_ context.Context, id, code string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.codes[code] = id
	return nil
}

func (s *store) DeleteAuthRequest(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.requests, id)
	return nil
}

func (s *store) CreateAccessToken(context.Context, op.TokenRequest) (id string, expires time.Time, err error) {
	return rand.Text(), time.Now().Add(tokenLife), nil
}

func (s *store) CreateAccessAndRefreshTokens(context.Context, op.TokenRequest, string) (id, refresh string, expires time.Time, err error) {
	return "", "", time.Time{}, errUnsupported
}

func (s *store) TokenRequestByRefreshToken(context.Context, string) (op.RefreshTokenRequest, error) {
	return nil, errUnsupported
}

func (s *store) TerminateSession(context.Context, string, string) error { return nil }

func (s *store) RevokeToken(context.Context, string, string, string) *oidc.Error { return nil }

func (s *store) GetRefreshTokenInfo(context.Context, string, string) (user, token string, err error) {
	return "", "", op.ErrInvalidRefreshToken
}

// GetPrivateClaimsFromRequest is what access tokens hold beside the usual.
func (s *store) GetPrivateClaimsFromRequest(_ context.Context, t op.TokenRequest, _ []string) (map[string]any, error) {
	claims := map[string]any{"scope": strings.Join(t.GetScopes(), " ")}
	if r, ok := t.(*request); ok && r.tenant != "" {
		claims["tenant"] = r.tenant
	}
	return claims, nil
}

// SetUserinfoFromRequest is what ID tokens hold beside the usual.
func (s *store) SetUserinfoFromRequest(_ context.Context, info *oidc.UserInfo, t op.IDTokenRequest, _ []string) error {
	info.Subject = t.GetSubject()
	if r, ok := t.(*request); ok && r.tenant != "" {
		info.AppendClaims("tenant", r.tenant)
	}
	return nil
}

func (s *store) SetUserinfoFromScopes(context.Context, *oidc.UserInfo, string, string, []string) error {
	return nil
}

func (s *store) SetUserinfoFromToken(_ context.Context, info *oidc.UserInfo, _, subject, _ string) error {
	info.Subject = subject
	return nil
}

func (s *store) SetIntrospectionFromToken(context.Context, *oidc.IntrospectionResponse, string, string, string) error {
	return errUnsupported
}

func (s *store) GetPrivateClaimsFromScopes(context.Context, string, string, []string) (map[string]any, error) {
	return nil, errUnsupported
}

func (s *store) GetKeyByIDAndClientID(context.Context, string, string) (*jose.JSONWebKey, error) {
	return nil, errUnsupported
}

func (s *store) ValidateJWTProfileScopes(context.Context, string, []string) ([]string, error) {
	return nil, errUnsupported
}

func (s *store) Health(context.Context) error { return nil }

func (s *store) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	c, ok := s.clients[id]
	if !ok {
		return nil, unknown("client", id)
	}
	return client{c, s.scopes}, nil
}

func (s *store) AuthorizeClientIDSecret(_ context.Context, id, secret string) error {
	c, ok := s.clients[id]
	if !ok || c.Secret == "" || subtle.ConstantTimeCompare([]byte(c.Secret), []byte(secret)) != 1 {
		return unknown("client or secret of", id)
	}
	return nil
}

func (s *store) ClientCredentials(ctx context.Context, id, secret string) (op.Client, error) {
	if err := s.AuthorizeClientIDSecret(ctx, id, secret); err != nil {
		return nil, err
	}
	return s.GetClientByClientID(ctx, id)
}

func (s *store) ClientCredentialsTokenRequest(ctx context.Context, id string, scopes []string) (op.TokenRequest, error) {
	r := &request{subject: id, tenant: s.clients[id].Tenant, audience: resourcesOf(ctx)}
	r.ClientID = id
	for _, scope := range scopes {
		if slices.Contains(s.scopes, scope) {
			r.Scopes = append(r.Scopes, scope)
		}
	}
	return r, nil
}

// client is a Client as the library wants it.
type client struct {
	Client

	scopes []string
}

func (c client) GetID() string                      { return c.ID }
func (c client) RedirectURIs() []string             { return c.Client.RedirectURIs }
func (client) PostLogoutRedirectURIs() []string     { return nil }
func (client) LoginURL(id string) string            { return "/login?id=" + id }
func (client) AccessTokenType() op.AccessTokenType  { return op.AccessTokenTypeJWT }
func (client) IDTokenLifetime() time.Duration       { return tokenLife }
func (client) DevMode() bool                        { return true } // http on loopback addresses
func (c client) IsScopeAllowed(scope string) bool   { return slices.Contains(c.scopes, scope) }
func (client) IDTokenUserinfoClaimsAssertion() bool { return true }
func (client) ClockSkew() time.Duration             { return 0 }

func (client) ResponseTypes() []oidc.ResponseType {
	return []oidc.ResponseType{oidc.ResponseTypeCode}
}

func (c client) ApplicationType() op.ApplicationType {
	if c.Secret == "" {
		return op.ApplicationTypeNative
	}
	return op.ApplicationTypeWeb
}

func (c client) AuthMethod() oidc.AuthMethod {
	if c.Secret == "" {
		return oidc.AuthMethodNone
	}
	return oidc.AuthMethodBasic
}

func (c client) GrantTypes() []oidc.GrantType {
	if len(c.Client.RedirectURIs) == 0 {
		return []oidc.GrantType{oidc.GrantTypeClientCredentials}
	}
	return []oidc.GrantType{oidc.GrantTypeCode}
}

func (client) RestrictAdditionalIdTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}

func (client) RestrictAdditionalAccessTokenScopes() func([]string) []string {
	return func(scopes []string) []string { return scopes }
}
