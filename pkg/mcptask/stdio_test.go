package mcptask

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// stdioClient is the client's end of the pipes.
type stdioClient struct {
	testing.TB
	in    *io.PipeWriter
	lines chan string
	done  chan error
}

// pipe connects a client to h.
func pipe(tb testing.TB, h http.Handler, o StdioOptions) *stdioClient {
	tb.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &stdioClient{TB: tb, in: inW, lines: make(chan string, 100), done: make(chan error, 1)}
	go func() {
		err := ServeStdio(context.Background(), h, inR, outW, o)
		outW.Close()
		c.done <- err
	}()
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(outR); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	tb.Cleanup(func() { inW.Close() })
	return c
}

func (c *stdioClient) send(lines ...string) {
	c.Helper()
	for _, l := range lines {
		if _, err := io.WriteString(c.in, l+"\n"); err != nil {
			c.Fatal(err)
		}
	}
}

// next is the next line that comes.
func (c *stdioClient) next() string {
	c.Helper()
	select {
	case l, ok := <-c.lines:
		if !ok {
			c.Fatal("the output has ended")
		}
		return l
	case <-time.After(time.Minute):
		c.Fatal("no line comes")
	}
	return ""
}

// end closes the input and returns what still came and how it ended.
func (c *stdioClient) end() (rest []string, err error) {
	c.Helper()
	c.in.Close()
	for l := range c.lines {
		rest = append(rest, l)
	}
	return rest, <-c.done
}

// modernLine is a request of a 2026-07-28 client, as modernRequest makes it.
func modernLine(id, method, params, meta string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + meta + `}}`
}

func legacyLine(id, method, params string) string {
	return `{"jsonrpc":"2.0","id":` + id + `,"method":"` + method + `","params":{` + params + `}}`
}

const (
	initializeLine  = `{"jsonrpc":"2.0","id":"init","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`
	initializedLine = `{"jsonrpc":"2.0","method":"notifications/initialized"}`
)

// as puts a principal before a handler, as the layer that authenticates does.
func stdioPrincipal(p string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(WithPrincipal(r.Context(), p)))
	})
}

func has(t *testing.T, line string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(line, p) {
			t.Errorf("%s\nlacks %s", line, p)
		}
	}
}

// The two transports answer the same, but for the envelope around.
func TestStdioAnswersLikeHTTP(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore(allTasks()...)))
	url := serve(t, h)
	c := pipe(t, stdioPrincipal("ann", h), StdioOptions{})
	for _, tt := range []struct{ method, name, params, meta string }{
		{"server/discover", "", "", metaDeclared},
		{"tools/list", "", "", metaPlain},
		{"tools/call", "whoami", `"name":"whoami",`, metaDeclared},
		{"tools/call", "render", `"name":"render",`, metaDeclared},
		{"tools/call", "render", `"name":"render","arguments":{"need":"tasks"},`, metaPlain},
		{"tools/call", "Ünknown", `"name":"Ünknown",`, metaPlain},
		{"resources/read", "test://r", `"uri":"test://r",`, metaPlain},
		{"resources/read", "test://other", `"uri":"test://other",`, metaPlain},
		{"tasks/get", "task_asking", `"taskId":"task_asking",`, metaDeclared},
		{"tasks/get", "task_none", `"taskId":"task_none",`, metaDeclared},
		{"tasks/get", "task_asking", `"taskId":"task_asking",`, metaPlain},
		{"tasks/cancel", "task_working", `"taskId":"task_working",`, metaDeclared},
		{"tasks/update", "task_asking", `"taskId":"task_asking","inputResponses":{"a":{"action":"accept"}},`, metaDeclared},
		{"tasks/list", "", "", metaDeclared},
	} {
		r := modernRequest(url, tt.method, "", tt.params, tt.meta)
		r.Header.Del(nameHeader)
		if tt.name != "" {
			r.Header.Set(nameHeader, encodeHeader(tt.name))
		}
		r.Header.Set("X-Principal", "ann")
		want := strings.TrimSpace(do(t, r).message())
		c.send(modernLine("1", tt.method, tt.params, tt.meta))
		if got := c.next(); got != want {
			t.Errorf("%s %s:\nstdio %s\nHTTP  %s", tt.method, tt.name, got, want)
		}
	}
	if rest, err := c.end(); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// A session of an older client: answers, what the server tells by itself, and
// its end with the input.
func TestStdioSession(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore()))
	c := pipe(t, stdioPrincipal("ann", h), StdioOptions{})
	c.send(initializeLine)
	has(t, c.next(), `"id":"init"`, `"protocolVersion":"2025-11-25"`)
	c.send(initializedLine, legacyLine("1", "tools/call", `"name":"whoami"`))
	has(t, c.next(), `"id":1`, "ann|2025-11-25|")
	c.send(legacyLine("2", "resources/subscribe", `"uri":"test://r"`))
	has(t, c.next(), `"id":2`, `"result"`)
	updated := make(chan string)
	go func() { updated <- c.next() }()
	// The GET stream is opened beside; what is told before is kept for it.
	if err := h.ResourceUpdated(t.Context(), "test://r"); err != nil {
		t.Fatal(err)
	}
	has(t, <-updated, "notifications/resources/updated", "test://r")

	c.send(legacyLine("3", "no/such", ""))
	has(t, c.next(), `"id":3`, `"code":-32601`)
	// A client may begin anew.
	c.send(strings.Replace(initializeLine, "2025-11-25", "2025-06-18", 1))
	has(t, c.next(), `"protocolVersion":"2025-06-18"`)
	c.send(initializedLine, legacyLine("1", "tools/call", `"name":"whoami"`))
	has(t, c.next(), "ann|2025-06-18|")
	if rest, err := c.end(); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	for ss := range h.legacySessions() {
		t.Errorf("session %s is left", ss.ID())
	}
}

// blocking is a handler whose tool calls wait for their end and say so.
func blocking(t *testing.T) (h *Handler, started, ended chan string) {
	t.Helper()
	started, ended = make(chan string, 10), make(chan string, 10)
	o := testOptions(newFakeStore(allTasks()...))
	o.Configure = func(s *mcp.Server) {
		s.AddTool(&mcp.Tool{Name: "wait", InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			started <- string(req.Params.Arguments)
			<-ctx.Done()
			ended <- string(req.Params.Arguments)
			return nil, ctx.Err()
		})
	}
	return newHandler(t, o), started, ended
}

// A cancelled request ends, is silent, and frees its id; others go on beside.
func TestStdioCancel(t *testing.T) {
	t.Parallel()
	cancelLine := func(id string) string {
		return `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":` + id + `}}`
	}
	for name, tt := range map[string]struct {
		begin      []string
		call, ping string
	}{
		"2026-07-28": {nil, modernLine("7", "tools/call", `"name":"wait","arguments":{"n":1},`, metaPlain), modernLine("8", "tasks/get", `"taskId":"task_bare",`, metaDeclared)},
		"2025-11-25": {[]string{initializeLine, initializedLine}, legacyLine("7", "tools/call", `"name":"wait","arguments":{"n":1}`), legacyLine("8", "ping", "")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, started, ended := blocking(t)
			c := pipe(t, h, StdioOptions{})
			c.send(tt.begin...)
			if len(tt.begin) > 0 {
				has(t, c.next(), `"id":"init"`)
			}
			c.send(tt.call)
			<-started
			c.send(tt.ping)
			has(t, c.next(), `"id":8`, `"result"`)
			c.send(tt.call)
			has(t, c.next(), `"id":7`, `"code":-32600`, "sent again")
			c.send(cancelLine(`"7"`), cancelLine("99"), cancelLine("{}"), cancelLine("7"))
			<-ended
			c.send(tt.ping)
			has(t, c.next(), `"id":8`)
			if rest, err := c.end(); len(rest) > 0 || err != nil {
				t.Errorf("%q, %v", rest, err)
			}
		})
	}
}

// A listen stream's messages are lines; it ends in good order when the server
// does, and silently when the client has cancelled it.
func TestStdioListen(t *testing.T) {
	t.Parallel()
	store := newFakeStore(allTasks()...)
	o := testOptions(store)
	o.NotifyInterval = time.Millisecond
	h := newHandler(t, o)
	c := pipe(t, h, StdioOptions{})
	c.send(modernLine(`"sub"`, "subscriptions/listen", `"notifications":{"taskIds":["task_working","task_none"]},`, metaDeclared))
	has(t, c.next(), "notifications/subscriptions/acknowledged", `"taskIds":["task_working"]`, `"io.modelcontextprotocol/subscriptionId":"sub"`)
	has(t, c.next(), "notifications/tasks", `"status":"working"`)
	c.send(modernLine("2", "tasks/get", `"taskId":"task_done",`, metaDeclared))
	has(t, c.next(), `"id":2`)
	store.put(fakeTask("task_working", StatusCancelled, nil))
	has(t, c.next(), "notifications/tasks", `"status":"cancelled"`)
	has(t, c.next(), `"id":"sub"`, `"result"`)

	c.send(modernLine("3", "subscriptions/listen", `"notifications":{"taskIds":["task_bare"]},`, metaDeclared))
	has(t, c.next(), "acknowledged")
	has(t, c.next(), "notifications/tasks")
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
	store.put(fakeTask("task_bare", StatusCancelled, nil))
	c.send(modernLine("4", "tasks/get", `"taskId":"task_bare",`, metaDeclared))
	has(t, c.next(), `"id":4`)

	c.send(modernLine("5", "subscriptions/listen", `"notifications":{"resourceSubscriptions":["test://r"]},`, metaDeclared))
	has(t, c.next(), "acknowledged")
	go h.Close()
	has(t, c.next(), `"id":5`, `"result"`)
	if rest, err := c.end(); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// What is wrong gets an answer that is a message, with its id where it has one,
// and does no harm to what follows.
func TestStdioBadInput(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore(allTasks()...)))
	c := pipe(t, h, StdioOptions{MaxMessageBytes: 32 << 10})
	for _, tt := range []struct {
		line string
		want []string
	}{
		{"hello", []string{"-32700"}},
		{`{"jsonrpc":"2.0"`, []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":1,"method":"ping"} {}`, []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":{},"method":"ping"}`, []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":1,"method":"a","params":` + strings.Repeat("[", 1500) + strings.Repeat("]", 1500) + "}", []string{"-32700"}},
		{`{"jsonrpc":"2.0","id":5,"method":"ping"}`, []string{`"id":5`, "-32600"}},
		{`{"jsonrpc":"1.0","id":5,"method":"ping"}`, []string{`"id":5`, `"error"`}},
		{strings.Repeat("x", 40<<10), []string{"-32600", "32768 bytes"}},
		{modernLine("6", "tools/call", `"name":"whoami","arguments":{"x":"`+strings.Repeat("x", 20<<10)+`"},`, metaPlain), []string{`"id":6`, "-32600", "8192 bytes"}},
		{modernLine("7", "no/such", "", metaPlain), []string{`"id":7`, "-32601"}},
		{strings.ReplaceAll(modernLine("8", "tools/list", "", metaPlain), "2026-07-28", "2031-01-01"), []string{`"id":8`, "-32022", "2025-03-26"}},
		{strings.ReplaceAll(modernLine("9", "tools/list", "", metaPlain), "2026-07-28", "2025-11-25"), []string{`"id":9`, "-32022"}},
		{modernLine("10", "tools/call", `"name":"a\r\nX-Principal: root",`, metaPlain), []string{`"id":10`, `"error"`}},
		{"", nil},
		{`{"jsonrpc":"2.0","method":"notifications/none"}`, nil},
		{`{"jsonrpc":"2.0","id":3,"result":{}}`, nil},
	} {
		c.send(tt.line)
		if tt.want == nil {
			continue
		}
		got := c.next()
		has(t, got, append(tt.want, `"jsonrpc":"2.0"`)...)
		if strings.Contains(got, `"id":null`) {
			t.Errorf("%s is no message by the schema", got)
		}
	}
	c.send(modernLine("11", "tasks/get", `"taskId":"task_bare",`, metaDeclared))
	has(t, c.next(), `"id":11`, "task_bare")
	if rest, err := c.end(); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
}

// Whatever was asked before the input ended is answered, without a newline at
// the end too; a request that goes on for ever is not waited for.
func TestStdioEndOfInput(t *testing.T) {
	t.Parallel()
	h, started, ended := blocking(t)
	var out bytes.Buffer
	in := modernLine("1", "tasks/get", `"taskId":"task_done",`, metaDeclared) + "\r\n\n" + modernLine("2", "tools/list", "", metaPlain)
	if err := ServeStdio(t.Context(), h, strings.NewReader(in), &out, StdioOptions{DrainTimeout: time.Minute}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	slices.Sort(lines)
	if len(lines) != 2 || !strings.Contains(lines[0], `"id":1`) || !strings.Contains(lines[1], `"id":2`) {
		t.Errorf("%q", lines)
	}

	// The end is waited for twice: that of the requests, which fails here, and
	// that of the interrupted ones, which a slow machine needs time for.
	c := pipe(t, h, StdioOptions{DrainTimeout: 3 * time.Second})
	c.send(modernLine("1", "tools/call", `"name":"wait",`, metaPlain))
	<-started
	if rest, err := c.end(); len(rest) > 0 || err != nil {
		t.Errorf("%q, %v", rest, err)
	}
	<-ended
}

// stuckWriter is an output that nobody reads.
type stuckWriter struct {
	begun  sync.Once
	writes chan struct{} // closed when the first write has begun
	free   chan struct{} // closed when writes may end
}

func (w *stuckWriter) Write(b []byte) (int, error) {
	w.begun.Do(func() { close(w.writes) })
	<-w.free
	return len(b), nil
}

// endsAfter is an input that ends when the channel is closed.
type endsAfter <-chan struct{}

func (c endsAfter) Read([]byte) (int, error) {
	<-c
	return 0, io.EOF
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A client that is gone, or does not read any more, does not hold the server.
func TestStdioLostClient(t *testing.T) {
	t.Parallel()
	h, started, ended := blocking(t)
	inR, inW := io.Pipe()
	defer inW.Close()
	result := make(chan error, 1)
	go func() { result <- ServeStdio(t.Context(), h, inR, failingWriter{}, StdioOptions{}) }()
	fmt.Fprintln(inW, modernLine("1", "tools/call", `"name":"wait",`, metaPlain))
	<-started
	fmt.Fprintln(inW, modernLine("2", "tasks/get", `"taskId":"task_done",`, metaDeclared))
	if err := <-result; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("ended with %v", err)
	}
	<-ended

	stuck := &stuckWriter{writes: make(chan struct{}), free: make(chan struct{})}
	defer close(stuck.free)
	in := io.MultiReader(strings.NewReader(modernLine("1", "tools/list", "", metaPlain)+"\n"), endsAfter(stuck.writes))
	err := ServeStdio(t.Context(), h, in, stuck, StdioOptions{DrainTimeout: 10 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "stopped reading") {
		t.Errorf("ended with %v", err)
	}
}

// The SDK's own client, which asks for 2026-07-28 first.
func TestStdioWithTheSDKsClient(t *testing.T) {
	t.Parallel()
	h := newHandler(t, testOptions(newFakeStore(allTasks()...)))
	for _, version := range []string{"", Version20251125, Version20250618} {
		inR, inW := io.Pipe()
		outR, outW := io.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := ServeStdio(t.Context(), stdioPrincipal("ann", h), inR, outW, StdioOptions{}); err != nil {
				t.Error(err)
			}
			outW.Close()
		})
		updated := make(chan string, 1)
		client := mcp.NewClient(&mcp.Implementation{Name: "c", Version: "1"}, &mcp.ClientOptions{
			ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
		})
		cs, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: outR, Writer: inW}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "whoami"})
		if err != nil {
			t.Fatal(err)
		}
		want := version
		if want == "" {
			want = Version20260728
		}
		if text := res.Content[0].(*mcp.TextContent).Text; !strings.HasPrefix(text, "ann|"+want) {
			t.Errorf("%q: %s", version, text)
		}
		if version != "" {
			if err := cs.Subscribe(t.Context(), &mcp.SubscribeParams{URI: "test://r"}); err != nil {
				t.Fatal(err)
			}
			if err := h.ResourceUpdated(t.Context(), "test://r"); err != nil {
				t.Fatal(err)
			}
			if got := <-updated; got != "test://r" {
				t.Errorf("updated %s", got)
			}
		}
		if err := cs.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		wg.Wait()
	}
}

// FuzzStdio: whatever comes in, each line that goes out is a message.
func FuzzStdio(f *testing.F) {
	for _, s := range []string{
		initializeLine + "\n" + initializedLine + "\n" + legacyLine("1", "tools/list", ""),
		modernLine("1", "tasks/get", `"taskId":"task_done",`, metaDeclared) + "\n" + modernLine("1", "tools/call", `"name":"whoami",`, metaPlain),
		modernLine("null", "tools/call", `"name":null,`, metaPlain), "[]\n[1]\n[{}]", "\xff\xfe\n{", `{"id":1,"id":"1","method":"ping","method":""}`,
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, `{"jsonrpc":"2.0","id":1.5,"method":"x"}`,
	} {
		f.Add([]byte(s))
	}
	h := newHandler(f, testOptions(newFakeStore(allTasks()...)))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		if err := ServeStdio(t.Context(), h, bytes.NewReader(in), &out, StdioOptions{DrainTimeout: time.Minute}); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(out.String()) {
			if !json.Valid([]byte(l)) || !strings.Contains(l, `"jsonrpc":"2.0"`) {
				t.Fatalf("%q is no message", l)
			}
		}
	})
}
