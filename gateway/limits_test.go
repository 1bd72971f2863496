package gateway

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/render"
)

// TestRates: what is beyond a tenant's rate is refused with the time after which
// it will not be, in the words that each kind of request reads.
func TestRates(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "other", "slow")
	appendTo(t, file, "tenants:\n  slow:\n    request_rate: 0.5\n    request_burst: 3\n  acme:\n    request_rate: 7\n")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	var mu sync.Mutex
	asked := map[render.Tenant]string{}
	closed := map[render.Tenant]bool{}
	b.farm.OnRequest = func(tenant render.Tenant, perSecond float64, burst int) (bool, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		asked[tenant] = fmt.Sprint(perSecond, " ", burst)
		return !closed[tenant], 1500*time.Millisecond + time.Microsecond
	}
	shut := func(tenant render.Tenant) {
		mu.Lock()
		defer mu.Unlock()
		closed[tenant] = true
	}
	for _, key := range keys {
		b.key = key
		if a := b.rpc(noCaps, "tools/list", ""); a.Error != nil {
			t.Fatalf("below the rate: %s", a.Raw)
		}
	}
	for tenant, want := range map[render.Tenant]string{"acme": "7 4000", "other": "200 4000", "slow": "0.5 3"} {
		if asked[tenant] != want {
			t.Errorf("%s was counted with %q, want %q", tenant, asked[tenant], want)
		}
	}
	b.key = keys[2]
	shown, _ := object(t, b.call(noCaps, "vidforge_get_capabilities", "{}").Structured)["limits"].(map[string]any)
	for name, want := range map[string]any{"requests_per_second": 0.5, "requests_at_once": 3.0, "max_concurrent_renders": 16.0, "render_minutes_per_month": 90.0, "max_storage_bytes": 5e6, "max_open_requests": 2048.0, "max_sessions": 1024.0} {
		if shown[name] != want {
			t.Errorf("limits.%s is %v, want %v", name, shown[name], want)
		}
	}
	shut("acme")
	b.key = keys[1]
	if a := b.rpc(noCaps, "tools/list", ""); a.Error != nil {
		t.Errorf("another tenant's rate: %s", a.Raw)
	}
	b.key = keys[0]
	wants := func(what string, e envelope) {
		t.Helper()
		if string(e.RetryAfterMS) != "1501" || e.RateLimitRemaining == nil || *e.RateLimitRemaining != 0 || e.Details["limit"] != "requests" {
			t.Errorf("%s: %+v", what, e)
		}
	}
	args := fmt.Sprintf(`{"render_id":%q}`, render.NewID())
	e := b.wantToolError(noCaps, "vidforge_get_render_status", args, render.CodeRateLimited)
	wants("tools/call", e)
	if e.Repair == nil || e.Repair.Tool != "vidforge_get_render_status" || string(e.Repair.Arguments) != args {
		t.Errorf("repair %+v", e.Repair)
	}
	for _, c := range []struct{ method, params string }{
		{"tasks/get", fmt.Sprintf(`{"taskId":%q}`, render.NewID())}, {"tools/list", ""}, {"server/discover", ""},
		{"resources/read", `{"uri":"vidforge://guide"}`}, {"subscriptions/listen", `{"notifications":{}}`},
	} {
		a := b.rpc(tasks, c.method, c.params)
		if a.Status != http.StatusOK || a.Error == nil || a.Error.Code != 42900 {
			t.Errorf("%s: %d %s", c.method, a.Status, a.Raw)
			continue
		}
		wants(c.method, b.wantEnvelope(a.Error.Data, render.CodeRateLimited, false))
	}
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/assets", ""}, {"POST", "/v1/assets:presign", "{}"}, {"GET", "/mcp", ""},
		{"POST", "/mcp", `{"jsonrpc":"2.0","method":"notifications/cancelled"}`}, {"POST", "/mcp", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`},
		{"POST", "/mcp", `{"jsonrpc":"2.0","id":1,"result":{}}`}, {"POST", "/mcp", `not JSON`},
	} {
		res, body := b.do(c.method, c.path, strings.NewReader(c.body), "Content-Type", "application/json")
		wants(c.method+" "+c.path, b.wantHTTPError(res, body, render.CodeRateLimited))
		if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "2" {
			t.Errorf("%s %s: %d, Retry-After %q", c.method, c.path, res.StatusCode, res.Header.Get("Retry-After"))
		}
	}
	// Older clients read JSON as well.
	for version, structured := range map[string]bool{"2025-11-25": true, "2025-06-18": true, "2025-03-26": false, "": false} {
		a := b.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"vidforge_get_capabilities"}}`, "Content-Type", "application/json",
			"Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", version)
		r := decode[toolResult](t, a.Result)
		if !r.IsError || (r.Structured != nil) != structured || r.ResultType != "" || len(r.Content) != 1 {
			t.Errorf("%q: %s", version, a.Raw)
		}
	}
	if n := b.refused("requests"); n != 17 {
		t.Errorf("metrics show %v refused requests, want 17", n)
	}
	if want := "tenant=" + render.Tenant("acme").Key(); !strings.Contains(b.logs.String(), want) {
		t.Errorf("the log of requests lacks %s", want)
	}
}

// TestNoRatesOnLoopback: a farm without keys has no limits of requests.
func TestNoRatesOnLoopback(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.farm.OnRequest = func(render.Tenant, float64, int) (bool, time.Duration) {
		t.Error("a request was counted")
		return true, 0
	}
	b.rpc(noCaps, "tools/list", "")
}

// TestOpenRequests: a credential has so many streams and requests open, and one
// more when one ends. Other credentials have their own.
func TestOpenRequests(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "acme")
	b := newBench(t, func(c *Config) { c.KeysFile, c.MaxOpenRequests = file, 2 })
	b.key = keys[0]
	id := b.submit(tasks, renderArgs(b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()))
	b.pause(id)
	open := func(key string) (*http.Response, context.CancelFunc) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"taskIds":[%q]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"},"io.modelcontextprotocol/clientCapabilities":%s}}}`, id, tasks)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.url+"/mcp", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range map[string]string{"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen", "Authorization": "Bearer " + key} {
			req.Header.Set(k, v)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cancel(); _ = res.Body.Close() })
		return res, cancel
	}
	for range 2 {
		if res, _ := open(keys[0]); res.Header.Get("Content-Type") != "text/event-stream" {
			t.Fatalf("a stream within the limit: %d %v", res.StatusCode, res.Header)
		}
	}
	a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error == nil || a.Error.Code != 42900 {
		t.Fatalf("one too many: %s", a.Raw)
	}
	if e := b.wantEnvelope(a.Error.Data, render.CodeRateLimited, false); e.Details["limit"] != "open_requests" || string(e.RetryAfterMS) == "null" {
		t.Errorf("one too many: %+v", e)
	}
	res, body := b.do("GET", "/v1/renders/"+string(id), nil)
	b.wantHTTPError(res, body, render.CodeRateLimited)
	_, end := open(keys[1])
	end()
	// The render's end ends the streams.
	b.apply(id, render.Cancelled{By: "test"})
	for {
		if a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id)); a.Error == nil {
			break // the handlers of the streams are about to return
		}
	}
}

// TestSessionsAreBounded: a credential has so many sessions, and one more when
// one ends.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "acme")
	b := newBench(t, func(c *Config) { c.KeysFile, c.MaxSessions = file, 2 })
	h := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}
	hello := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":` + oldHello + `}`
	begin := func(key string) string {
		t.Helper()
		b.key = key
		res, raw := b.do("POST", "/mcp", strings.NewReader(hello), h...)
		if res.StatusCode != http.StatusOK || res.Header.Get("Mcp-Session-Id") == "" {
			t.Fatalf("initialize: %d %s", res.StatusCode, raw)
		}
		return res.Header.Get("Mcp-Session-Id")
	}
	first := begin(keys[0])
	begin(keys[0])
	a := b.post(hello, h...)
	if a.Error == nil || a.Error.Code != 42900 {
		t.Fatalf("one too many: %s", a.Raw)
	}
	if e := b.wantEnvelope(a.Error.Data, render.CodeRateLimited, false); e.Details["limit"] != "sessions" || string(e.RetryAfterMS) == "null" {
		t.Errorf("one too many: %+v", e)
	}
	begin(keys[1])
	b.key = keys[0]
	if res, _ := b.do("DELETE", "/mcp", nil, append(h, "Mcp-Session-Id", first)...); res.StatusCode/100 != 2 {
		t.Fatalf("end a session: %d", res.StatusCode)
	}
	for {
		if a := b.post(hello, h...); a.Error == nil {
			break // the session is about to be gone
		}
	}
}

// TestBodies: a body beyond the limit of MCP requests is refused before it is
// read.
func TestBodies(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	res, body := b.do("POST", "/mcp", strings.NewReader(strings.Repeat(" ", 1<<20+1)), "Content-Type", "application/json")
	if e := b.wantHTTPError(res, body, render.CodeSourceTooLarge); e.Details["field"] != "body" || res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %+v", res.StatusCode, e)
	}
}

// TestHandedOverIsCountedOnce: a request of a session that lives elsewhere costs
// one token.
func TestHandedOverIsCountedOnce(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 2, "acme")
	var mu sync.Mutex
	n := 0
	r.farm.OnRequest = func(render.Tenant, float64, int) (bool, time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		n++
		return true, 0
	}
	s := r.begin(0, 0) // two requests
	s.wants(1, 200, "vidforge_render_video", "tools/list", "{}")
	mu.Lock()
	defer mu.Unlock()
	if n != 3 {
		t.Errorf("3 requests were counted as %d", n)
	}
}

// TestUnsubscribeIsOnesOwn: a session cannot end what another subscribed to.
func TestUnsubscribeIsOnesOwn(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 1, "acme")
	src := r.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())
	v, _, err := r.farm.Submit(t.Context(), "acme", submission(src))
	if err != nil {
		t.Fatal(err)
	}
	uri := v.Record.ID.LogURI()
	params := fmt.Sprintf(`{"uri":%q}`, uri)
	one, two := r.begin(0, 0), r.begin(0, 0)
	stream := one.send(t.Context(), 0, http.MethodGet, "")
	one.wants(0, 200, "result", "resources/subscribe", params)
	if err := r.farm.WaitWatched(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		two.wants(0, 200, "result", "resources/unsubscribe", params)
	}
	if _, err := r.farm.Cancel(t.Context(), "acme", v.Record.ID, "test"); err != nil {
		t.Fatal(err)
	}
	until(t, bufio.NewReader(stream.Body), uri)

	// Whoever subscribes twice gives up once.
	if v, _, err = r.farm.Submit(t.Context(), "acme", submission(src)); err != nil {
		t.Fatal(err)
	}
	params = fmt.Sprintf(`{"uri":%q}`, v.Record.ID.LogURI())
	for range 2 {
		one.wants(0, 200, "result", "resources/subscribe", params)
	}
	if err := r.farm.WaitWatched(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	one.wants(0, 200, "result", "resources/unsubscribe", params)
	if err := r.farm.WaitEnded(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
}

// refused reads the counter of refused requests.
func (b *bench) refused(limit string) float64 {
	b.Helper()
	families, err := b.srv.cfg.Registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "vidforge_requests_refused_total" && m.GetLabel()[0].GetValue() == limit {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func appendTo(t *testing.T, file, text string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, append(b, text...), 0o600); err != nil {
		t.Fatal(err)
	}
}
