package gateway

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// humanBench is a farm without credentials whose previews wait for a person.
func humanBench(t *testing.T) *bench {
	t.Helper()
	return newBench(t, func(c *Config) { c.ApprovalPolicy = apikey.PolicyHuman })
}

// TestHumanPolicy: agents are told to ask the user, whatever they can show, and
// nothing that they send decides.
func TestHumanPolicy(t *testing.T) {
	t.Parallel()
	b := humanBench(t)
	id := b.submit(formCaps, renderArgs(b.source()))
	b.pause(id)
	page := b.url + "/v1/renders/" + string(id) + "/approval"
	for name, caps := range map[string]string{"forms": formCaps, "nothing": tasks} {
		v := b.task(caps, id)
		message, _ := v["statusMessage"].(string)
		if in := inputs(t, v); v["status"] != "input_required" || in == nil || len(in) != 0 || !strings.Contains(message, page) || !strings.Contains(message, "vidforge_get_render_status") || strings.Contains(message, "vidforge_approve_watermark") {
			t.Errorf("%s: %v", name, v)
		}
	}
	for name, caps := range map[string]string{"pages": urlCaps, "both": bothCaps} {
		in := inputs(t, b.task(caps, id))
		params, _ := in["watermark-approval-1-url"]["params"].(map[string]any)
		if len(in) != 1 || params["mode"] != "url" || params["url"] != page {
			t.Errorf("%s: %v", name, in)
		}
	}
	tool := "vidforge_approve_watermark"
	e := b.wantToolError(tasks, tool, fmt.Sprintf(`{"render_id":%q,"approved":true}`, id), render.CodeApprovalRequiresHuman)
	if e.Repair == nil || e.Repair.Tool != "vidforge_get_render_status" || !strings.Contains(e.Repair.Alternative, page) {
		t.Errorf("repair %+v", e.Repair)
	}
	b.wantToolError(tasks, tool, fmt.Sprintf(`{"render_id":%q,"approved":true}`, render.NewID()), render.CodeRenderNotFound)
	v := object(t, b.call(tasks, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured)
	if next, _ := v["follow_up"].(map[string]any); v["approval_url"] != page || next["tool"] != "vidforge_get_render_status" {
		t.Errorf("status: %v", v)
	}
	c := object(t, b.call(tasks, "vidforge_get_capabilities", `{}`).Structured)
	if a, _ := c["approval"].(map[string]any); a["policy"] != "human" {
		t.Errorf("capabilities: %v", c["approval"])
	}
	older := b.at(videorender.Path)
	older.wantToolError(tasks, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true}`, id), render.CodeApprovalRequiresHuman)
	v = object(t, older.call(tasks, "video_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured)
	if p, _ := v["pending_input"].(map[string]any); p["reason"] != "approval_requires_human" || p["tool"] != "video_get_render_status" {
		t.Errorf("video_render: %v", v)
	}
	if _, shown, token := b.page(id); token != "" || !strings.Contains(shown, "Sign in") {
		t.Errorf("the page offers a form: %s", shown)
	}
	res, raw := b.postForm(id, url.Values{"decision": {"approve"}, "csrf_token": {"x"}})
	b.wantHTTPError(res, raw, render.CodeApprovalRequiresHuman)
	if d := b.farm.Record(id).Decision; d != nil {
		t.Fatalf("decided: %+v", d)
	}
	if !strings.Contains(b.logs.String(), "action=decide result=approval_requires_human detail=approved channel=tool") {
		t.Errorf("no audit line in %s", b.logs)
	}
}

// TestFormBeforeHumanPolicy: a form that was sent while agents decided is
// answered, and decides nothing any more.
func TestFormBeforeHumanPolicy(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme")
	b := newBench(t, func(c *Config) {
		c.KeysFile, c.SignInIssuer, c.SignInClientID = file, "https://login.example.org", "vidforge"
	})
	b.key = keys[0]
	id := b.submit(formCaps, renderArgs(b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()))
	b.pause(id)
	if in := inputs(t, b.task(formCaps, id)); in["watermark-approval-1"] == nil {
		t.Fatalf("no form: %v", in)
	}
	strict, key := withKeys(t, "acme")
	raw, err := os.ReadFile(strict)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(strict, append(raw, "tenants:\n  acme:\n    approval_policy: human\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	after := startOver(t, Config{KeysFile: strict, SignInIssuer: "https://login.example.org", SignInClientID: "vidforge"}, b.farm, shared{formKey: []byte("f"), sessionKey: []byte("s"), signInKey: []byte("i")})
	late := *b
	late.url, late.key = "http://"+after.bound.Listen, key[0]
	late.wantAck(late.update(formCaps, id, `{"watermark-approval-1":{"action":"accept","content":{"approved":true}}}`))
	v := late.task(formCaps, id)
	if b.farm.Record(id).Decision != nil || v["status"] != "input_required" || len(inputs(t, v)) != 0 {
		t.Errorf("after the form: %v", v)
	}
	// The API key sees the page, and does not decide on it.
	if _, page, token := late.page(id); token != "" || !strings.Contains(page, "A person decides") {
		t.Errorf("page: %s", page)
	}
	res, body := late.postForm(id, url.Values{"decision": {"approve"}})
	if v := decode[envelope](t, body); res.StatusCode != http.StatusForbidden || v.Code != "approval_requires_human" {
		t.Errorf("by a key: %d %s", res.StatusCode, body)
	}
	res, body = late.do("POST", "/v1/renders/"+string(render.NewID())+"/approval", strings.NewReader("decision=approve"), "Content-Type", "application/x-www-form-urlencoded")
	if v := decode[envelope](t, body); res.StatusCode != http.StatusNotFound || v.Code != "render_not_found" {
		t.Errorf("an unknown render: %d %s", res.StatusCode, body)
	}
}

// TestHumanPolicyNeedsSignIn: a gateway on which nobody could decide does not
// start.
func TestHumanPolicyNeedsSignIn(t *testing.T) {
	t.Parallel()
	file, _ := withKeys(t, "acme")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	human, _ := withKeys(t)
	if err := os.WriteFile(human, append(raw, "tenants:\n  acme:\n    approval_policy: human\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Config{
		"keys":         {ApprovalPolicy: "human", KeysFile: file},
		"tokens":       {ApprovalPolicy: "human", OAuthIssuers: "https://login.example.org", PublicURL: "https://render.example.org"},
		"a tenant":     {KeysFile: human},
		"unknown":      {ApprovalPolicy: "nobody"},
		"no issuer":    {SignInClientID: "vidforge"},
		"no client":    {SignInIssuer: "https://login.example.org"},
		"plain http":   {SignInIssuer: "http://login.example.org", SignInClientID: "vidforge"},
		"public http":  {SignInIssuer: "https://login.example.org", SignInClientID: "vidforge", PublicURL: "http://render.example.org"},
		"no such file": {KeysFile: file + "x"},
	} {
		c = c.withDefaults()
		err := c.validate()
		if err == nil {
			_, err = newServer(c, farmtest.New(newClock().now), shared{formKey: []byte("f"), sessionKey: []byte("s"), signInKey: []byte("i")}, "127.0.0.1:1")
		}
		if err == nil {
			t.Errorf("%s: starts", name)
		}
	}
}

// TestSignInByCode: on a farm of one machine the person signs in with the code
// from the console, decides, and is recorded.
func TestSignInByCode(t *testing.T) {
	t.Parallel()
	b := humanBench(t)
	code := b.srv.signInCode
	if len(code) < 20 || strings.Contains(b.logs.String(), code) {
		t.Fatalf("code %q, or it is in the log", code)
	}
	id := b.submit(tasks, renderArgs(b.source()))
	b.pause(id)
	page := "/v1/renders/" + string(id) + "/approval"
	html := []string{"Accept", "text/html"}
	res, _ := b.do("GET", page, nil, html...)
	to := res.Header.Get("Location")
	if res.StatusCode != http.StatusSeeOther || to != "/sign-in?render="+string(id) {
		t.Fatalf("not sent to sign in: %d %q", res.StatusCode, to)
	}
	if res, got := b.do("GET", to, nil, html...); res.StatusCode != 200 || !strings.Contains(string(got), `name="code"`) || res.Header.Get("Referrer-Policy") != "no-referrer" {
		t.Fatalf("sign-in page: %d %s", res.StatusCode, got)
	}
	send := func(code string, headers ...string) *http.Response {
		res, _ := b.do("POST", "/sign-in", strings.NewReader(url.Values{"render": {string(id)}, "code": {code}}.Encode()), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, headers...)...)
		return res
	}
	for _, wrong := range []string{"", "x", code[1:]} {
		if res := send(wrong); res.StatusCode != 401 || len(res.Cookies()) != 0 {
			t.Errorf("%q: %d %v", wrong, res.StatusCode, res.Cookies())
		}
	}
	if res := send(code, "Origin", "null", "Sec-Fetch-Site", "cross-site"); res.StatusCode != 403 {
		t.Errorf("another site signs in: %d", res.StatusCode)
	}
	res = send(code, "Origin", "null", "Sec-Fetch-Site", "same-origin")
	cookies := res.Cookies()
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != page || len(cookies) != 1 || !cookies[0].HttpOnly || cookies[0].SameSite != http.SameSiteLaxMode || cookies[0].MaxAge > 3600 {
		t.Fatalf("sign-in: %d %v", res.StatusCode, cookies)
	}
	cookie := cookies[0].Name + "=" + cookies[0].Value
	second := send(code).Cookies()[0]
	other := second.Name + "=" + second.Value
	_, shown := b.do("GET", page, nil, "Accept", "text/html", "Cookie", cookie)
	m := tokenPattern.FindSubmatch(shown)
	if m == nil || !strings.Contains(string(shown), "Signed in as console") {
		t.Fatalf("page: %s", shown)
	}
	form := url.Values{"csrf_token": {string(m[1])}, "decision": {"approve"}, "note": {"fine"}}
	for name, h := range map[string][]string{
		"nobody": {}, "a changed cookie": {"Cookie", cookie[:len(cookie)-2] + "xx"}, "another sign-in": {"Cookie", other},
		"another site": {"Cookie", cookie, "Origin", "null", "Sec-Fetch-Site", "cross-site"}, "an old browser": {"Cookie", cookie, "Origin", "null"},
	} {
		if res, _ := b.postForm(id, form, h...); res.StatusCode < 400 || b.farm.Record(id).Decision != nil {
			t.Errorf("%s: %d", name, res.StatusCode)
		}
	}
	if res, got := b.postForm(id, form, "Cookie", cookie, "Origin", "null", "Sec-Fetch-Site", "same-origin"); res.StatusCode != http.StatusSeeOther {
		t.Fatalf("decision: %d %s", res.StatusCode, got)
	}
	d := b.farm.Record(id).Decision
	if d == nil || !d.Approved || d.By != "console" || d.Channel != render.ChannelPage || d.Note != "fine" || d.At.IsZero() {
		t.Errorf("recorded %+v", d)
	}
	if logs := b.logs.String(); !strings.Contains(logs, "msg=audit action=decide result=ok detail=approved channel=page render_id="+string(id)) || strings.Contains(logs, "fine") || strings.Contains(logs, cookies[0].Value) {
		t.Errorf("log: %s", logs)
	}
	res, _ = b.do("POST", "/sign-out", nil, "Cookie", cookie, "Origin", "null", "Sec-Fetch-Site", "same-origin")
	if out := res.Cookies(); res.StatusCode != 200 || len(out) != 1 || out[0].MaxAge >= 0 || out[0].Value != "" {
		t.Errorf("sign-out: %d %v", res.StatusCode, out)
	}
}

// TestAuditLines: cancels and what is handed out are in the log, without a URL
// that grants something.
func TestAuditLines(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id, other := b.submit(tasks, renderArgs(b.source())), b.submit(tasks, plainArgs(b.source()))
	b.pause(id)
	b.call(tasks, "vidforge_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true,"note":"the user likes it"}`, id))
	b.do("GET", "/v1/renders/"+string(id)+"/preview.png", nil)
	b.finish(id, []byte("video"))
	b.do("GET", "/v1/renders/"+string(id)+"/video", nil)
	b.rpc(tasks, "resources/read", fmt.Sprintf(`{"uri":"vidforge://videos/%s/final.mp4"}`, id))
	b.call(tasks, "vidforge_cancel_render", fmt.Sprintf(`{"render_id":%q}`, other))
	b.rpc(tasks, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, render.NewID()))
	logs := b.logs.String()
	for line, want := range map[string]int{
		"action=decide result=ok detail=approved channel=tool render_id=" + string(id): 1,
		"action=download_video result=ok":                                              2,
		"action=download_preview result=ok":                                            1,
		`action=cancel result=ok detail="" channel="" render_id=` + string(other):      1,
	} {
		if got := strings.Count(logs, line); got != want {
			t.Errorf("%d of %q, want %d", got, line, want)
		}
	}
	for line := range strings.Lines(logs) {
		if strings.Contains(line, "msg=audit") && (!strings.Contains(line, "subject=local") || !strings.Contains(line, "request_id=req_") || !strings.Contains(line, "tenant=")) {
			t.Errorf("line %s", line)
		}
	}
	if strings.Contains(logs, "likes") {
		t.Error("the note is in the log")
	}
}

// TestProviderAway: a gateway starts and serves without its OpenID provider, says
// so to whoever wants to sign in, and does not ask it again at once.
func TestProviderAway(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		http.Error(w, "away", http.StatusBadGateway)
	}))
	defer provider.Close()
	b := newBench(t, func(c *Config) {
		c.ApprovalPolicy, c.SignInIssuer, c.SignInClientID = apikey.PolicyHuman, provider.URL, "vidforge"
	})
	for range 3 {
		if res, raw := b.do("GET", "/sign-in?render="+string(render.NewID()), nil); res.StatusCode != http.StatusServiceUnavailable || decode[envelope](t, raw).Code != string(render.CodeUnavailable) {
			t.Errorf("%d %s", res.StatusCode, raw)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the provider was asked %d times", n)
	}
	if res, _ := b.do("GET", "/sign-in?render=x", nil); res.StatusCode != http.StatusBadRequest {
		t.Errorf("no render: %d", res.StatusCode)
	}
}
