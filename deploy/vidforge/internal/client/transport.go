package client

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/vidforge/vidforge/pkg/mcptask"
)

// mostAnswer bounds one answer of the server in bytes: a preview of 1 MiB in
// Base64 fits several times.
const mostAnswer = 8 << 20

// credential adds the API key to requests to the server itself, and to nobody
// else: downloads may lead to an object store.
type credential struct {
	server *url.URL
	key    string
	next   http.RoundTripper
}

func (c credential) RoundTrip(req *http.Request) (*http.Response, error) {
	if c.key != "" && req.URL.Scheme == c.server.Scheme && req.URL.Host == c.server.Host {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err := c.next.RoundTrip(req)
	if err != nil && req.Context().Err() == nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return resp, err //nolint:wrapcheck // the context's own error
}

// taskWire stands below the SDK's client and adds what it lacks for the tasks
// extension (SEP-2663):
//
//   - requests of tasks/* carry the task's id in Mcp-Name;
//   - the task that answers a tools/call has no place in the SDK's
//     CallToolResult and would be lost in decoding: it moves into
//     structuredContent;
//   - answers are read whole, so that a connection that breaks is an error of
//     the request at once, where the SDK would wait for ever; and errors that
//     are no JSON-RPC keep their code.
type taskWire struct{ next http.RoundTripper }

func (t taskWire) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPost {
		return t.next.RoundTrip(req) //nolint:wrapcheck // transparent
	}
	method := req.Header.Get("Mcp-Method")
	if strings.HasPrefix(method, "tasks/") {
		id, err := taskID(req)
		if err != nil {
			return nil, err
		}
		req = req.Clone(req.Context())
		req.Header.Set("Mcp-Name", id)
	}
	resp, err := t.next.RoundTrip(req)
	if err != nil {
		return nil, err //nolint:wrapcheck // transparent
	}
	body, err := readAnswer(resp)
	if err != nil {
		if req.Context().Err() != nil {
			return nil, fmt.Errorf("read the answer: %w", req.Context().Err())
		}
		return nil, fmt.Errorf("%w: read the answer: %w", ErrUnreachable, err)
	}
	var message struct {
		ID     json.RawMessage `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  json.RawMessage `json:"error"`
	}
	isRPC := json.Unmarshal(body, &message) == nil && (message.Result != nil || message.Error != nil)
	switch {
	case isRPC:
		// The SDK drops the body of some statuses; the answer is in the body.
		resp.StatusCode, resp.Status = http.StatusOK, ""
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return nil, httpError(resp.StatusCode, body)
	}
	if isRPC && method == "tools/call" {
		body = moveTask(body, message.ID, message.Result)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	resp.ContentLength = int64(len(body))
	resp.Header = resp.Header.Clone()
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	if len(body) > 0 {
		resp.Header.Set("Content-Type", "application/json")
	}
	return resp, nil
}

// moveTask wraps a task that answers a tools/call into a call result. Any other
// answer stays as it is.
func moveTask(body []byte, id, result json.RawMessage) []byte {
	var kind struct {
		ResultType string `json:"resultType"`
	}
	if json.Unmarshal(result, &kind) != nil || kind.ResultType != "task" {
		return body
	}
	moved, err := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id,
		"result": map[string]any{
			"content":           []any{},
			"structuredContent": result,
			"_meta":             map[string]any{mcptask.ExtensionID: map[string]any{}},
		},
	})
	if err != nil {
		return body // raw messages that were just decoded encode again
	}
	return moved
}

func taskID(req *http.Request) (string, error) {
	body, err := req.GetBody()
	if err != nil {
		return "", fmt.Errorf("read the request: %w", err)
	}
	var message struct {
		Params struct {
			TaskID string `json:"taskId"`
		} `json:"params"`
	}
	if err := json.NewDecoder(body).Decode(&message); err != nil {
		return "", fmt.Errorf("read the request: %w", err)
	}
	return message.Params.TaskID, nil
}

// readAnswer reads an answer whole. Of an event stream it returns the data of
// the last event: the response that ends it.
func readAnswer(resp *http.Response) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer+1))
	if cerr := resp.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	if len(b) > mostAnswer {
		return nil, fmt.Errorf("it is larger than %d bytes", mostAnswer)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "text/event-stream" {
		return b, nil
	}
	return lastEvent(b), nil
}

// lastEvent returns the data of the last complete event of a stream in the
// format of https://html.spec.whatwg.org/multipage/server-sent-events.html.
func lastEvent(stream []byte) []byte {
	var last, data []byte
	for line := range bytes.Lines(stream) {
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if len(data) > 0 {
				last = data
			}
			data = nil
			continue
		}
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if len(data) > 0 {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
		}
	}
	return last
}
