package e2e

import (
	"context"
	"io"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/vidforge/vidforge/deploy/e2e/idp"
	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
)

// signInFarm is a farm of two gateways behind one address, each of which gets
// every second request, with previews that wait for a person.
type signInFarm struct {
	*testing.T

	base string
	idp  *idp.Provider
	id   string // a render that waits
}

func startSignInFarm(t *testing.T) *signInFarm {
	t.Helper()
	share := embeddedtest.Servers(t)
	var targets [2]*url.URL
	var turn atomic.Uint64
	front := httptest.NewServer(proxy(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(targets[turn.Add(1)%2])
		p.Out.Host = p.In.Host
	}}))
	t.Cleanup(front.Close)
	f := &signInFarm{T: t, base: front.URL, idp: idp.New(t, idp.Options{
		Users: []idp.User{
			{Name: "alice", Password: "secret", Subject: "u-1", Tenant: "local"},
			{Name: "bob", Password: "secret", Subject: "u-2", Tenant: "acme"},
			{Name: "carol", Password: "secret", Subject: "u-3"},
		},
		Clients: []idp.Client{{ID: "vidforge", Secret: "client secret", RedirectURIs: []string{front.URL + "/sign-in/callback"}}},
	})}
	for i := range targets {
		ctx, cancel := context.WithCancel(context.Background())
		ready, done := make(chan gateway.Bound, 1), make(chan error, 1)
		go func() {
			done <- gateway.Run(ctx, gateway.Config{
				Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", PublicURL: front.URL, Endpoints: share.Endpoints, Logger: quiet(),
				ApprovalPolicy: "human", SignInIssuer: f.idp.URL, SignInClientID: "vidforge", SignInClientSecret: "client secret",
				Ready: func(b gateway.Bound) { ready <- b },
			})
		}()
		select {
		case b := <-ready:
			targets[i] = &url.URL{Scheme: "http", Host: b.Listen}
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("gateway: %v", err)
				}
			})
		case err := <-done:
			cancel()
			t.Fatalf("the gateway ended: %v", err)
		}
	}
	startWorker(t, share, "w1")
	a := &agent{url: f.base, t: t, tasks: true, forms: true}
	task := a.call("vidforge_render_video", args(a.upload(clip(t, 1, "320x240")), map[string]any{"watermark": map[string]any{"text": "vidforge"}}))
	f.id, _ = task.Result["taskId"].(string)
	paused := a.poll(f.id, "input_required", "failed", "completed")
	if in, _ := paused.Result["inputRequests"].(map[string]any); paused.Result["status"] != "input_required" || len(in) != 0 {
		t.Fatalf("paused: %+v", paused)
	}
	return f
}

func (f *signInFarm) page() string { return f.base + "/v1/renders/" + f.id + "/approval" }

// web is a browser without a window: it keeps cookies and follows redirects.
type web struct {
	*signInFarm

	client *http.Client
}

func (f *signInFarm) browser() *web {
	f.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		f.Fatal(err)
	}
	return &web{f, &http.Client{Jar: jar, CheckRedirect: asBrowsers}}
}

// asBrowsers goes on with GET as browsers do, which say no origin then.
func asBrowsers(r *http.Request, _ []*http.Request) error {
	r.Header.Del("Origin")
	r.Header.Del("Sec-Fetch-Site")
	return nil
}

// visit sends a request; with a form it posts that as our own pages do.
func (b *web) visit(at string, form url.Values) (status int, where *url.URL, body string) {
	b.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	req, err := http.NewRequestWithContext(b.Context(), method, at, strings.NewReader(form.Encode()))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", "null")
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	res, err := b.client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	return res.StatusCode, res.Request.URL, string(raw)
}

// signIn opens the page at and signs in at the provider on the way.
func (b *web) signIn(at, name string) (status int, where *url.URL, body string) {
	b.Helper()
	_, login, page := b.visit(at, nil)
	if login.Path != "/login" {
		b.Fatalf("not sent to the provider, but to %s: %s", login, page)
	}
	return b.visit(login.String(), url.Values{"id": {login.Query().Get("id")}, "username": {name}, "password": {"secret"}})
}

var formToken = regexp.MustCompile(`name="csrf_token" value="([^"]+)"`)

// TestSignIn: a person of the render's tenant signs in at a real OpenID
// provider, through any gateway of the farm, and decides; nobody else does.
func TestSignIn(t *testing.T) {
	t.Parallel()
	f := startSignInFarm(t)
	// Another tenant's person finds as much as at a render that nobody has.
	bob := f.browser()
	status, _, body := bob.signIn(f.page(), "bob")
	unknown := f.base + "/v1/renders/task_aaaaaaaaaaaaaaaaaaaaaaaaaa/approval"
	if other, _, same := bob.visit(unknown, nil); status != http.StatusNotFound || other != status || !strings.Contains(body, `"render_not_found"`) || len(same) != len(body) {
		t.Errorf("another tenant: %d %s; unknown: %d %s", status, body, other, same)
	}
	if status, _, body := bob.visit(f.page(), url.Values{"decision": {"approve"}, "csrf_token": {"x"}}); status == http.StatusOK || strings.Contains(body, "approved") {
		t.Errorf("another tenant decides: %d %s", status, body)
	}
	if status, _, body := f.browser().signIn(f.page(), "carol"); status != http.StatusUnauthorized || !strings.Contains(body, "tenant") {
		t.Errorf("without a tenant: %d %s", status, body)
	}

	alice := f.browser()
	status, where, body := alice.signIn(f.page(), "alice")
	token := formToken.FindStringSubmatch(body)
	if status != http.StatusOK || where.Path != "/v1/renders/"+f.id+"/approval" || token == nil || !strings.Contains(body, "Signed in as u-1") {
		t.Fatalf("signed in: %d %s %s", status, where, body)
	}
	form := url.Values{"decision": {"approve"}, "csrf_token": {token[1]}, "note": {"as agreed"}}
	// The form is alice's: neither a stranger nor another sign-in of hers may
	// send it.
	if status, _, body := f.browser().visit(f.page(), form); status != http.StatusUnauthorized {
		t.Errorf("nobody: %d %s", status, body)
	}
	again := f.browser()
	again.signIn(f.page(), "alice")
	if status, _, body := again.visit(f.page(), form); status != http.StatusBadRequest || !strings.Contains(body, "csrf_token") {
		t.Errorf("another sign-in: %d %s", status, body)
	}
	if status, _, body := alice.visit(f.page(), form); status != http.StatusOK || !strings.Contains(body, "<strong>approved</strong>") || !strings.Contains(body, "by u-1") || !strings.Contains(body, "as agreed") {
		t.Errorf("decided: %d %s", status, body)
	}
	if status, _, _ := alice.visit(f.base+"/sign-out", url.Values{}); status != http.StatusOK {
		t.Errorf("sign-out: %d", status)
	}
	if _, where, _ := alice.visit(f.page(), nil); where.Path != "/login" {
		t.Errorf("after signing out: %s", where)
	}
}

// TestSignInAnswers: what comes back from the provider is taken once, by the
// browser that asked, with the state that it was given.
func TestSignInAnswers(t *testing.T) {
	t.Parallel()
	f := startSignInFarm(t)
	b := f.browser()
	var answer *url.URL
	b.client.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		if r.URL.Path == "/sign-in/callback" {
			answer = r.URL
			return http.ErrUseLastResponse
		}
		return asBrowsers(r, nil)
	}
	_, login, _ := b.visit(f.page(), nil)
	b.visit(login.String(), url.Values{"id": {login.Query().Get("id")}, "username": {"alice"}, "password": {"secret"}})
	if answer == nil {
		t.Fatal("no answer")
	}
	b.client.CheckRedirect = asBrowsers
	if status, _, body := f.browser().visit(answer.String(), nil); status != http.StatusUnauthorized {
		t.Errorf("in another browser: %d %s", status, body)
	}
	for name, change := range map[string]url.Values{"another state": {"state": {"x"}}, "no state": {"state": {""}}} {
		forged := *answer
		q := forged.Query()
		maps.Copy(q, change)
		forged.RawQuery = q.Encode()
		if status, _, body := b.visit(forged.String(), nil); status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if status, where, body := b.visit(answer.String(), nil); status != http.StatusOK || where.String() != f.page() {
		t.Errorf("the answer: %d %s %s", status, where, body)
	}
	if status, _, body := b.visit(answer.String(), nil); status != http.StatusUnauthorized {
		t.Errorf("the answer again: %d %s", status, body)
	}
}

// TestSignInInBrowser does it in Chromium, whose forms of a no-referrer page say
// "Origin: null".
func TestSignInInBrowser(t *testing.T) {
	t.Parallel()
	f := startSignInFarm(t)
	browser, err := findBrowser()
	if err != nil {
		t.Fatal(err)
	}
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]),
		chromedp.ExecPath(browser), chromedp.NoSandbox, // tests may run as root, and the pages are ours
		chromedp.Flag("disable-gpu", true), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	defer cancel()
	ctx, cancel = chromedp.NewContext(ctx)
	defer cancel()
	err = chromedp.Do(ctx,
		chromedp.Navigate(f.page()),
		chromedp.WaitVisible(`input[name="username"]`),
		chromedp.SendKeys(`input[name="username"]`, "alice"),
		chromedp.SendKeys(`input[name="password"]`, "secret"),
		chromedp.Click(`#sign-in`),
		chromedp.WaitVisible(`button[value="approve"]`),
		chromedp.SendKeys(`#note`, "seen"),
		chromedp.Click(`button[value="approve"]`),
		chromedp.WaitVisible(`main > p > strong`),
	)
	if err != nil {
		t.Fatal(err)
	}
	text, err := chromedp.Run(ctx, chromedp.Text(`main`))
	if err != nil || !strings.Contains(text, "approved") || !strings.Contains(text, "by u-1") || !strings.Contains(text, "seen") {
		t.Errorf("the page says %q, %v", text, err)
	}
	if err := chromedp.Do(ctx, chromedp.Click(`form[action="/sign-out"] button`), chromedp.WaitVisible(`h1`)); err != nil {
		t.Fatal(err)
	}
}
