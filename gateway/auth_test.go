package gateway

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// TestCredentials: missing, wrong, and too weak are three answers.
func TestCredentials(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "acme: asset:read", "acme: render:write")
	expired, e, err := apikey.New("acme", "", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	e.Expires = time.Now().Add(-time.Minute)
	if err := apikey.Add(file, e); err != nil {
		t.Fatal(err)
	}
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	headers := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/list"}
	for name, c := range map[string]struct {
		authorization string
		code          render.Code
		challenge     string
	}{
		"none":          {"", render.CodeCredentialMissing, `Bearer realm="vidforge"`},
		"another kind":  {"Digest x", render.CodeCredentialMissing, `Bearer realm="vidforge"`},
		"no key at all": {"Bearer abc", render.CodeCredentialInvalid, `error="invalid_token"`},
		"unknown":       {"Bearer vf_aaaaaaaaaa_" + strings.Repeat("a", 52), render.CodeCredentialInvalid, `error="invalid_token"`},
		"another's end": {"Bearer " + keys[0][:len(keys[0])-1] + map[bool]string{true: "b", false: "a"}[keys[0][len(keys[0])-1] == 'a'], render.CodeCredentialInvalid, `error="invalid_token"`},
		"expired":       {"Bearer " + expired, render.CodeCredentialInvalid, `error="invalid_token"`},
	} {
		for _, path := range []string{"/mcp", "/v1/assets"} {
			res, body := b.do("POST", path, strings.NewReader(list), append(headers, "Authorization", c.authorization)...)
			b.wantHTTPError(res, body, c.code)
			if got := res.Header.Get("WWW-Authenticate"); !strings.Contains(got, c.challenge) || strings.Contains(got, "error=") != (c.code == render.CodeCredentialInvalid) {
				t.Errorf("%s %s: WWW-Authenticate %q", name, path, got)
			}
		}
	}
	b.key = keys[0]
	if a := b.rpc(noCaps, "tools/list", ""); a.Error != nil {
		t.Errorf("a good key: %s", a.Raw)
	}
	if logs := b.logs.String(); strings.Contains(logs, keys[0]) {
		t.Error("a key is in the logs")
	}

	src := b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()
	id := b.submit(tasks, renderArgs(src))
	b.pause(id)
	status := fmt.Sprintf(`{"render_id":%q}`, id)
	reader, writer := keys[1], keys[2]
	for _, c := range []struct {
		key, method, params string
		scope               string // "" passes
	}{
		{reader, "tools/call", `{"name":"vidforge_render_video","arguments":` + plainArgs(src) + `}`, "render:write"},
		{reader, "tools/call", `{"name":"vidforge_approve_watermark","arguments":{"render_id":"` + string(id) + `","approved":true}}`, "render:write"},
		{reader, "tools/call", `{"name":"vidforge_cancel_render","arguments":` + status + `}`, "render:write"},
		{reader, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, id), "render:write"},
		{reader, "tasks/update", fmt.Sprintf(`{"taskId":%q,"inputResponses":{}}`, id), "render:write"},
		{reader, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id), ""},
		{reader, "tools/call", `{"name":"vidforge_get_render_status","arguments":` + status + `}`, ""},
		{reader, "tools/call", `{"name":"vidforge_probe_asset","arguments":{"asset_uri":"` + src + `"}}`, ""},
		{reader, "tools/call", `{"name":"vidforge_get_capabilities","arguments":{}}`, ""},
		{reader, "resources/read", fmt.Sprintf(`{"uri":%q}`, id.LogURI()), ""},
		{writer, "tools/call", `{"name":"vidforge_probe_asset","arguments":{"asset_uri":"` + src + `"}}`, "asset:read"},
		{writer, "tools/call", `{"name":"vidforge_validate_render","arguments":` + plainArgs(src) + `}`, "asset:read"},
		{writer, "tools/call", `{"name":"vidforge_get_render_status","arguments":` + status + `}`, ""},
	} {
		b.key = c.key
		a := b.rpc(tasks, c.method, c.params)
		if c.scope == "" {
			if a.Status != 200 || a.Error != nil || strings.Contains(a.Raw, "insufficient_scope") {
				t.Errorf("%s %s: %d %s", c.method, c.params, a.Status, a.Raw)
			}
			continue
		}
		if a.Status != 403 {
			t.Errorf("%s %s: %d %s", c.method, c.params, a.Status, a.Raw)
			continue
		}
		e := b.wantEnvelope([]byte(a.Raw), render.CodeInsufficientScope, true)
		if fmt.Sprint(e.Details["required_scopes"]) != "["+c.scope+"]" || e.Details["resource"] != b.url+"/mcp" {
			t.Errorf("%s: details %v", c.method, e.Details)
		}
	}
	if b.farm.Record(id).State != render.StateAwaitingApproval {
		t.Error("a key without the scope changed the render")
	}
	b.key = reader
	res, body := b.do("POST", "/v1/assets", strings.NewReader("x"))
	b.wantHTTPError(res, body, render.CodeInsufficientScope)
	if got := res.Header.Get("WWW-Authenticate"); !strings.Contains(got, `error="insufficient_scope", scope="asset:write"`) {
		t.Errorf("WWW-Authenticate %q", got)
	}
}

// TestScopesBehindTheGate: what the gate cannot read, the handlers refuse.
func TestScopesBehindTheGate(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme: asset:write")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	// The gate decodes "Name" as "name" and lets the harmless tool pass; the
	// SDK, which does not, calls the other.
	a := b.rpc(tasks, "tools/call", `{"name":"vidforge_render_video","arguments":`+plainArgs(b.source())+`,"Name":"vidforge_get_capabilities"}`, "Mcp-Name", "vidforge_render_video")
	if !strings.Contains(a.Raw, "insufficient_scope") {
		t.Errorf("%d %s", a.Status, a.Raw)
	}
	if res, _ := b.do("GET", "/v1/assets", nil); res.StatusCode != 403 {
		t.Errorf("list: %d", res.StatusCode)
	}
}

// TestKeysAreReadAgain: a new key works and a revoked one stops, without a
// restart; a file that went wrong changes nothing.
func TestKeysAreReadAgain(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	status := func(key string) int {
		b.key = key
		res, _ := b.do("GET", "/v1/assets", nil)
		return res.StatusCode
	}
	until := func(what, key string, want int) {
		t.Helper()
		deadline := time.Now().Add(time.Minute)
		for status(key) != want {
			if time.Now().After(deadline) {
				t.Fatalf("%s: still not %d", what, want)
			}
			time.Sleep(50 * time.Millisecond) // the file is looked at once a second
		}
	}
	if got := status(keys[0]); got != 200 {
		t.Fatalf("first key: %d", got)
	}
	secret, e, err := apikey.New("acme", "", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := apikey.Add(file, e); err != nil {
		t.Fatal(err)
	}
	until("added", secret, 200)
	id, _ := apikey.ParseID(keys[0])
	if err := apikey.Revoke(file, id); err != nil {
		t.Fatal(err)
	}
	until("revoked", keys[0], 401)
	if got := status(secret); got != 200 {
		t.Errorf("the other key: %d", got)
	}
}

// TestSessionsBelongToTheirKey: another key cannot use a session, nor learn
// that it is there.
func TestSessionsBelongToTheirKey(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "other")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	h := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}
	res, _ := b.do("POST", "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`), h...)
	h = append(h, "Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25")
	list := `{"jsonrpc":"2.0","id":2,"method":"tools/list","params":{}}`
	if res, _ := b.do("POST", "/mcp", strings.NewReader(list), h...); res.StatusCode != 200 {
		t.Errorf("own session: %d", res.StatusCode)
	}
	b.key = keys[1]
	if res, _ := b.do("POST", "/mcp", strings.NewReader(list), h...); res.StatusCode != 404 {
		t.Errorf("foreign session: %d", res.StatusCode)
	}
}

// TestOtherSites: browsers of other origins, and names that only point here.
func TestOtherSites(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.PublicURL = "https://render.example.org" })
	for name, c := range map[string]struct {
		method, path string
		headers      []string
		host         string
		refused      bool
	}{
		"no browser":        {"GET", "/v1/assets", nil, "", false},
		"own origin":        {"GET", "/v1/assets", []string{"Origin", "https://render.example.org"}, "", false},
		"loopback origin":   {"GET", "/v1/assets", []string{"Origin", b.url}, "", false},
		"foreign origin":    {"GET", "/v1/assets", []string{"Origin", "https://evil.example.org"}, "", true},
		"null origin":       {"GET", "/v1/assets", []string{"Origin", "null"}, "", true},
		"foreign post":      {"POST", "/v1/assets", []string{"Origin", "https://evil.example.org"}, "", true},
		"cross-site post":   {"POST", "/v1/assets", []string{"Sec-Fetch-Site", "cross-site"}, "", true},
		"same-origin post":  {"POST", "/v1/assets", []string{"Sec-Fetch-Site", "same-origin"}, "", false},
		"foreign mcp":       {"POST", "/mcp", []string{"Origin", "https://evil.example.org"}, "", true},
		"rebound name":      {"GET", "/v1/assets", nil, "evil.example.org", true},
		"rebound with port": {"GET", "/v1/assets", nil, "evil.example.org:8080", true},
		"localhost":         {"GET", "/v1/assets", nil, "localhost:1", false},
		"IPv6 loopback":     {"GET", "/v1/assets", nil, "[::1]:1", false},
		"public name":       {"GET", "/v1/assets", nil, "render.example.org", false},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, b.url+c.path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		if c.host != "" {
			req.Host = c.host
		}
		for i := 0; i+1 < len(c.headers); i += 2 {
			req.Header.Set(c.headers[i], c.headers[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
		if (res.StatusCode == 403) != c.refused {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
}
