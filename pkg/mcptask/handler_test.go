package mcptask

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"no implementation": func(o *Options) { o.Implementation = nil },
		"no store":          func(o *Options) { o.Store = nil },
		"negative limit":    func(o *Options) { o.MaxBodyBytes = -1 },
		"tool without code": func(o *Options) { o.Tools[0].Handle = nil },
		"no input schema":   func(o *Options) { o.Tools[0].Tool = &mcp.Tool{Name: "x"} },
	} {
		o := testOptions(newFakeStore())
		change(&o)
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// The two ways to tasks/get must not be told apart by any client.
func TestFastPathEqualsSlowPath(t *testing.T) {
	t.Parallel()
	s := newFakeStore(allTasks()...)
	s.owner["task_done"] = "alice"
	fast, slow := newHandler(t, testOptions(s)), newHandler(t, testOptions(s))
	slow.slowGet = true
	fastURL, slowURL := serve(t, fast), serve(t, slow)

	rnd := rand.New(rand.NewPCG(1, 2)) // reproducible
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	ids := []string{"task_nobody", "task_expired", "task_broken", "", "t>*./ x", "täsk"}
	for _, task := range allTasks() {
		ids = append(ids, task.ID)
	}
	answers := map[string]int{}
	for range 1500 {
		id := pick(ids...)
		quoted, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		meta := pick(metaDeclared, metaDeclared, metaDeclared, metaPlain, `"_meta":{}`, `"_meta":null`,
			strings.Replace(metaDeclared, "2026-07-28", "2026-07-29", 1),
			strings.Replace(metaDeclared, `"traceparent"`, `"io.modelcontextprotocol/clientInfo":{"name":"n","version":"1"},"traceparent"`, 1),
			strings.Replace(metaDeclared, `"traceparent"`, `"io.modelcontextprotocol/clientInfo":5,"traceparent"`, 1),
			strings.Replace(metaDeclared, `"traceparent"`, `"io.modelcontextprotocol/clientCapabilities":{"roots":{"listChanged":true}},"traceparent"`, 1),
			strings.Replace(metaDeclared, `{"extensions"`, `{"extensions":{},"extensions"`, 1),
			strings.Replace(metaDeclared, `"extensions"`, `"Extensions"`, 1))
		taskID := pick(string(quoted), string(quoted), string(quoted), string(quoted), "5", "null")
		params := pick(`{"taskId":`+taskID+`,`+meta+`}`, `{"taskId":`+taskID+`,`+meta+`}`, `{`+meta+`,"taskId":"other","taskId":`+taskID+`}`, `{`+meta+`,"TASKID":"other","taskId":`+taskID+`}`)
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%s,"params":%s}`,
			pick("1", `"a<b>"`, "-7", "1.5", "9007199254740993", `""`), pick(`"tasks/get"`, `"tasks/get"`, `"tasks/get"`, `"tasks\/get"`, `"tasks/cancel"`), params)
		name := id
		if strings.ContainsFunc(id, func(r rune) bool { return r > 126 }) {
			name = "=?base64?dMOkc2s=?="
		}
		headers := map[string]string{versionHeader: Version20260728, methodHeader: methodGet, nameHeader: name,
			"X-Principal": pick("alice", "bob", "")}
		a, b := do(t, rawRequest(fastURL, headers, body)), do(t, rawRequest(slowURL, headers, body))
		if a.status != b.status || a.message() != b.message() {
			t.Fatalf("%v\n%s\nfast %d %s\nslow %d %s", headers, body, a.status, a.message(), b.status, b.message())
		}
		answers[a.message()]++
	}
	if len(answers) < 40 {
		t.Errorf("only %d different answers were compared", len(answers))
	}
}

func TestCallerReachesHandlersAndStore(t *testing.T) {
	t.Parallel()
	s := newFakeStore(allTasks()...)
	s.owner["task_working"] = "alice"
	url := serve(t, newHandler(t, testOptions(s)))
	as := func(who string, r *http.Request) *http.Request { r.Header.Set("X-Principal", who); return r }

	got := do(t, as("alice", modernRequest(url, methodCall, "whoami", `"name":"whoami",`, metaDeclared)))
	if !strings.Contains(got.body, `"alice|2026-07-28|00-ab-cd-01"`) {
		t.Errorf("whoami: %s", got.body)
	}
	for _, method := range []string{methodGet, methodUpdate, methodCancel} {
		params := func(id string) string { return `"taskId":"` + id + `","inputResponses":{},` }
		own := do(t, as("alice", modernRequest(url, method, "task_working", params("task_working"), metaDeclared)))
		foreign := do(t, as("bob", modernRequest(url, method, "task_working", params("task_working"), metaDeclared)))
		unknown := do(t, as("bob", modernRequest(url, method, "task_nobody", params("task_nobody"), metaDeclared)))
		if own.status != http.StatusOK || foreign.status != http.StatusBadRequest || foreign.body != unknown.body {
			t.Errorf("%s: own %d, foreign %d %s, unknown %s", method, own.status, foreign.status, foreign.body, unknown.body)
		}
	}
	got = do(t, as("bob", modernRequest(url, methodListen, "", `"notifications":{"taskIds":["task_working"]},`, metaDeclared)))
	if !strings.Contains(got.body, `"taskIds":[]`) || strings.Contains(got.body, "task_working") {
		t.Errorf("foreign task in a listen: %s", got.body)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if want := []string{"task_working"}; !slices.Equal(s.cancelled, want) || s.updates == nil {
		t.Errorf("store saw cancels %v, updates %v", s.cancelled, s.updates)
	}
}

// asPrincipal is an HTTP client of one principal.
type asPrincipal string

func (p asPrincipal) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Principal", string(p))
	return http.DefaultTransport.RoundTrip(r)
}

func connect(t *testing.T, url, who string) *mcp.ClientSession {
	t.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, nil)
	ss, err := c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: asPrincipal(who)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := ss.Close(); err != nil {
			t.Logf("close: %v", err)
		}
	})
	return ss
}

// initialize opens a session of an older client by hand.
func initialize(t *testing.T, url, who, version string) string {
	t.Helper()
	got := do(t, rawRequest(url, map[string]string{"X-Principal": who},
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"`+version+`","capabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}},"clientInfo":{"name":"c","version":"1"}}}`))
	id := got.header.Get(sessionHeader)
	if got.status != http.StatusOK || id == "" {
		t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	note := do(t, rawRequest(url, map[string]string{"X-Principal": who, sessionHeader: id}, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
	if note.status != http.StatusAccepted {
		t.Fatalf("initialized: %d %s", note.status, note.body)
	}
	return id
}

func TestGoClient(t *testing.T) {
	t.Parallel()
	ss := connect(t, serve(t, newHandler(t, testOptions(newFakeStore()))), "carol")
	tools, err := ss.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 2 || tools.Tools[0].Name != "whoami" {
		t.Fatalf("tools: %v %v", tools, err)
	}
	res, err := ss.CallTool(t.Context(), &mcp.CallToolParams{Name: "whoami"})
	if err != nil {
		t.Fatal(err)
	}
	if text := res.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(text, "carol|2026-07-28|") {
		t.Errorf("whoami: %q", text)
	}
}

func TestOlderVersions(t *testing.T) {
	t.Parallel()
	url := serve(t, newHandler(t, testOptions(newFakeStore(allTasks()...))))
	for _, version := range []string{Version20250618, Version20250326} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			id := initialize(t, url, "alice", version)
			in := map[string]string{"X-Principal": "alice", sessionHeader: id, versionHeader: version}
			if version == Version20250326 {
				delete(in, versionHeader) // it had no such header
			}
			for name, c := range map[string]struct{ params, want string }{
				"tools/call whoami":   {`{"name":"whoami"}`, `"text":"alice|` + version + `|"`},
				"tools/call render":   {`{"name":"render","arguments":{},"task":{"ttl":1000}}`, `"text":"accepted"`},
				"tools/list":          {`{}`, `"name":"whoami"`},
				"tasks/get":           {`{"taskId":"task_working"}`, `"code":-32601`},
				"tasks/result":        {`{"taskId":"task_done"}`, `"code":-32601`},
				"tasks/list":          {`{}`, `"code":-32601`},
				"resources/read":      {`{"uri":"test://r"}`, `"text":"r"`},
				"resources/read no":   {`{"uri":"test://none"}`, `"code":-32602`},
				"resources/subscribe": {`{"uri":"test://r"}`, `"result":{}`},
				"tools/list bare":     {"", `"name":"whoami"`},
				"tasks/get bare":      {"", `"code":-32601`},
				"tools/call bare":     {"", "missing required"},
			} {
				method, _, _ := strings.Cut(name, " ")
				params := ""
				if c.params != "" {
					params = `,"params":` + c.params
				}
				got := do(t, rawRequest(url, in, `{"jsonrpc":"2.0","id":"`+name+`","method":"`+method+`"`+params+`}`))
				if !strings.Contains(got.body, c.want) || strings.Contains(got.body, "execution") || strings.Contains(got.body, "taskId") {
					t.Errorf("%s: %d %s, want %s", name, got.status, got.body, c.want)
				}
			}
		})
	}
}

// A POST of a session is made by whoever sent it, not by whoever opened it,
// and a session belongs to one principal.
func TestSessionsBelongToTheirPrincipal(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore()))
	url := serve(t, h)
	id := initialize(t, url, "alice", Version20251125)
	call := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}}`
	for who, status := range map[string]int{"alice": http.StatusOK, "bob": http.StatusNotFound, "": http.StatusNotFound} {
		got := do(t, rawRequest(url, map[string]string{"X-Principal": who, sessionHeader: id, versionHeader: Version20251125, requestHeader: "forged"}, call))
		if got.status != status || status == http.StatusOK && !strings.Contains(got.body, `"alice|`) {
			t.Errorf("%q: %d %s", who, got.status, got.body)
		}
		r := rawRequest(url, map[string]string{"X-Principal": who, sessionHeader: id}, "")
		if r.Method = http.MethodGet; who != "alice" {
			if got := do(t, r); got.status != http.StatusNotFound {
				t.Errorf("%q GET: %d", who, got.status)
			}
		}
	}
	end := rawRequest(url, map[string]string{"X-Principal": "alice", sessionHeader: id}, "")
	end.Method = http.MethodDelete
	if got := do(t, end); got.status != http.StatusNoContent {
		t.Errorf("DELETE: %d %s", got.status, got.body)
	}
	if got := do(t, rawRequest(url, map[string]string{"X-Principal": "alice", sessionHeader: id}, call)); got.status != http.StatusNotFound {
		t.Errorf("after DELETE: %d", got.status)
	}
	h.wg.Wait() // the session's end was noticed
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sessions) != 0 {
		t.Errorf("%d sessions left", len(h.sessions))
	}
}

func TestMethodsAndOrigins(t *testing.T) {
	t.Parallel()
	url := serve(t, newHandler(t, testOptions(newFakeStore(allTasks()...))))
	for name, c := range map[string]struct {
		method string
		change func(*http.Request)
		want   int
	}{
		"GET without a session":    {http.MethodGet, func(r *http.Request) { r.Header.Del(versionHeader) }, http.StatusMethodNotAllowed},
		"DELETE without a session": {http.MethodDelete, func(r *http.Request) { r.Header.Del(versionHeader) }, http.StatusMethodNotAllowed},
		"modern GET":               {http.MethodGet, func(r *http.Request) { r.Header.Set(sessionHeader, "x") }, http.StatusMethodNotAllowed},
		"unknown session":          {http.MethodGet, func(r *http.Request) { r.Header.Del(versionHeader); r.Header.Set(sessionHeader, "x") }, http.StatusNotFound},
		"rebound host":             {http.MethodPost, func(r *http.Request) { r.Host = "evil.example" }, http.StatusForbidden},
		"loopback host":            {http.MethodPost, func(r *http.Request) { r.Host = "localhost:80" }, http.StatusOK},
		"other origin":             {http.MethodPost, func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, http.StatusForbidden},
		"cross-site browser":       {http.MethodPost, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"session id is ignored":    {http.MethodPost, func(r *http.Request) { r.Header.Set(sessionHeader, "x") }, http.StatusOK},
		"a name twice":             {http.MethodPost, func(r *http.Request) { r.Header.Add(nameHeader, "task_done") }, http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := modernRequest(url, methodGet, "task_working", `"taskId":"task_working",`, metaDeclared)
			r.Method = c.method
			c.change(r)
			got := do(t, r)
			if got.status != c.want {
				t.Errorf("%d %s, want %d", got.status, got.body, c.want)
			}
			if c.want == http.StatusMethodNotAllowed && got.header.Get("Allow") != http.MethodPost {
				t.Errorf("Allow: %q", got.header.Get("Allow"))
			}
		})
	}
}

func TestMapErrorDecides(t *testing.T) {
	t.Parallel()
	o := testOptions(newFakeStore())
	var mu sync.Mutex
	seen := map[string]string{}
	o.MapError = func(ctx context.Context, c Caller, method string, err error) error {
		mu.Lock()
		defer mu.Unlock()
		if _, ok := CallerFrom(ctx); !ok || c.ProtocolVersion == "" {
			t.Errorf("%s: no caller", method)
		}
		seen[method] = err.Error()
		return &jsonrpc.Error{Code: 42900, Message: "slow down", Data: json.RawMessage(`{"machine_code":"rate_limited"}`)}
	}
	url := serve(t, newHandler(t, o))
	for method, r := range map[string]*http.Request{
		methodGet:        modernRequest(url, methodGet, "x", `"taskId":"x",`, metaDeclared),
		methodCancel:     modernRequest(url, methodCancel, "x", `"taskId":"x",`, metaDeclared),
		methodCall:       modernRequest(url, methodCall, "render", `"name":"render","arguments":{"fail":"hard"},`, metaDeclared),
		methodListen:     modernRequest(url, methodListen, "", `"notifications":{"taskIds":["task_broken"]},`, metaDeclared),
		"resources/read": modernRequest(url, "resources/read", "test://none", `"uri":"test://none",`, metaDeclared),
	} {
		if got := do(t, r); !strings.Contains(got.message(), `"error":{"code":42900,"message":"slow down","data":{"machine_code":"rate_limited"}}`) {
			t.Errorf("%s: %s", method, got.body)
		}
		mu.Lock()
		if seen[method] == "" {
			t.Errorf("%s: MapError was not asked", method)
		}
		mu.Unlock()
	}
}

// A client that goes away ends its request, and nothing else.
func TestClosedConnectionEndsTheRequestOnly(t *testing.T) {
	t.Parallel()
	m := NewMemory(MemoryOptions{})
	t.Cleanup(m.Close)
	o := testOptions(m)
	entered, left, created := make(chan struct{}), make(chan struct{}), make(chan *Task, 1)
	release := make(chan struct{})
	o.Tools[0].Handle = func(ctx context.Context, c Caller, _ *mcp.CallToolRequest) (*mcp.CallToolResult, *Task, error) {
		task, err := m.Start(ctx, c, func(ctx context.Context, _ *Running) (*mcp.CallToolResult, error) {
			select {
			case <-release:
				return textResult("finished"), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		})
		if err != nil {
			return nil, nil, err
		}
		created <- task
		close(entered)
		<-ctx.Done()
		close(left)
		return nil, nil, ctx.Err()
	}
	url := serve(t, newHandler(t, o))
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		res, err := http.DefaultClient.Do(modernRequest(url, methodCall, "render", `"name":"render",`, metaDeclared).WithContext(ctx))
		if err == nil {
			err = res.Body.Close()
		}
		t.Logf("call: %v", err)
	}()
	<-entered
	cancel()
	<-left
	<-gone
	close(release)
	var last *Task
	if err := m.Watch(t.Context(), Caller{}, (<-created).ID, func(task *Task) error { last = task; return nil }); err != nil {
		t.Fatal(err)
	}
	if last.Status != StatusCompleted {
		t.Errorf("the task ended with its request: %+v", last)
	}
}

func TestClosedHandlerRefuses(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore()))
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, modernRequest("http://localhost/mcp", "tools/list", "", "", metaPlain))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
}

// TestCloseAwaitsCalls: a call of an older client in flight is answered, unless
// its client goes away.
func TestCloseAwaitsCalls(t *testing.T) {
	t.Parallel()
	for _, stays := range []bool{true, false} {
		entered, release := make(chan struct{}), make(chan struct{})
		o := testOptions(newFakeStore())
		o.Tools[0].Handle = func(context.Context, Caller, *mcp.CallToolRequest) (*mcp.CallToolResult, *Task, error) {
			close(entered)
			<-release
			return textResult("slow"), nil, nil
		}
		h := newHandler(t, o)
		url := serve(t, h)
		hello := do(t, rawRequest(url, nil, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"old","version":"1"}}}`))
		headers := map[string]string{sessionHeader: hello.header.Get(sessionHeader), versionHeader: Version20251125}
		do(t, rawRequest(url, headers, `{"jsonrpc":"2.0","method":"notifications/initialized"}`))
		ctx, leave := context.WithCancel(t.Context())
		called := make(chan string, 1)
		go func() {
			res, err := http.DefaultClient.Do(rawRequest(url, headers, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"render","arguments":{}}}`).WithContext(ctx))
			if err != nil {
				called <- ""
				return
			}
			defer res.Body.Close()
			b, _ := io.ReadAll(res.Body)
			called <- string(b)
		}()
		<-entered
		closed := make(chan error, 1)
		go func() { closed <- h.Close() }()
		<-h.closing.Done()
		if late := do(t, rawRequest(url, headers, `{"jsonrpc":"2.0","id":3,"method":"tools/list"}`)); late.status != http.StatusServiceUnavailable {
			t.Errorf("a later call: %d %s", late.status, late.body)
		}
		if !stays {
			leave()
			<-called
		}
		close(release)
		if stays {
			if got := <-called; !strings.Contains(got, "slow") {
				t.Errorf("the call in flight: %q", got)
			}
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		leave()
	}
}

// deadlines records the write deadlines that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (d *deadlines) SetWriteDeadline(t time.Time) error { d.set = append(d.set, t); return nil }

func TestEveryWriteHasADeadline(t *testing.T) {
	t.Parallel()
	o := testOptions(newFakeStore(allTasks()...))
	o.WriteTimeout = time.Minute
	h := newHandler(t, o)
	for name, r := range map[string]*http.Request{
		"tasks/get": modernRequest("http://localhost/mcp", methodGet, "task_done", `"taskId":"task_done",`, metaDeclared),
		"sdk":       modernRequest("http://localhost/mcp", "tools/list", "", "", metaDeclared),
		"listen":    modernRequest("http://localhost/mcp", methodListen, "", `"notifications":{"taskIds":["task_done"]},`, metaDeclared),
	} {
		d := &deadlines{ResponseRecorder: httptest.NewRecorder()}
		from := time.Now()
		h.ServeHTTP(d, r)
		writes := max(1, strings.Count(d.Body.String(), "data: "))
		if len(d.set) != writes+1 { // and one for what the server itself writes at the end
			t.Errorf("%s: %d deadlines for %d writes", name, len(d.set), writes)
		}
		for _, at := range d.set {
			if at.Before(from.Add(time.Minute)) {
				t.Errorf("%s: deadline %v after the start", name, at.Sub(from))
			}
		}
	}
}

func TestNothingPrivateIsLogged(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var b strings.Builder
	o := testOptions(newFakeStore(allTasks()...))
	o.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return b.Write(p)
	}), nil))
	url := serve(t, newHandler(t, o))
	do(t, modernRequest(url, methodGet, "task_inconsistent", `"taskId":"task_inconsistent",`, metaDeclared))
	mu.Lock()
	defer mu.Unlock()
	if got := b.String(); !strings.Contains(got, "completed task without a result") || strings.Contains(got, "task_inconsistent") {
		t.Errorf("log: %q", got)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func BenchmarkTasksGet(b *testing.B) {
	for _, slow := range []bool{false, true} {
		b.Run(map[bool]string{false: "front", true: "sdk"}[slow], func(b *testing.B) {
			h := newHandler(b, testOptions(newFakeStore(allTasks()...)))
			h.slowGet = slow
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, modernRequest("http://localhost/mcp", methodGet, "task_done", `"taskId":"task_done",`, metaDeclared))
				if w.Code != http.StatusOK {
					b.Fatal(w.Code, w.Body)
				}
			}
		})
	}
}
