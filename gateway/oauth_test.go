package gateway

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/modelcontextprotocol/go-sdk/oauthex"

	"github.com/vidforge/vidforge/gateway/internal/auth/authtest"
	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/render"
)

// protected is a bench whose clients need tokens.
type protected struct {
	*bench
	issuer *authtest.Issuer
	signer jose.JSONWebKey
}

func newProtected(t *testing.T, change ...func(*Config)) *protected {
	t.Helper()
	k := authtest.NewKey(t, "k1", jose.ES256)
	p := &protected{issuer: authtest.New(t, k), signer: k}
	p.bench = newBench(t, append([]func(*Config){func(c *Config) { c.OAuthIssuers = p.issuer.URL }}, change...)...)
	return p
}

// token is one for an endpoint of the gateway.
func (p *protected) token(endpoint string, changes map[string]any) string {
	p.Helper()
	return authtest.Sign(p, p.signer, p.issuer.Claims(time.Now(), p.srv.publicURL+endpoint, changes), nil)
}

// challenge is what an answer's WWW-Authenticate says.
func (p *protected) challenge(res *http.Response) map[string]string {
	p.Helper()
	all, err := oauthex.ParseWWWAuthenticate(res.Header.Values("WWW-Authenticate"))
	if err != nil || len(all) == 0 || all[0].Scheme != "bearer" {
		p.Errorf("challenges %q: %v", res.Header.Values("WWW-Authenticate"), err)
		return nil
	}
	return all[0].Params
}

const listTools = `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`

func (p *protected) list(endpoint, token string, headers ...string) (*http.Response, []byte) {
	p.Helper()
	h := append([]string{
		"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list",
	}, headers...)
	if token != "" {
		h = append(h, "Authorization", "Bearer "+token)
	}
	return p.do("POST", endpoint, strings.NewReader(listTools), h...)
}

// TestMetadata: each challenge leads to the metadata of its endpoint, whose
// resource is the endpoint's URL, also below a path.
func TestMetadata(t *testing.T) {
	t.Parallel()
	for name, public := range map[string]string{"no path": "https://render.example.org", "a path": "https://example.org/render/farm/", "the bound address": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProtected(t, func(c *Config) { c.PublicURL = public })
			base := strings.TrimRight(public, "/")
			if public == "" {
				base = p.url
			}
			for path, endpoint := range map[string]string{"/mcp": "/mcp", "/mcp/video-render": "/mcp/video-render", "/v1/assets": "/mcp"} {
				res, body := p.list(path, "")
				p.wantHTTPError(res, body, render.CodeCredentialMissing)
				at := p.challenge(res)["resource_metadata"]
				host, rest, ok := strings.Cut(at, "/.well-known/oauth-protected-resource")
				if !ok || !strings.HasPrefix(base, host) || host+rest != base+endpoint {
					t.Errorf("%s: metadata at %q", path, at)
				}
				res, body = p.do("GET", strings.TrimPrefix(at, host), nil)
				var meta map[string]any
				if err := json.Unmarshal(body, &meta); err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "application/json" {
					t.Fatalf("%s: %d %s %v", at, res.StatusCode, body, err)
				}
				if meta["resource"] != base+endpoint || fmt.Sprint(meta["authorization_servers"]) != "["+p.issuer.URL+"]" ||
					fmt.Sprint(meta["scopes_supported"]) != "[render:write asset:read asset:write]" || fmt.Sprint(meta["bearer_methods_supported"]) != "[header]" {
					t.Errorf("%s: %v", at, meta)
				}
				// A proxy may have taken the path away.
				if _, short := p.do("GET", "/.well-known/oauth-protected-resource"+endpoint, nil); string(short) != string(body) {
					t.Errorf("%s: without the path %s", at, short)
				}
				res, body = p.list(endpoint, p.token(endpoint, nil))
				if res.StatusCode != 200 {
					t.Errorf("a token for %s: %d %s", meta["resource"], res.StatusCode, body)
				}
			}
			if res, _ := p.do("POST", "/.well-known/oauth-protected-resource/mcp", nil); res.StatusCode != 405 {
				t.Errorf("POST of metadata: %d", res.StatusCode)
			}
			if res, _ := p.do("GET", "/.well-known/oauth-protected-resource/mcp/other", nil); res.StatusCode != 404 {
				t.Errorf("metadata of nothing: %d", res.StatusCode)
			}
		})
	}
	b := newBench(t)
	if res, _ := b.do("GET", "/.well-known/oauth-protected-resource/mcp", nil); res.StatusCode != 404 {
		t.Errorf("metadata without tokens: %d", res.StatusCode)
	}
}

// TestTokens: missing, wrong, and too weak are three answers at every endpoint;
// and a token is good for its own.
func TestTokens(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme")
	p := newProtected(t, func(c *Config) { c.KeysFile = file })
	mcp, older := p.token("/mcp", nil), p.token("/mcp/video-render", nil)
	for name, c := range map[string]struct {
		endpoint, token string
		code            render.Code
		reason          string
	}{
		"good":                 {"/mcp", mcp, "", ""},
		"good, older":          {"/mcp/video-render", older, "", ""},
		"an API key":           {"/mcp", keys[0], "", ""},
		"an API key, older":    {"/mcp/video-render", keys[0], "", ""},
		"none":                 {"/mcp", "", render.CodeCredentialMissing, ""},
		"none, older":          {"/mcp/video-render", "", render.CodeCredentialMissing, ""},
		"none, API":            {"/v1/assets", "", render.CodeCredentialMissing, ""},
		"of the other":         {"/mcp", older, render.CodeCredentialInvalid, "issued for"},
		"of the other, older":  {"/mcp/video-render", mcp, render.CodeCredentialInvalid, "issued for"},
		"of the other, API":    {"/v1/assets", older, render.CodeCredentialInvalid, "issued for"},
		"expired":              {"/mcp", p.token("/mcp", map[string]any{"exp": 1}), render.CodeCredentialInvalid, "expired"},
		"no tenant":            {"/mcp", p.token("/mcp", map[string]any{"tenant": nil}), render.CodeCredentialInvalid, "tenant"},
		"another issuer":       {"/mcp", p.token("/mcp", map[string]any{"iss": "https://evil.example.org"}), render.CodeCredentialInvalid, "issuer"},
		"no token":             {"/mcp", "abc", render.CodeCredentialInvalid, "JWT"},
		"nearly an API key":    {"/mcp", "vf_abc", render.CodeCredentialInvalid, ""},
		"unknown API key":      {"/mcp", "vf_aaaaaaaaaa_" + strings.Repeat("a", 52), render.CodeCredentialInvalid, "API key"},
		"a huge one":           {"/mcp", strings.Repeat("a", 30<<10), render.CodeCredentialInvalid, "longer"},
		"no scope, API":        {"/v1/assets", p.token("/mcp", map[string]any{"scope": "render:write"}), render.CodeInsufficientScope, ""},
		"another's scope, API": {"/v1/assets", p.token("/mcp", map[string]any{"scope": "asset:*", "scp": []string{"write"}}), render.CodeInsufficientScope, ""},
	} {
		res, body := p.list(c.endpoint, c.token)
		if c.code == "" {
			if res.StatusCode != 200 {
				t.Errorf("%s: %d %s", name, res.StatusCode, body)
			}
			continue
		}
		p.wantHTTPError(res, body, c.code)
		got := p.challenge(res)
		want := map[render.Code]string{render.CodeCredentialMissing: "", render.CodeCredentialInvalid: "invalid_token", render.CodeInsufficientScope: "insufficient_scope"}[c.code]
		if got["error"] != want || !strings.Contains(got["error_description"], c.reason) || got["resource_metadata"] == "" {
			t.Errorf("%s: challenge %v", name, got)
		}
		if c.code == render.CodeInsufficientScope && got["scope"] != "asset:write" {
			t.Errorf("%s: scope %q", name, got["scope"])
		}
	}
	// Headers that could be read in two ways, and places where no token belongs.
	for code, headers := range map[render.Code][]string{render.CodeCredentialMissing: nil, render.CodeCredentialInvalid: {"Bearer " + mcp, "Bearer " + mcp}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/mcp?access_token="+mcp, strings.NewReader(listTools))
		if err != nil {
			t.Fatal(err)
		}
		req.Header["Authorization"] = headers
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		p.wantHTTPError(res, body, code)
	}
	for _, secret := range []string{mcp, older, strings.Split(mcp, ".")[1], "alice"} {
		if strings.Contains(p.logs.String(), secret) {
			t.Errorf("the log holds %s", secret)
		}
	}
}

// TestTokensDo: what tokens may do, and as whom.
func TestTokensDo(t *testing.T) {
	t.Parallel()
	p := newProtected(t)
	src := p.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()
	p.key = p.token("/mcp", nil)
	id := p.submit(tasks, renderArgs(src))
	p.pause(id)
	p.key = p.token("/mcp", map[string]any{"tenant": "other"})
	if a := p.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)); a.Error == nil || !strings.Contains(a.Raw, "task_not_found") {
		t.Errorf("another tenant: %s", a.Raw)
	}
	p.key = p.token("/mcp", map[string]any{"scope": "asset:read"})
	a := p.rpc(tasks, "tools/call", fmt.Sprintf(`{"name":"vidforge_approve_watermark","arguments":{"render_id":%q,"approved":true}}`, id))
	e := p.wantEnvelope([]byte(a.Raw), render.CodeInsufficientScope, true)
	if a.Status != 403 || fmt.Sprint(e.Details["required_scopes"]) != "[render:write]" || e.Details["resource"] != p.url+"/mcp" {
		t.Errorf("without the scope: %d %s", a.Status, a.Raw)
	}
	p.key = p.token("/mcp", map[string]any{"sub": "auth0|carol"})
	if a := p.rpc(tasks, "tools/call", fmt.Sprintf(`{"name":"vidforge_approve_watermark","arguments":{"render_id":%q,"approved":true}}`, id)); a.Error != nil {
		t.Fatal(a.Raw)
	}
	if d := p.farm.Record(id).Decision; d == nil || d.By != "auth0|carol" {
		t.Errorf("decision %+v", d)
	}
	p.key = ""
	res, body := p.do("POST", "/v1/assets?name=a.mov", strings.NewReader("x"), "Authorization", "Bearer "+p.token("/mcp", nil))
	if res.StatusCode != 201 {
		t.Errorf("upload: %d %s", res.StatusCode, body)
	}
}

// TestSessionsOutliveTokens: a session goes on with another token of the same
// subject, and is unknown to everybody else.
func TestSessionsOutliveTokens(t *testing.T) {
	t.Parallel()
	p := newProtected(t)
	ask := func(session string, changes map[string]any, body string) *http.Response {
		h := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Authorization", "Bearer " + p.token("/mcp", changes)}
		if session != "" {
			h = append(h, "Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25")
		}
		res, _ := p.do("POST", "/mcp", strings.NewReader(body), h...)
		return res
	}
	res := ask("", nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":`+oldHello+`}`)
	id := res.Header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("initialize: %d", res.StatusCode)
	}
	for name, c := range map[string]struct {
		changes map[string]any
		status  int
	}{
		"another token":   {map[string]any{"jti": "2", "exp": time.Now().Unix() + 900}, 200},
		"fewer scopes":    {map[string]any{"scope": ""}, 200},
		"another subject": {map[string]any{"sub": "bob"}, 404},
		"another tenant":  {map[string]any{"tenant": "other"}, 404},
	} {
		if res := ask(id, c.changes, `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`); res.StatusCode != c.status {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
}

// TestIssuerIsDown: a gateway starts without its issuer, says that it cannot
// tell, and goes on with what it knows.
func TestIssuerIsDown(t *testing.T) {
	t.Parallel()
	p := newProtected(t)
	p.issuer.Change(func(a *authtest.Answers) { a.Broken = true })
	for range 2 {
		res, body := p.list("/mcp", p.token("/mcp", nil))
		p.wantHTTPError(res, body, render.CodeUnavailable)
		if res.Header.Get("WWW-Authenticate") != "" || res.Header.Get("Retry-After") == "" {
			t.Errorf("headers %v", res.Header)
		}
	}
	if n := p.issuer.KeyFetches(); n != 0 {
		t.Errorf("%d fetches of keys without metadata", n)
	}
}

// TestPagesOfOtherSites: pages of allowed origins use MCP and the API, with
// their own credential, but not what is for people.
func TestPagesOfOtherSites(t *testing.T) {
	t.Parallel()
	const app, evil, own = "https://app.example.org", "https://evil.example.org", "https://render.example.org"
	p := newProtected(t, func(c *Config) {
		c.PublicURL = own
		c.AllowedOrigins = "http://localhost:6274, " + app
	})
	approval := "/v1/renders/" + string(render.NewID()) + "/approval"
	wanted := "authorization,content-type,mcp-method,mcp-name,mcp-param-region,mcp-protocol-version,mcp-session-id,traceparent"
	for _, c := range []struct {
		method, path, origin string
		allowed              bool
	}{
		{"POST", "/mcp", app, true},
		{"GET", "/mcp", app, true},
		{"DELETE", "/mcp", "http://localhost:6274", true},
		{"POST", "/mcp/video-render", app, true},
		{"POST", "/v1/assets", app, true},
		{"GET", "/v1/renders/" + string(render.NewID()) + "/video", app, true},
		{"PUT", "/mcp", app, false},
		{"POST", "/mcp", evil, false},
		{"POST", "/mcp", app + ".evil.example.org", false},
		{"POST", "/mcp", app + ":8443", false},
		{"POST", "/mcp", "http://app.example.org", false},
		{"POST", "/mcp", "null", false},
		{"POST", approval, app, false},
		{"GET", approval, app, false},
		{"GET", "/", app, false},
		{"GET", "/.well-known/oauth-protected-resource/mcp", evil, true},
		{"POST", "/.well-known/oauth-protected-resource/mcp", evil, false},
	} {
		name := c.method + " " + c.path + " of " + c.origin
		res, _ := p.do("OPTIONS", c.path, nil, "Origin", c.origin, "Access-Control-Request-Method", c.method, "Access-Control-Request-Headers", wanted)
		h := res.Header
		if allowed := h.Get("Access-Control-Allow-Origin") == c.origin && strings.Contains(h.Get("Access-Control-Allow-Methods"), c.method); allowed != c.allowed {
			t.Errorf("%s: %d %v", name, res.StatusCode, h)
		}
		if c.allowed && (res.StatusCode != 204 || h.Get("Access-Control-Allow-Headers") != wanted || h.Get("Access-Control-Allow-Credentials") != "") {
			t.Errorf("%s: preflight %d %v", name, res.StatusCode, h)
		}
		if !c.allowed && c.method != "PUT" && !strings.HasPrefix(c.path, "/.well-known/") && res.StatusCode != 403 {
			t.Errorf("%s: preflight %d", name, res.StatusCode)
		}
	}
	for _, c := range []struct {
		method, path, origin string
		status               int
	}{
		{"POST", "/mcp", app, 200},
		{"POST", "/mcp", own, 200},
		{"POST", "/mcp", evil, 403},
		{"POST", "/mcp", "null", 403},
		{"POST", approval, app, 403},
		{"GET", approval, app, 403},
		{"GET", "/v1/assets", app, 200},
		{"GET", "/v1/assets", evil, 403},
	} {
		site := map[string]string{own: "same-origin"}[c.origin]
		if site == "" {
			site = "cross-site"
		}
		res, body := p.do(c.method, c.path, strings.NewReader(listTools), "Content-Type", "application/json", "Accept", "application/json, text/event-stream",
			"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list", "Authorization", "Bearer "+p.token("/mcp", nil), "Origin", c.origin, "Sec-Fetch-Site", site)
		if res.StatusCode != c.status {
			t.Errorf("%s %s of %s: %d %s", c.method, c.path, c.origin, res.StatusCode, body)
		}
		if allow := res.Header.Values("Access-Control-Allow-Origin"); c.status == 200 && c.origin == app && (!slices.Equal(allow, []string{app}) || !strings.Contains(res.Header.Get("Vary"), "Origin")) ||
			c.origin != app && len(allow) > 0 {
			t.Errorf("%s %s of %s: allowed %q", c.method, c.path, c.origin, allow)
		}
	}
	// A page must be able to read why it was refused.
	res, _ := p.list("/mcp", "", "Origin", app)
	exposed := res.Header.Get("Access-Control-Expose-Headers")
	if res.StatusCode != 401 || res.Header.Get("Access-Control-Allow-Origin") != app || !strings.Contains(exposed, "Www-Authenticate") || !strings.Contains(exposed, "Mcp-Session-Id") {
		t.Errorf("refusal: %d, exposed %q", res.StatusCode, exposed)
	}
}

// TestOAuthSettings: what is wrong is named.
func TestOAuthSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{OAuthIssuers: "http://login.example.org"}, "OAuthIssuers"},
		{Config{OAuthIssuers: "https://login.example.org", OAuthAlgorithms: "HS256"}, "HS256"},
		{Config{OAuthIssuers: "https://login.example.org", OAuthLeeway: time.Hour}, "leeway"},
		{Config{AllowedOrigins: "*"}, "AllowedOrigins"},
		{Config{AllowedOrigins: "https://app.example.org/"}, "AllowedOrigins"},
		{Config{AllowedOrigins: "https://*.example.org"}, "AllowedOrigins"},
		{Config{Listen: "0.0.0.0:8080", OAuthIssuers: "https://login.example.org"}, "PublicURL"},
		{Config{Listen: "0.0.0.0:8080"}, "OAuthIssuers"},
	} {
		cfg := c.cfg.withDefaults()
		err := cfg.validate()
		if err == nil {
			var s *server
			if s, err = newServer(cfg, farmtest.New(time.Now), shared{formKey: []byte("a"), sessionKey: []byte("b")}, "127.0.0.1:1"); err == nil {
				s.closeEndpoints()
			}
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}
