package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/vidforge/vidforge/deploy/e2e/idp"
	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
)

// callback is where the tests' clients wait for codes. Nothing listens there:
// the browser stops before.
const callback = "http://127.0.0.1/callback"

// newIDP runs an authorization server with a person, a program that acts for
// people, and one that acts for itself.
func newIDP(t *testing.T) *idp.Provider {
	t.Helper()
	return idp.New(t, idp.Options{
		Users:   []idp.User{{Name: "alice", Password: "secret", Subject: "u-1", Tenant: "acme"}},
		Clients: []idp.Client{{ID: "agent", RedirectURIs: []string{callback}}, {ID: "robot", Secret: "robot secret", Tenant: "acme"}, {ID: "stray", Secret: "stray secret"}},
		Scopes:  []string{"render:write", "asset:read", "asset:write"},
	})
}

// startProtected runs a gateway that takes the provider's tokens.
func startProtected(t *testing.T, p *idp.Provider) (base string) {
	t.Helper()
	share := embeddedtest.Servers(t)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan gateway.Bound, 1), make(chan error, 1)
	go func() {
		done <- gateway.Run(ctx, gateway.Config{
			Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", Endpoints: share.Endpoints, OAuthIssuers: p.URL,
			Logger: quiet(), Ready: func(b gateway.Bound) { ready <- b },
		})
	}()
	select {
	case b := <-ready:
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("gateway: %v", err)
			}
		})
		return "http://" + b.Listen
	case err := <-done:
		cancel()
		t.Fatalf("the gateway ended: %v", err)
		return ""
	}
}

// signIn is alice with her browser: she follows the authorization URL, signs in
// and is sent back to the client.
func signIn(ctx context.Context, at string) (*auth.AuthorizationResult, error) {
	jar, err := cookiejar.New(nil)
	if err != nil {
		return nil, err
	}
	var back *url.URL
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), callback) {
			back = r.URL
			return http.ErrUseLastResponse
		}
		return nil
	}}
	visit := func(method, at string, form url.Values) (*url.URL, error) {
		req, err := http.NewRequestWithContext(ctx, method, at, strings.NewReader(form.Encode()))
		if err != nil {
			return nil, err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := browser.Do(req)
		if err != nil {
			return nil, err
		}
		return res.Request.URL, res.Body.Close()
	}
	page, err := visit(http.MethodGet, at, nil)
	if err != nil {
		return nil, err
	}
	if _, err := visit(http.MethodPost, page.String(), url.Values{"id": {page.Query().Get("id")}, "username": {"alice"}, "password": {"secret"}}); err != nil {
		return nil, err
	}
	if back == nil {
		return nil, fmt.Errorf("no way back from %s", page)
	}
	return &auth.AuthorizationResult{Code: back.Query().Get("code"), State: back.Query().Get("state"), Iss: back.Query().Get("iss")}, nil
}

// TestAuthorizationServer: the official Go client finds a real authorization
// server by the gateway's challenge, lets a person sign in, and steps up when a
// call needs another scope.
func TestAuthorizationServer(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	base := startProtected(t, p)
	for _, endpoint := range []string{"/mcp", "/mcp/video-render"} {
		t.Run(endpoint, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			var asked []url.Values
			handler, err := auth.NewAuthorizationCodeHandler(&auth.AuthorizationCodeHandlerConfig{
				PreregisteredClient: &oauthex.ClientCredentials{ClientID: "agent", Issuer: p.URL},
				RedirectURL:         callback,
				// Less than is offered at first; what a refusal names later.
				ScopeFilter: func(scopes []string) []string {
					if slices.Contains(scopes, "asset:read") {
						return []string{"asset:read"}
					}
					return scopes
				},
				AuthorizationCodeFetcher: func(ctx context.Context, args *auth.AuthorizationArgs) (*auth.AuthorizationResult, error) {
					u, err := url.Parse(args.URL)
					if err != nil {
						return nil, err
					}
					mu.Lock()
					asked = append(asked, u.Query())
					mu.Unlock()
					return signIn(ctx, args.URL)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: base + endpoint, OAuthHandler: handler}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			tools, err := session.ListTools(t.Context(), nil)
			if err != nil || len(tools.Tools) < 4 {
				t.Fatalf("tools: %v", err)
			}
			name := tools.Tools[len(tools.Tools)-1].Name
			for _, tool := range tools.Tools {
				if strings.HasSuffix(tool.Name, "cancel_render") {
					name = tool.Name
				}
			}
			res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: map[string]any{"render_id": "task_aaaaaaaaaaaaaaaaaaaaaaaaaa"}})
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if b, err := json.Marshal(res); err != nil || !strings.Contains(string(b), `"render_not_found"`) {
				t.Errorf("%s: %s %v", name, b, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if len(asked) != 2 || asked[0].Get("resource") != base+endpoint || asked[0].Get("scope") != "asset:read" || !strings.Contains(asked[1].Get("scope"), "render:write") {
				t.Errorf("authorizations %v", asked)
			}
		})
	}
}

// robotToken is a token of a program that acts for itself.
func robotToken(t *testing.T, p *idp.Provider, client, resource, scope string) string {
	t.Helper()
	form := url.Values{"grant_type": {"client_credentials"}, "scope": {scope}}
	if resource != "" {
		form.Set("resource", resource)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL+"/oauth/token", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.SetBasicAuth(client, url.QueryEscape(client+" secret"))
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	var got struct {
		AccessToken string `json:"access_token"`
	}
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil || got.AccessToken == "" {
		t.Fatalf("token: %s %v", res.Status, err)
	}
	return got.AccessToken
}

// TestTokensOfAnAuthorizationServer: which of a real server's tokens are good
// where, and that its keys may rotate.
func TestTokensOfAnAuthorizationServer(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	base := startProtected(t, p)
	ask := func(what, path, token string, status int, code string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != status || !strings.Contains(string(body), code) {
			t.Errorf("%s: %d %s %v, want %d %s", what, res.StatusCode, body, err, status, code)
		}
	}
	const all = "render:write asset:read asset:write"
	good := robotToken(t, p, "robot", base+"/mcp", all)
	ask("good", "/v1/assets", good, 200, "assets")
	ask("of the other endpoint", "/v1/assets", robotToken(t, p, "robot", base+"/mcp/video-render", all), 401, "credential_invalid")
	ask("of no resource", "/v1/assets", robotToken(t, p, "robot", "", all), 401, "credential_invalid")
	ask("without the scope", "/v1/assets", robotToken(t, p, "robot", base+"/mcp", "render:write"), 403, "insufficient_scope")
	ask("without a tenant", "/v1/assets", robotToken(t, p, "stray", base+"/mcp", all), 401, "tenant")
	p.Rotate(t)
	ask("by a new key", "/v1/assets", robotToken(t, p, "robot", base+"/mcp", all+" openid"), 200, "assets")
	ask("by the old key", "/v1/assets", good, 200, "assets")
	// Tokens by known keys go on without the authorization server.
	last := robotToken(t, p, "robot", base+"/mcp", "asset:read")
	p.Close()
	ask("issuer gone", "/v1/assets", last, 200, "assets")
}
