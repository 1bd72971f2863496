package mcptask

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// oldClient is a session of MCP 2025-11-25 by hand.
type oldClient struct {
	t       testing.TB
	url, id string
	who     string
	mu      sync.Mutex
	next    int
}

const (
	capsNone = `{}`
	capsForm = `{"elicitation":{}}`
	capsBoth = `{"elicitation":{"form":{},"url":{}}}`
)

func newOldClient(t testing.TB, url, caps string) *oldClient {
	t.Helper()
	c := &oldClient{t: t, url: url, who: "alice"}
	got := do(t, c.request(http.MethodPost,
		`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+caps+`,"clientInfo":{"name":"c","version":"1"}}}`))
	if c.id = got.header.Get(sessionHeader); c.id == "" {
		t.Fatalf("initialize: %d %s", got.status, got.body)
	}
	c.note(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, http.StatusAccepted)
	return c
}

func (c *oldClient) request(method, body string) *http.Request {
	r := rawRequest(c.url, map[string]string{versionHeader: Version20251125, sessionHeader: c.id, "X-Principal": c.who}, body)
	r.Method = method
	return r
}

// note sends what has no answer.
func (c *oldClient) note(body string, status int) reply {
	c.t.Helper()
	got := do(c.t, c.request(http.MethodPost, body))
	if got.status != status {
		c.t.Fatalf("%s: %d %s, want %d", body, got.status, got.body, status)
	}
	return got
}

func (c *oldClient) body(method, params string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next++
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, c.next, method, params)
}

// call sends a request and returns its response.
func (c *oldClient) call(method, params string) rpcMessage {
	c.t.Helper()
	got := do(c.t, c.request(http.MethodPost, c.body(method, params)))
	return parseRPC(c.t, []byte(got.message()))
}

// task reads a task with tasks/get.
func (c *oldClient) task(id string) map[string]any {
	c.t.Helper()
	m := c.call(methodGet, `{"taskId":"`+id+`"}`)
	if m.Error != nil {
		c.t.Fatalf("tasks/get: %+v", m.Error)
	}
	return m.Result
}

type rpcMessage struct {
	ID     any            `json:"id"`
	Method string         `json:"method"`
	Params map[string]any `json:"params"`
	Result map[string]any `json:"result"`
	Error  *jsonrpc.Error `json:"error"`
}

func parseRPC(t testing.TB, b []byte) rpcMessage {
	t.Helper()
	var m rpcMessage
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return m
}

// sse is a stream that a client reads.
type sse struct {
	t      testing.TB
	events chan rpcMessage // closed at the stream's end
	cancel context.CancelFunc
}

// open starts a stream: GET, or a POST that is held.
func (c *oldClient) open(r *http.Request) *sse {
	c.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	res, err := http.DefaultClient.Do(r.WithContext(ctx))
	if err != nil {
		c.t.Fatal(err)
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		b, _ := io.ReadAll(res.Body)
		c.t.Fatalf("no stream: %d %s", res.StatusCode, b)
	}
	s := &sse{t: c.t, events: make(chan rpcMessage, 100), cancel: cancel}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(s.events)
		defer res.Body.Close()
		for sc := bufio.NewScanner(res.Body); sc.Scan(); {
			if data, ok := bytes.CutPrefix(sc.Bytes(), []byte("data: ")); ok && len(data) > 0 {
				var m rpcMessage
				if err := json.Unmarshal(data, &m); err != nil {
					c.t.Errorf("%s: %v", data, err)
				}
				s.events <- m
			}
		}
	})
	c.t.Cleanup(func() { cancel(); wg.Wait() })
	return s
}

func (c *oldClient) listen() *sse { return c.open(c.request(http.MethodGet, "")) }

func (c *oldClient) hold(id string) *sse {
	return c.open(c.request(http.MethodPost, c.body(methodResult, `{"taskId":"`+id+`"}`)))
}

// want returns the next message, which must be of a method ("" is a response).
func (s *sse) want(method string) rpcMessage {
	s.t.Helper()
	select {
	case m, ok := <-s.events:
		if !ok || m.Method != method {
			s.t.Fatalf("got %+v (open: %t), want %q", m, ok, method)
		}
		return m
	case <-time.After(30 * time.Second):
		s.t.Fatalf("no %q came", method)
	}
	return rpcMessage{}
}

// wantEnd reads to the end and returns what came before it.
func (s *sse) wantEnd() (rest []rpcMessage) {
	s.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		select {
		case m, ok := <-s.events:
			if !ok {
				return rest
			}
			rest = append(rest, m)
		case <-deadline:
			s.t.Fatal("the stream does not end")
		}
	}
}

// script runs a task as the test tells it.
type script struct {
	steps chan func(context.Context, *Running)
}

// do runs a step of the task and waits until it was done.
func (s script) do(step func(*Running)) {
	done := make(chan struct{})
	s.steps <- func(_ context.Context, r *Running) { step(r); close(done) }
	<-done
}

const formRequest = `{"method":"elicitation/create","params":{"mode":"form","message":"Go on?","requestedSchema":{"type":"object","properties":{"ok":{"type":"boolean"}}}}}`
const urlRequest = `{"method":"elicitation/create","params":{"mode":"url","message":"Look","url":"https://example.com/p"}}`

// scripted is a Handler whose tool "render" runs a script to its end.
func scripted(t *testing.T, change func(*Options)) (url string, s script, m *Memory) {
	t.Helper()
	m = NewMemory(MemoryOptions{TTL: time.Hour, PollInterval: 2 * time.Second, Owner: func(c Caller) string { s, _ := c.Principal.(string); return s }})
	t.Cleanup(m.Close)
	s = script{make(chan func(context.Context, *Running))}
	o := testOptions(m)
	o.NotifyInterval = time.Millisecond
	o.Tools[0].Handle = func(ctx context.Context, c Caller, req *mcp.CallToolRequest) (*mcp.CallToolResult, *Task, error) {
		switch {
		case string(req.Params.Arguments) == `{"fail":"tool"}`:
			res := textResult("no such source")
			res.IsError = true
			return res, nil, nil
		case !c.Tasks():
			return textResult("accepted"), nil, nil
		}
		task, err := m.Start(ctx, c, func(ctx context.Context, r *Running) (*mcp.CallToolResult, error) {
			if string(req.Params.Arguments) == `{"ask":"form"}` {
				return ask(ctx, r, formRequest)
			}
			if string(req.Params.Arguments) == `{"ask":"url"}` {
				return ask(ctx, r, urlRequest)
			}
			for {
				select {
				case step, ok := <-s.steps:
					if !ok {
						return textResult("done"), nil
					}
					step(ctx, r)
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
		})
		return nil, task, err
	}
	if change != nil {
		change(&o)
	}
	return serve(t, newHandler(t, o)), s, m
}

func ask(ctx context.Context, r *Running, request string) (*mcp.CallToolResult, error) {
	raw, err := r.Ask(ctx, "k", json.RawMessage(request))
	if err != nil {
		return nil, err
	}
	if strings.Contains(string(raw), `"cancel"`) {
		return nil, errors.New("nobody decided; call again")
	}
	return textResult("answered " + string(raw)), nil
}

// begin calls the tool as a task and returns the task's id.
func (c *oldClient) begin(args string) string {
	c.t.Helper()
	m := c.call(methodCall, `{"name":"render","arguments":`+args+`,"task":{"ttl":60000},"_meta":{"progressToken":"p"}}`)
	task, _ := m.Result["task"].(map[string]any)
	id, _ := task["taskId"].(string)
	if id == "" {
		c.t.Fatalf("no task: %+v", m)
	}
	return id
}

func related(m map[string]any) any {
	meta, _ := m["_meta"].(map[string]any)
	rel, _ := meta[metaRelatedTask].(map[string]any)
	return rel["taskId"]
}

func TestTasksOf2025AreDeclared(t *testing.T) {
	t.Parallel()
	url := serve(t, newHandler(t, testOptions(newFakeStore())))
	got := do(t, rawRequest(url, nil, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	if !strings.Contains(got.body, `"tasks":{"cancel":{},"requests":{"tools":{"call":{}}}}`) || strings.Contains(got.body, ExtensionID) {
		t.Errorf("initialize: %s", got.body)
	}
	tools := newOldClient(t, url, capsNone).call("tools/list", `{}`).Result["tools"].([]any)
	for i, want := range []any{nil, map[string]any{"taskSupport": "optional"}} {
		tool := tools[i].(map[string]any)
		if got := tool["execution"]; fmt.Sprint(got) != fmt.Sprint(want) || tool["inputSchema"] == nil {
			t.Errorf("%v: execution %v, want %v", tool["name"], got, want)
		}
	}
}

func TestGateOf2025(t *testing.T) {
	t.Parallel()
	url, s, _ := scripted(t, func(o *Options) {
		o.FailureMessage = func(r *mcp.CallToolResult) string { return "code: " + textOf(r) }
	})
	c := newOldClient(t, url, capsNone)
	for params, code := range map[string]int64{
		`{"name":"render","task":{"ttl":-1}}`:    jsonrpc.CodeInvalidParams,
		`{"name":"render","task":{"ttl":"1"}}`:   jsonrpc.CodeInvalidParams,
		`{"name":"render","task":{"ttl":null}}`:  jsonrpc.CodeInvalidParams,
		`{"name":"render","task":null}`:          jsonrpc.CodeInvalidParams,
		`{"name":"render","task":[]}`:            jsonrpc.CodeInvalidParams,
		`{"name":"whoami","task":{}}`:            jsonrpc.CodeMethodNotFound,
		`{"name":"whoami","task":{"ttl":false}}`: jsonrpc.CodeMethodNotFound,
	} {
		if m := c.call(methodCall, params); m.Error == nil || m.Error.Code != code {
			t.Errorf("%s: %+v, want %d", params, m, code)
		}
	}
	for _, method := range []string{"tasks/list", "tasks/update"} {
		if m := c.call(method, `{"taskId":"x"}`); m.Error == nil || m.Error.Code != jsonrpc.CodeMethodNotFound {
			t.Errorf("%s: %+v", method, m)
		}
	}
	for _, method := range []string{methodGet, methodResult, methodCancel} {
		for _, params := range []string{`{"taskId":"x"}`, `{}`} {
			if m := c.call(method, params); m.Error == nil || m.Error.Code != jsonrpc.CodeInvalidParams {
				t.Errorf("%s %s: %+v", method, params, m)
			}
		}
	}
	if m := c.call(methodCall, `{"name":"render"}`); !strings.Contains(fmt.Sprint(m.Result), "accepted") {
		t.Errorf("plain: %+v", m)
	}

	// Whatever ttl is possible is.
	for _, ttl := range []string{"0", "1e300", "90000.5"} {
		m := c.call(methodCall, `{"name":"render","task":{"ttl":`+ttl+`}}`)
		task, _ := m.Result["task"].(map[string]any)
		meta, _ := m.Result["_meta"].(map[string]any)
		if task["status"] != "working" || task["pollInterval"] != 2000.0 || meta[metaImmediateResponse] == nil || len(m.Result) != 2 {
			t.Errorf("ttl %s: %+v", ttl, m)
		}
		if want := map[string]float64{"0": 1000, "1e300": 3600000, "90000.5": 90000}[ttl]; task["ttl"] != want {
			t.Errorf("ttl %s: %v, want %v", ttl, task["ttl"], want)
		}
	}
	close(s.steps)

	// A refusal is a task that ended as it began.
	id := c.begin(`{"fail":"tool"}`)
	if task := c.task(id); task["status"] != "failed" || task["statusMessage"] != "code: no such source" {
		t.Errorf("refused: %v", task)
	}
	if m := c.call(methodResult, `{"taskId":"`+id+`"}`); m.Result["isError"] != true || related(m.Result) != id {
		t.Errorf("refused: %+v", m)
	}
	if m := c.call(methodCancel, `{"taskId":"`+id+`"}`); m.Error == nil || m.Error.Code != jsonrpc.CodeInvalidParams {
		t.Errorf("cancel of a refused call: %+v", m)
	}
}

func TestResultIsHeld(t *testing.T) {
	t.Parallel()
	url, s, _ := scripted(t, nil)
	c := newOldClient(t, url, capsNone)
	id := c.begin(`{}`)
	if task := c.task(id); related(task) != nil || task["ttl"] != 60000.0 || task["taskId"] != id {
		t.Errorf("tasks/get: %v", task)
	}
	held := c.hold(id)
	s.do(func(r *Running) { r.SetProgress(0.5) })
	if m := held.want(methodProgress); m.Params["progress"] != 0.5 || m.Params["total"] != 1.0 || m.Params["progressToken"] != "p" || related(m.Params) != id {
		t.Errorf("progress: %+v", m)
	}
	s.do(func(r *Running) { r.SetProgress(0.4) })
	s.do(func(r *Running) { r.SetProgress(0.75); r.SetMessage("nearly") })
	if m := held.want(methodProgress); m.Params["progress"] != 0.75 {
		t.Errorf("progress: %+v", m)
	}
	close(s.steps)
	var last rpcMessage
	for _, m := range held.wantEnd() {
		if m.Method == methodProgress {
			t.Errorf("progress without progress: %+v", m)
		}
		last = m
	}
	if related(last.Result) != id || !strings.Contains(fmt.Sprint(last.Result["content"]), "done") {
		t.Errorf("result: %+v", last)
	}
	if task := c.task(id); task["status"] != "completed" {
		t.Errorf("after: %v", task)
	}
	if m := c.call(methodCancel, `{"taskId":"`+id+`"}`); m.Error == nil || m.Error.Code != jsonrpc.CodeInvalidParams {
		t.Errorf("cancel of a finished task: %+v", m)
	}
}

func TestProgressAndStatusOnTheGETStream(t *testing.T) {
	t.Parallel()
	url, s, _ := scripted(t, nil)
	c := newOldClient(t, url, capsNone)
	get := c.listen()
	id := c.begin(`{}`)
	s.do(func(r *Running) { r.SetProgress(0.5) })
	if m := get.want(methodProgress); m.Params["progress"] != 0.5 {
		t.Errorf("progress: %+v", m)
	}
	close(s.steps)
	if m := get.want(methodTaskStatus); m.Params["status"] != "completed" || m.Params["taskId"] != id || related(m.Params) != nil {
		t.Errorf("status: %+v", m)
	}
	// A session that did not ask hears nothing, though it may.
	other := newOldClient(t, url, capsForm)
	quiet := other.listen()
	asking := c.begin(`{"ask":"form"}`)
	if m := c.call(methodCancel, `{"taskId":"`+asking+`"}`); m.Result["status"] != "cancelled" || m.Result["taskId"] != asking || related(m.Result) != nil {
		t.Errorf("cancel: %+v", m)
	}
	for _, m := range []rpcMessage{c.call(methodResult, `{"taskId":"`+asking+`"}`)} {
		if m.Result["isError"] != true || related(m.Result) != asking {
			t.Errorf("result of a cancelled task: %+v", m)
		}
	}
	do(t, other.request(http.MethodDelete, ""))
	if rest := quiet.wantEnd(); len(rest) > 0 {
		t.Errorf("an uninvolved session heard %+v", rest)
	}
}

func TestElicitation(t *testing.T) {
	t.Parallel()
	url, _, _ := scripted(t, nil)
	accept := func(m rpcMessage) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept","content":{"ok":true}}}`, m.ID)
	}
	t.Run("on the held result", func(t *testing.T) {
		t.Parallel()
		c := newOldClient(t, url, capsForm)
		get := c.listen()
		id := c.begin(`{"ask":"form"}`)
		first := get.want(methodTaskStatus)
		if first.Params["status"] != "input_required" {
			t.Errorf("status: %+v", first)
		}
		m := get.want(methodElicit) // nothing else could carry it
		if related(m.Params) != id || m.Params["message"] != "Go on?" || m.Params["mode"] != "form" || m.Params["elicitationId"] != nil {
			t.Errorf("elicitation: %+v", m)
		}
		held := c.hold(id)
		get.cancel() // its carrier is lost: the held call takes over
		again := held.want(methodElicit)
		if again.ID == m.ID || fmt.Sprint(again.Params) != fmt.Sprint(m.Params) {
			t.Errorf("sent again as %+v, before %+v", again, m)
		}
		c.note(accept(again), http.StatusAccepted)
		c.note(accept(again), http.StatusAccepted) // twice is once
		rest := held.wantEnd()
		if last := rest[len(rest)-1]; !strings.Contains(fmt.Sprint(last.Result), "answered") {
			t.Errorf("result: %+v", last)
		}
	})
	t.Run("lost and resumed", func(t *testing.T) {
		t.Parallel()
		c := newOldClient(t, url, capsForm)
		id := c.begin(`{"ask":"form"}`)
		held := c.hold(id)
		for m := range held.events {
			if m.Method == methodElicit {
				break
			}
		}
		held.cancel()
		held.wantEnd()
		second := c.hold(id)
		m := second.want(methodElicit)
		c.note(accept(m), http.StatusAccepted)
		second.wantEnd()
		if task := c.task(id); task["status"] != "completed" {
			t.Errorf("after: %v", task)
		}
	})
	t.Run("once for two sessions", func(t *testing.T) {
		t.Parallel()
		a, b := newOldClient(t, url, capsForm), newOldClient(t, url, capsForm)
		id := a.begin(`{"ask":"form"}`)
		held := a.hold(id)
		var m rpcMessage
		for m = range held.events {
			if m.Method == methodElicit {
				break
			}
		}
		other := b.hold(id)
		c := newOldClient(t, url, capsForm)
		c.note(accept(m), http.StatusAccepted) // not its question: ignored
		if task := c.task(id); task["status"] != "input_required" {
			t.Fatalf("a session answered another's question: %v", task)
		}
		a.note(accept(m), http.StatusAccepted)
		for _, m := range append(held.wantEnd(), other.wantEnd()...) {
			if m.Method == methodElicit {
				t.Errorf("asked twice: %+v", m)
			}
		}
	})
	t.Run("error is no decision", func(t *testing.T) {
		t.Parallel()
		c := newOldClient(t, url, capsForm)
		id := c.begin(`{"ask":"form"}`)
		held := c.hold(id)
		for m := range held.events {
			if m.Method == methodElicit {
				c.note(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"error":{"code":-32601,"message":"no"}}`, m.ID), http.StatusAccepted)
				break
			}
		}
		held.wantEnd()
		if task := c.task(id); task["status"] != "failed" || task["statusMessage"] != "nobody decided; call again" {
			t.Errorf("after: %v", task)
		}
	})
	t.Run("url", func(t *testing.T) {
		t.Parallel()
		c := newOldClient(t, url, capsBoth)
		get := c.listen()
		id := c.begin(`{"ask":"url"}`)
		get.want(methodTaskStatus)
		m := get.want(methodElicit)
		if m.Params["mode"] != "url" || m.Params["elicitationId"] == nil || related(m.Params) != id {
			t.Errorf("elicitation: %+v", m)
		}
		c.note(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept"}}`, m.ID), http.StatusAccepted)
		if done := get.want(methodElicitComplete); done.Params["elicitationId"] != m.Params["elicitationId"] {
			t.Errorf("complete: %+v", done)
		}
	})
	for name, c := range map[string]struct{ caps, args string }{
		"a client without elicitation": {capsNone, `{"ask":"form"}`},
		"a client without pages":       {capsForm, `{"ask":"url"}`},
		"a client without forms":       {`{"elicitation":{"url":{}}}`, `{"ask":"form"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			old := newOldClient(t, url, c.caps)
			get := old.listen()
			id := old.begin(c.args)
			held := old.hold(id)
			if m := old.call(methodCancel, `{"taskId":"`+id+`"}`); m.Error != nil {
				t.Errorf("cancel: %+v", m)
			}
			rest := held.wantEnd()
			do(t, old.request(http.MethodDelete, ""))
			for _, m := range append(rest, get.wantEnd()...) {
				if m.Method == methodElicit {
					t.Errorf("asked: %+v", m)
				}
			}
		})
	}
}

// An answer that the Store refuses is refused to whoever sent it, and the
// question stays open.
func TestRefusedAnswer(t *testing.T) {
	t.Parallel()
	store := &pickyStore{fakeStore: newFakeStore(allTasks()...)}
	c := newOldClient(t, serve(t, newHandler(t, testOptions(store))), capsForm)
	held := c.hold("task_asking")
	m := held.want(methodElicit)
	got := c.note(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept"}}`, m.ID), http.StatusBadRequest)
	if !strings.Contains(got.body, "content is required") {
		t.Errorf("refusal: %s", got.body)
	}
	c.note(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":{"action":"accept","content":{}}}`, m.ID), http.StatusAccepted)
	store.mu.Lock()
	defer store.mu.Unlock()
	if string(store.updates["a"]) != `{"action":"accept","content":{}}` {
		t.Errorf("stored %s", store.updates)
	}
}

type pickyStore struct{ *fakeStore }

func (s *pickyStore) Update(ctx context.Context, c Caller, id string, r map[string]json.RawMessage) error {
	if !strings.Contains(string(r["a"]), "content") {
		return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "content is required"}
	}
	return s.fakeStore.Update(ctx, c, id, r)
}

func TestHeldResultEnds(t *testing.T) {
	t.Parallel()
	store := newFakeStore(allTasks()...)
	h := newHandler(t, testOptions(store))
	c := newOldClient(t, serve(t, h), capsNone)
	cancelled := c.hold("task_working")
	c.note(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, c.next), http.StatusAccepted)
	if rest := cancelled.wantEnd(); len(rest) > 0 {
		t.Errorf("a cancelled request was answered: %+v", rest)
	}
	if len(store.cancelled) > 0 {
		t.Error("a cancelled request cancelled the task")
	}
	closed := c.hold("task_working")
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if rest := closed.wantEnd(); len(rest) != 1 || rest[0].Error == nil || rest[0].Error.Code != jsonrpc.CodeInternalError {
		t.Errorf("at shutdown: %+v", rest)
	}
	if h.wg.Wait(); len(h.shared.tasks) > 0 {
		t.Errorf("%d tasks are still followed", len(h.shared.tasks))
	}
}

// Every shape of a task and of its result, to be read by a person; and tasks/get
// in the same bytes by both ways.
func TestWireOf2025(t *testing.T) {
	t.Parallel()
	h, slow := newHandler(t, testOptions(newFakeStore(allTasks()...))), newHandler(t, testOptions(newFakeStore(allTasks()...)))
	slow.slowGet = true
	fastClient, slowClient := newOldClient(t, serve(t, h), capsNone), newOldClient(t, serve(t, slow), capsNone)
	var log strings.Builder
	ids := []string{"task_nobody", "task_expired", "task_broken"}
	for _, task := range allTasks() {
		ids = append(ids, task.ID)
	}
	for _, id := range ids {
		for _, method := range []string{methodGet, methodCancel, methodResult} {
			task := h.opts.Store.(*fakeStore).tasks[id]
			if method == methodResult && task != nil && !task.Status.Terminal() {
				continue
			}
			for _, params := range []string{`{"taskId":"` + id + `"}`, `{"taskId":"` + id + `","_meta":{"progressToken":5,"x":[1,"é"]},"other":true}`} {
				body := fastClient.body(method, params)
				got := do(t, fastClient.request(http.MethodPost, body))
				other := do(t, slowClient.request(http.MethodPost, body))
				if got.message() != other.message() || got.status != other.status {
					t.Errorf("%s:\nfast %d %s\nslow %d %s", body, got.status, got.message(), other.status, other.message())
				}
				if !strings.Contains(params, "_meta") {
					fmt.Fprintf(&log, "%s\n%d %s\n\n", body, got.status, got.message())
				}
			}
		}
	}
	golden(t, "testdata/wire/legacy_tasks.txt", log.String())
	rnd := rand.New(rand.NewPCG(3, 4)) // reproducible
	pick := func(from ...string) string { return from[rnd.IntN(len(from))] }
	answers := map[string]bool{}
	for range 1000 {
		taskID := pick(append(ids, "", "t>*./ x", "täsk")...)
		body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%s,"params":{%s"taskId":%s}}`,
			pick("1", `"a<b>é"`, "-7", "1.5", "9007199254740993", `""`, "null", "true"), pick(`"tasks/get"`, `"tasks/get"`, `"tasks\/get"`),
			pick("", `"_meta":{},`, `"_meta":null,`, `"_meta":5,`, `"taskId":"other",`, `"TASKID":"other",`),
			pick(`"`+taskID+`"`, `"`+taskID+`"`, `"`+taskID+`"`, "5", "null", "{}"))
		a, b := do(t, fastClient.request(http.MethodPost, body)), do(t, slowClient.request(http.MethodPost, body))
		if a.message() != b.message() || a.status != b.status {
			t.Fatalf("%s:\nfast %d %s\nslow %d %s", body, a.status, a.message(), b.status, b.message())
		}
		answers[a.message()] = true
	}
	if len(answers) < 40 {
		t.Errorf("only %d different answers were compared", len(answers))
	}
}

// An open stream keeps a session; silence ends it.
func TestSessionTimeout(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore(allTasks()...)))
	c := newOldClient(t, serve(t, h), capsNone)
	get := c.listen()
	s := h.findSession(c.id, "alice")
	s.expire()
	c.task("task_working")
	do(t, c.request(http.MethodDelete, ""))
	get.wantEnd()

	o := testOptions(newFakeStore())
	o.SessionTimeout = time.Millisecond
	short := newHandler(t, o)
	do(t, rawRequest(serve(t, short), nil, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`))
	short.wg.Wait() // every goroutine of the session ended with it
	short.mu.Lock()
	defer short.mu.Unlock()
	if len(short.sessions) > 0 {
		t.Error("the session is still there")
	}
}

func TestBatches(t *testing.T) {
	t.Parallel()
	url := serve(t, newHandler(t, testOptions(newFakeStore(allTasks()...))))
	id := initialize(t, url, "alice", Version20250326)
	in := map[string]string{sessionHeader: id, "X-Principal": "alice"}
	got := do(t, rawRequest(url, in, `[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"whoami"}},{"jsonrpc":"2.0","id":2,"method":"tasks/get","params":{"taskId":"task_done"}},{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":99}}]`))
	if got.status != http.StatusOK || !strings.Contains(got.body, "alice|2025-03-26") || !strings.Contains(got.body, "-32601") {
		t.Errorf("batch: %d %s", got.status, got.body)
	}
	newer := maps.Clone(in)
	newer[versionHeader] = Version20251125
	if got := do(t, rawRequest(url, newer, `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`)); got.status != http.StatusBadRequest {
		t.Errorf("batch of a later version: %d %s", got.status, got.body)
	}
}
