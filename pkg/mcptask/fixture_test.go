package mcptask

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// fakeStore holds tasks with fixed contents. put changes one and tells watchers.
type fakeStore struct {
	mu      sync.Mutex
	tasks   map[string]*Task
	owner   map[string]any // principal, if not nil
	changed chan struct{}
	broken  error // what Watch returns once, instead of watching

	updates   map[string]json.RawMessage
	cancelled []string
	watching  int
}

var _ Store = (*fakeStore)(nil)

func newFakeStore(tasks ...*Task) *fakeStore {
	s := &fakeStore{tasks: map[string]*Task{}, owner: map[string]any{}, changed: make(chan struct{})}
	for _, t := range tasks {
		s.put(t)
	}
	return s
}

func (s *fakeStore) put(t *Task) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks[t.ID] = t
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *fakeStore) Get(_ context.Context, c Caller, id string) (*Task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch id {
	case "task_broken":
		return nil, errors.New("dial tcp 10.0.0.7:4222: secret detail")
	case "task_expired":
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the task's time is over", Data: json.RawMessage(`{"machine_code":"task_expired"}`)}
	}
	t, ok := s.tasks[id]
	if o := s.owner[id]; !ok || o != nil && o != c.Principal {
		return nil, ErrNotFound
	}
	return t, nil
}

func (s *fakeStore) Update(ctx context.Context, c Caller, id string, r map[string]json.RawMessage) error {
	if _, err := s.Get(ctx, c, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.updates = r
	return nil
}

func (s *fakeStore) Cancel(ctx context.Context, c Caller, id string) error {
	if _, err := s.Get(ctx, c, id); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancelled = append(s.cancelled, id)
	return nil
}

func (s *fakeStore) Watch(ctx context.Context, c Caller, id string, fn func(*Task) error) error {
	s.mu.Lock()
	if err := s.broken; err != nil {
		s.broken = nil
		s.mu.Unlock()
		return err
	}
	s.watching++
	s.mu.Unlock()
	defer func() { s.mu.Lock(); s.watching--; s.mu.Unlock() }()
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		t, err := s.Get(ctx, c, id)
		if err != nil {
			return err
		}
		if err := fn(t); err != nil || t.Status.Terminal() {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func day(hour int) time.Time { return time.Date(2026, 8, 1, hour, 0, 0, 250_000_000, time.UTC) }

func fakeTask(id string, status Status, more func(*Task)) *Task {
	t := &Task{ID: id, Status: status, StatusMessage: "it is " + string(status), CreatedAt: day(9), LastUpdatedAt: day(10),
		TTL: 24 * time.Hour, PollInterval: 2 * time.Second}
	if more != nil {
		more(t)
	}
	return t
}

func textResult(s string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: s}}}
}

// allTasks has one task of every shape, named task_<shape>.
func allTasks() []*Task {
	return []*Task{
		fakeTask("task_working", StatusWorking, nil),
		fakeTask("task_bare", StatusWorking, func(t *Task) { t.StatusMessage, t.TTL, t.PollInterval = "", 0, 0 }),
		fakeTask("task_asking", StatusInputRequired, func(t *Task) {
			t.InputRequests = map[string]json.RawMessage{
				"a": json.RawMessage(`{"method":"elicitation/create","params":{"mode":"form","message":"a < b & \"c\"","requestedSchema":{"type":"object"}}}`)}
		}),
		fakeTask("task_waiting", StatusInputRequired, nil),
		fakeTask("task_done", StatusCompleted, func(t *Task) {
			t.Result = textResult("<done>")
			t.Result.StructuredContent = json.RawMessage(`{"ok":true}`)
			t.Result.Meta = mcp.Meta{"com.example/k": 1}
		}),
		fakeTask("task_refused", StatusCompleted, func(t *Task) { t.Result = &mcp.CallToolResult{IsError: true} }),
		fakeTask("task_failed", StatusFailed, func(t *Task) {
			t.Error = &jsonrpc.Error{Code: -32603, Message: "lost", Data: json.RawMessage(`{"temporary":true}`)}
		}),
		fakeTask("task_cancelled", StatusCancelled, nil),
		fakeTask("task_inconsistent", StatusCompleted, nil),
	}
}

func renderTool(_ context.Context, c Caller, req *mcp.CallToolRequest) (*mcp.CallToolResult, *Task, error) {
	switch string(req.Params.Arguments) {
	case `{"fail":"hard"}`:
		return nil, nil, errors.New("secret detail")
	case `{"fail":"tool"}`:
		res := textResult("no such source")
		res.IsError = true
		return res, nil, nil
	case `{"need":"tasks"}`:
		if !c.Tasks() {
			return nil, nil, ErrTasksRequired
		}
	case `{"bug":"panic"}`:
		panic("secret detail")
	case `{"bug":true}`:
		return nil, &Task{ID: "task_x"}, nil
	}
	if !c.Tasks() {
		return textResult("accepted"), nil, nil
	}
	return nil, fakeTask("task_working", StatusWorking, nil), nil
}

func testOptions(s Store) Options {
	return Options{
		Implementation: &mcp.Implementation{Name: "test", Version: "1"},
		Store:          s,
		Tools:          []TaskTool{{Tool: &mcp.Tool{Name: "render", InputSchema: json.RawMessage(`{"type":"object"}`)}, Handle: renderTool}},
		Configure: func(s *mcp.Server) {
			s.AddTool(&mcp.Tool{Name: "whoami", InputSchema: json.RawMessage(`{"type":"object"}`)},
				func(ctx context.Context, _ *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
					c, ok := CallerFrom(ctx)
					if !ok {
						return nil, errors.New("no caller")
					}
					p, _ := c.Principal.(string)
					trace, _ := c.Meta["traceparent"].(string)
					return textResult(strings.Join([]string{p, c.ProtocolVersion, trace}, "|")), nil
				})
			s.AddResource(&mcp.Resource{Name: "r", URI: "test://r"}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{Text: "r"}}}, nil
			})
		},
		Server: mcp.ServerOptions{
			SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
			UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		},
		ToolOrder:   []string{"whoami", "render"},
		SurfaceMeta: map[string]any{"com.example/fingerprint": "f@1"},
		CacheTTL:    time.Hour,
		MissingCapability: func(_ context.Context, _ Caller, method, taskID string) map[string]any {
			return map[string]any{"machine_code": "missing_client_capability", "method": method, "task": taskID}
		},
		PrincipalKey: func(p any) string { s, _ := p.(string); return s },
		MaxBodyBytes: 8 << 10,
	}
}

// newHandler returns a Handler that is closed with the test.
func newHandler(tb testing.TB, o Options) *Handler {
	tb.Helper()
	h, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := h.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return h
}

// serve runs h on a loopback server; the principal is taken from a header.
func serve(tb testing.TB, h http.Handler) string {
	tb.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if p := r.Header.Get("X-Principal"); p != "" {
			r = r.WithContext(WithPrincipal(r.Context(), p))
		}
		h.ServeHTTP(w, r)
	}))
	tb.Cleanup(srv.Close)
	return srv.URL
}

const (
	metaDeclared = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}},"traceparent":"00-ab-cd-01"}`
	metaPlain    = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
)

// modernRequest is a well-formed request of a 2026-07-28 client. params is the
// inside of a JSON object that ends in a comma, or is empty.
func modernRequest(url, method, name, params, meta string) *http.Request {
	return rawRequest(url, map[string]string{versionHeader: Version20260728, methodHeader: method, nameHeader: name},
		`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{`+params+meta+`}}`)
}

func rawRequest(url string, headers map[string]string, body string) *http.Request {
	r, err := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range headers {
		switch v {
		case "":
		case "-":
			r.Header.Del(k)
		default:
			r.Header.Set(k, v)
		}
	}
	return r
}

type reply struct {
	status int
	header http.Header
	body   string
}

// message is the JSON-RPC message, whether it came alone or on a stream.
func (r reply) message() string {
	if strings.HasPrefix(r.header.Get("Content-Type"), "text/event-stream") {
		data, _ := eventData([]byte(r.body))
		return string(data)
	}
	return r.body
}

func do(tb testing.TB, r *http.Request) reply {
	tb.Helper()
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return reply{res.StatusCode, res.Header, string(b)}
}
