package mcptask_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/mcptask"
)

// A tool that takes its time answers a declaring client with a task. Any other
// client gets a plain result.
func Example() {
	tasks := mcptask.NewMemory(mcptask.MemoryOptions{PollInterval: 10 * time.Millisecond})
	defer tasks.Close()
	work := func(_ context.Context, t *mcptask.Running) (*mcp.CallToolResult, error) {
		t.SetMessage("baking")
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "a cake"}}}, nil
	}
	handler, err := mcptask.New(mcptask.Options{
		Implementation: &mcp.Implementation{Name: "bakery", Version: "1.0.0"},
		Store:          tasks,
		Tools: []mcptask.TaskTool{{
			Tool: &mcp.Tool{Name: "bake", InputSchema: json.RawMessage(`{"type":"object"}`)},
			Handle: func(ctx context.Context, c mcptask.Caller, _ *mcp.CallToolRequest) (*mcp.CallToolResult, *mcptask.Task, error) {
				task, err := tasks.Start(ctx, c, work)
				if c.Tasks() || err != nil {
					return nil, task, err
				}
				return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "it is in the oven"}}}, nil, nil
			},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	defer func() { _ = handler.Close() }()

	var task struct {
		TaskID         string
		Status         string
		PollIntervalMs int
	}
	call(server.URL, "tools/call", "bake", `"name":"bake"`, &task)
	for task.Status != "completed" {
		time.Sleep(time.Duration(task.PollIntervalMs) * time.Millisecond)
		call(server.URL, "tasks/get", task.TaskID, `"taskId":"`+task.TaskID+`"`, &task)
	}
	var done struct{ Result mcp.CallToolResult }
	call(server.URL, "tasks/get", task.TaskID, `"taskId":"`+task.TaskID+`"`, &done)
	fmt.Println(done.Result.Content[0].(*mcp.TextContent).Text)
	// Output: a cake
}

// A client of MCP 2025-11-25 asks for the task, waits in tasks/result, and is
// asked there what the task wants to know.
func Example_coreTasks() {
	tasks := mcptask.NewMemory(mcptask.MemoryOptions{})
	defer tasks.Close()
	bake := func(ctx context.Context, t *mcptask.Running) (*mcp.CallToolResult, error) {
		answer, err := t.Ask(ctx, "icing", json.RawMessage(`{"method":"elicitation/create","params":{"message":"With icing?",`+
			`"requestedSchema":{"type":"object","properties":{"icing":{"type":"boolean"}}}}}`))
		if err != nil {
			return nil, err
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "a cake, " + string(answer)}}}, nil
	}
	handler, err := mcptask.New(mcptask.Options{
		Implementation: &mcp.Implementation{Name: "bakery", Version: "1.0.0"},
		Store:          tasks,
		Tools: []mcptask.TaskTool{{
			Tool: &mcp.Tool{Name: "bake", InputSchema: json.RawMessage(`{"type":"object"}`)},
			Handle: func(ctx context.Context, c mcptask.Caller, _ *mcp.CallToolRequest) (*mcp.CallToolResult, *mcptask.Task, error) {
				if !c.Tasks() {
					return nil, nil, mcptask.ErrTasksRequired
				}
				task, err := tasks.Start(ctx, c, bake)
				return nil, task, err
			},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	defer func() { _ = handler.Close() }()

	s := session{url: server.URL}
	hello := s.post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25",` +
		`"capabilities":{"elicitation":{}},"clientInfo":{"name":"guest","version":"1.0.0"}}}`)
	s.id = hello.Header.Get("Mcp-Session-Id")
	s.events(hello, func(event) {})
	s.events(s.post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), func(event) {})
	var id string
	s.events(s.post(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"bake","task":{"ttl":60000}}}`), func(e event) {
		id = e.Result.Task.TaskID
	})
	s.events(s.post(`{"jsonrpc":"2.0","id":3,"method":"tasks/result","params":{"taskId":"`+id+`"}}`), func(e event) {
		switch e.Method {
		case "elicitation/create":
			fmt.Println(e.Params.Message)
			s.events(s.post(`{"jsonrpc":"2.0","id":"`+e.ID.(string)+`","result":{"action":"accept","content":{"icing":true}}}`), func(event) {})
		case "": // the response
			fmt.Println(e.Result.Content[0].Text)
		}
	})
	// Output:
	// With icing?
	// a cake, {"action":"accept","content":{"icing":true}}
}

// session is an MCP 2025-11-25 client's, without error handling.
type session struct{ url, id string }

// event is a message of the server.
type event struct {
	ID     any
	Method string
	Params struct{ Message string }
	Result struct {
		Task    struct{ TaskID string }
		Content []struct{ Text string }
	}
}

func (s *session) post(body string) *http.Response {
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, s.url, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	if s.id != "" {
		r.Header.Set("Mcp-Session-Id", s.id)
		r.Header.Set("Mcp-Protocol-Version", "2025-11-25")
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		panic(err)
	}
	return res
}

// events hands over each message of an answer as it comes.
func (*session) events(res *http.Response, each func(event)) {
	defer func() { _ = res.Body.Close() }()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		line := strings.TrimPrefix(lines.Text(), "data: ")
		var e event
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &e) == nil {
			each(e)
		}
	}
}

// call is one request of an MCP 2026-07-28 client, without error handling.
func call(url, method, name, params string, result any) {
	const meta = `{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`
	body := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `,"_meta":` + meta + `}}`
	r, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, url, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	r.Header.Set("Mcp-Method", method)
	r.Header.Set("Mcp-Name", name)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		panic(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, _ := io.ReadAll(res.Body)
	if _, data, ok := strings.Cut(string(b), "data: "); ok {
		b = []byte(data) // it came on a stream
	}
	var m struct {
		Result json.RawMessage `json:"result"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		panic(err)
	}
	_ = json.Unmarshal(m.Result, result)
}
