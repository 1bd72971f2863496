package mcptask_test

import (
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
