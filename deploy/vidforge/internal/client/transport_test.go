package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/vidforge/vidforge/pkg/render"
)

func TestLastEvent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, stream, want string }{
		{"empty", "", ""},
		{"comments only", ": hello\n\n: again\n\n", ""},
		{"one", "event: message\ndata: {\"a\":1}\n\n", `{"a":1}`},
		{"last of two", "data: 1\n\ndata: 2\n\n", "2"},
		{"several lines", "data: {\ndata: }\n\n", "{\n}"},
		{"carriage returns", "data: 1\r\n\r\n", "1"},
		{"no space", "data:1\n\n", "1"},
		{"cut off", "data: 1\n\ndata: 2", "1"},
		{"comment after", "data: 1\n\n: bye\n\n", "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := string(lastEvent([]byte(tt.stream))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// FuzzLastEvent checks that what a server sends cannot crash the client, and
// that data comes from the stream.
func FuzzLastEvent(f *testing.F) {
	f.Add([]byte("event: message\ndata: {}\n\n"))
	f.Add([]byte("data:a\ndata: b\r\n\n"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for line := range bytes.Lines(lastEvent(stream)) {
			if !bytes.Contains(stream, bytes.TrimSuffix(line, []byte("\n"))) {
				t.Errorf("%q is not in %q", line, stream)
			}
		}
	})
}

func TestMoveTask(t *testing.T) {
	t.Parallel()
	move := func(result string) string {
		body := []byte(`{"jsonrpc":"2.0","id":7,"result":` + result + `}`)
		return string(moveTask(body, json.RawMessage("7"), json.RawMessage(result)))
	}
	const plain = `{"resultType":"complete","content":[]}`
	if got := move(plain); got != `{"jsonrpc":"2.0","id":7,"result":`+plain+`}` {
		t.Errorf("an ordinary result became %s", got)
	}
	var moved struct {
		ID     int `json:"id"`
		Result struct {
			Content []any          `json:"content"`
			Task    map[string]any `json:"structuredContent"`
		} `json:"result"`
	}
	if err := json.Unmarshal([]byte(move(`{"resultType":"task","taskId":"x"}`)), &moved); err != nil {
		t.Fatal(err)
	}
	if moved.ID != 7 || moved.Result.Content == nil || moved.Result.Task["taskId"] != "x" {
		t.Errorf("a task became %+v", moved)
	}
}

func TestErrorsKeepTheirCode(t *testing.T) {
	t.Parallel()
	rpc := &jsonrpc.Error{Code: -32602, Message: "x", Data: json.RawMessage(`{"machine_code":"task_expired","human_message":"It is over.","temporary":false}`)}
	for _, tt := range []struct {
		name      string
		err       error
		code      render.Code
		temporary bool
	}{
		{"JSON-RPC", classify("get", rpc), render.CodeTaskExpired, false},
		{"JSON-RPC without envelope", classify("get", &jsonrpc.Error{Code: -32603, Message: "x"}), "", false},
		{"envelope", httpError(503, []byte(`{"code":"unavailable","message":"Later.","temporary":true,"retry_after_ms":1500}`)), render.CodeUnavailable, true},
		{"401 of somebody else", httpError(401, []byte("no")), render.CodeCredentialInvalid, false},
		{"403 of somebody else", httpError(403, []byte("<html>")), render.CodeInsufficientScope, false},
		{"proxy", httpError(502, nil), "", true},
		{"other", httpError(418, []byte(`{"code":""}`)), "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := render.CodeOf(tt.err); got != tt.code {
				t.Errorf("code %q, want %q: %v", got, tt.code, tt.err)
			}
			if got := Temporary(tt.err); got != tt.temporary {
				t.Errorf("temporary %v: %v", got, tt.err)
			}
		})
	}
	var e *render.Error
	if !errors.As(httpError(503, []byte(`{"code":"unavailable","message":"Later.","temporary":true,"retry_after_ms":1500}`)), &e) || e.RetryAfter.Milliseconds() != 1500 {
		t.Errorf("retry after %v", e)
	}
}
