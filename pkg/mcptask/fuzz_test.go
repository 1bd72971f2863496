package mcptask

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
)

// FuzzParseMessage holds the front and the SDK to one reading of a body: what
// the front takes for a request of one method and id, the SDK must as well.
func FuzzParseMessage(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"a",` + metaDeclared + `}}`,
		`{"jsonrpc":"2.0","id":"x","method":"subscriptions/listen","params":{"notifications":{"taskIds":["a","b"]}}}`,
		`{"jsonrpc":"2.0","id":1,"id":2,"method":"a","method":"b"}`,
		`{"JSONRPC":"2.0","ID":1,"Method":"a"}`,
		`[{"jsonrpc":"2.0","id":1,"method":"a"}]`,
		`{"jsonrpc":"2.0","id":null,"method":"a\u0000\ud800"} x`,
		`{"jsonrpc":"2.0","method":"a","params":` + strings.Repeat("[", 1500) + strings.Repeat("]", 1500) + `}`,
		"\xff", "", "null", `{"jsonrpc":"2.0","id":1e400,"method":"a"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		m, err := parseMessage(body)
		if err != nil {
			return
		}
		msg, err := jsonrpc.DecodeMessage(body)
		if err != nil {
			t.Fatalf("the SDK refuses what the front took: %v", err)
		}
		req, ok := msg.(*jsonrpc.Request)
		if !ok || req.Method != m.method || req.ID != m.id || !bytes.Equal(req.Params, m.params) {
			t.Fatalf("front %+v, SDK %+v", m, msg)
		}
		p, err := m.parseParams()
		if v := m.metaVersion(); err == nil {
			if want, _ := p.Meta["io.modelcontextprotocol/protocolVersion"].(string); v != want {
				t.Fatalf("version %q and %q", v, want)
			}
		}
	})
}

// FuzzDecodeHeader: what the sentinel encodes comes back, and nothing that is
// not printable passes without it.
func FuzzDecodeHeader(f *testing.F) {
	for _, s := range []string{"task_1", "=?base64?dGFzaw==?=", "=?base64??=", "=?base64?=", "t\xe4sk", " a ", "=?BASE64?dGFzaw==?="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, ok := decodeHeader(s)
		if ok && v != s && (!strings.HasPrefix(s, "=?base64?") || !strings.HasSuffix(s, "?=")) {
			t.Fatalf("%q became %q", s, v)
		}
		if ok && v == s && strings.ContainsFunc(s, func(r rune) bool { return r != '\t' && (r < ' ' || r > '~') }) {
			t.Fatalf("%q passed", s)
		}
	})
}

// FuzzBody sends any body to the whole handler, in both generations.
func FuzzBody(f *testing.F) {
	for _, method := range []string{methodGet, methodUpdate, methodCall, methodDiscover} {
		f.Add(method, Version20260728, []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`","params":{"taskId":"task_done","name":"whoami",`+metaDeclared+`}}`))
		f.Add(method, Version20251125, []byte(`{"jsonrpc":"2.0","id":1,"method":"`+method+`"}`))
	}
	h := newHandler(f, testOptions(newFakeStore(allTasks()...)))
	f.Fuzz(func(t *testing.T, method, version string, body []byte) {
		if method == methodListen {
			return // it may rightly stay open
		}
		r := rawRequest("http://localhost/mcp", map[string]string{versionHeader: version, methodHeader: method, nameHeader: "task_done"}, string(body))
		if strings.ContainsAny(method+version, "\r\n\x00") {
			return // net/http refuses these before any handler
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
	})
}

// FuzzStream: whatever ids, messages and results hold, a stream is exactly its
// events, and what was put in comes out.
func FuzzStream(f *testing.F) {
	for _, s := range []string{"a", "x\n\ndata: {\"injected\":1}\r\n\u2028", "\x00\x1b[0m", "\"}\n", "\ud7ff\ufffd", "event: x", ": comment\n\n"} {
		f.Add(s, s, s)
	}
	f.Fuzz(func(t *testing.T, requestID, id, message string) {
		if !utf8.ValidString(requestID) || !utf8.ValidString(id) || !utf8.ValidString(message) {
			return // JSON has no such strings
		}
		h := newHandler(t, testOptions(newFakeStore(fakeTask(id, StatusCompleted, func(task *Task) {
			task.StatusMessage, task.Result = message, textResult(message)
		}))))
		body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": requestID, "method": methodListen, "params": map[string]any{
			"notifications": map[string]any{"taskIds": []string{id}}, "_meta": json.RawMessage("{" + strings.TrimPrefix(metaDeclared, `"_meta":{`)),
		}})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, rawRequest("http://localhost/mcp", map[string]string{versionHeader: Version20260728, methodHeader: methodListen}, string(body)))
		events := streamEvents(t, w.Body.String())
		if len(events) != 3 {
			t.Fatalf("%d %q: %d events, want acknowledgement, task, result", w.Code, w.Body, len(events))
		}
		var task struct {
			Params struct {
				TaskID        string
				StatusMessage string
				Result        struct{ Content []struct{ Text string } }
			}
		}
		var end struct{ ID string }
		if err := errors.Join(json.Unmarshal([]byte(events[1]), &task), json.Unmarshal([]byte(events[2]), &end)); err != nil {
			t.Fatal(err)
		}
		if p := task.Params; p.TaskID != id || p.StatusMessage != message || len(p.Result.Content) != 1 || p.Result.Content[0].Text != message || end.ID != requestID {
			t.Errorf("%q, %q, %q came out as %s and %s", requestID, id, message, events[1], events[2])
		}
	})
}
