package gateway

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

const coreVersion = "2025-11-25"

// event is a message of the server on a stream.
type event struct {
	ID     any             `json:"id"`
	Method string          `json:"method"`
	Params map[string]any  `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

// stream is an SSE stream of a session.
type stream struct {
	testing.TB
	events chan event // closed at the end
	cut    context.CancelFunc
}

// open starts a stream of the session: the GET stream, or a POST that is held.
func (s *olderSession) open(method, body string) *stream {
	s.Helper()
	ctx, cut := context.WithCancel(context.Background())
	req, err := http.NewRequestWithContext(ctx, method, s.url+s.path, strings.NewReader(body))
	if err != nil {
		s.Fatal(err)
	}
	for i := 0; i+1 < len(s.headers); i += 2 {
		req.Header.Set(s.headers[i], s.headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.Fatal(err)
	}
	if res.StatusCode != http.StatusOK || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		s.Fatalf("no stream: %d %s", res.StatusCode, res.Header.Get("Content-Type"))
	}
	st := &stream{TB: s.T, events: make(chan event, 100), cut: cut}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(st.events)
		defer func() { _ = res.Body.Close() }()
		for sc := bufio.NewScanner(res.Body); sc.Scan(); {
			if data, ok := bytes.CutPrefix(sc.Bytes(), []byte("data: ")); ok && len(data) > 0 {
				var e event
				if err := json.Unmarshal(data, &e); err != nil {
					s.Errorf("%s: %v", data, err)
				}
				st.events <- e
			}
		}
	})
	s.Cleanup(func() { cut(); wg.Wait() })
	return st
}

func (s *olderSession) listen() *stream { return s.open(http.MethodGet, "") }

func (s *olderSession) result(id render.ID) *stream {
	return s.open(http.MethodPost, fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"tasks/result","params":{"taskId":%q}}`, id))
}

// until reads up to the next message of a method; "" is a response.
func (st *stream) until(method string) event {
	st.Helper()
	deadline := time.After(time.Minute)
	for {
		select {
		case e, ok := <-st.events:
			if !ok {
				st.Fatalf("the stream ended before %q", method)
			}
			if e.Method == method {
				return e
			}
		case <-deadline:
			st.Fatalf("no %q came", method)
		}
	}
}

// answer is the client's response to what the server asked.
func (s *olderSession) answer(to event, result string) {
	s.Helper()
	res, body := s.do("POST", s.path, strings.NewReader(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"result":%s}`, to.ID, result)), s.headers...)
	if res.StatusCode != http.StatusAccepted {
		s.Fatalf("answer: %d %s", res.StatusCode, body)
	}
}

// submitTask renders as a task and returns its id and the created task.
func (s *olderSession) submitTask(args, task string) (render.ID, map[string]any) {
	s.Helper()
	a := s.request("tools/call", fmt.Sprintf(`{"name":"vidforge_render_video","arguments":%s,"task":%s,"_meta":{"progressToken":"p1"}}`, args, task))
	if a.Error != nil {
		s.Fatalf("render: %s", a.Raw)
	}
	v := object(s, a.Result)
	created, _ := v["task"].(map[string]any)
	id, _ := created["taskId"].(string)
	return render.ID(id), v
}

func (s *olderSession) coreTask(id render.ID) map[string]any {
	s.Helper()
	a := s.request("tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error != nil {
		s.Fatalf("tasks/get: %s", a.Raw)
	}
	return object(s, a.Result)
}

// related is the task that a message's _meta names.
func related(m map[string]any) string {
	meta, _ := m["_meta"].(map[string]any)
	rel, _ := meta["io.modelcontextprotocol/related-task"].(map[string]any)
	id, _ := rel["taskId"].(string)
	return id
}

func TestCoreTaskLifecycle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.connect(coreVersion, `{"elicitation":{}}`)
	for _, tool := range decode[struct {
		Tools []struct {
			Name      string
			Execution *struct{ TaskSupport string }
		}
	}](t, s.request("tools/list", "").Result).Tools {
		if render := tool.Name == "vidforge_render_video"; render != (tool.Execution != nil) || render && tool.Execution.TaskSupport != "optional" {
			t.Errorf("%s: execution %+v", tool.Name, tool.Execution)
		}
	}

	id, v := s.submitTask(renderArgs(b.source()), `{"ttl":60000}`)
	meta, _ := v["_meta"].(map[string]any)
	if text, _ := meta["io.modelcontextprotocol/model-immediate-response"].(string); !strings.Contains(text, string(id)) || !strings.Contains(text, "vidforge_get_render_status") {
		t.Errorf("immediate response %q", text)
	}
	created, _ := v["task"].(map[string]any)
	if created["status"] != "working" || created["pollInterval"] == nil || created["createdAt"] == nil || created["ttl"] == nil || v["content"] != nil {
		t.Errorf("created: %v", v)
	}
	if ttl, _ := created["ttl"].(float64); ttl < 3600_000 || ttl > 3660_000 {
		t.Errorf("ttl %v, want the hour that is the least", created["ttl"])
	}
	held := s.result(id)
	b.pause(id)
	ask := held.until("elicitation/create")
	if related(ask.Params) != string(id) || ask.Params["mode"] != "form" || !strings.Contains(ask.Params["message"].(string), id.PreviewURI()) {
		t.Errorf("elicitation %+v", ask)
	}
	// The same content as the other generation's, which was minted with it.
	form := inputs(t, b.task(formCaps, id))["watermark-approval-1"]
	params, _ := form["params"].(map[string]any)
	for k, want := range params {
		if fmt.Sprint(ask.Params[k]) != fmt.Sprint(want) {
			t.Errorf("%s is %v, in the other generation %v", k, ask.Params[k], want)
		}
	}
	if task := s.coreTask(id); task["status"] != "input_required" || task["pollInterval"] != 30000.0 || related(task) != "" {
		t.Errorf("paused: %v", task)
	}
	s.answer(ask, `{"action":"accept","content":{"approved":true,"note":"gut"}}`)
	if d := b.farm.Record(id).Decision; d == nil || !d.Approved || d.Note != "gut" || d.Channel != render.ChannelElicitation {
		t.Errorf("decision %+v", d)
	}
	b.farm.SetProgress(id, farm.Progress{Fraction: new(0.5)})
	if p := held.until("notifications/progress"); p.Params["progressToken"] != "p1" || p.Params["progress"] != 0.5 || p.Params["total"] != 1.0 || related(p.Params) != string(id) {
		t.Errorf("progress %+v", p)
	}
	b.finish(id, []byte("video"))
	last := decode[map[string]any](t, held.until("").Result)
	structured, _ := last["structuredContent"].(map[string]any)
	if structured["status"] != "completed" || structured["render_id"] != string(id) || related(last) != string(id) || last["resultType"] != nil {
		t.Errorf("result %v", last)
	}
	if task := s.coreTask(id); task["status"] != "completed" {
		t.Errorf("finished: %v", task)
	}
	a := s.request("tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error == nil || a.Error.Code != -32602 {
		t.Fatalf("cancel of a finished task: %s", a.Raw)
	}
	b.wantEnvelope(a.Error.Data, render.CodeInvalidField, false)

	// Another session of the same client finds the task.
	other := b.connect(coreVersion, `{}`)
	if task := other.coreTask(id); task["status"] != "completed" {
		t.Errorf("in another session: %v", task)
	}
}

func TestCoreTaskByPage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.connect(coreVersion, `{"elicitation":{"url":{}}}`)
	get := s.listen()
	id, _ := s.submitTask(renderArgs(b.source()), `{}`)
	b.pause(id)
	ask := get.until("elicitation/create")
	if page, _ := ask.Params["url"].(string); ask.Params["mode"] != "url" || ask.Params["elicitationId"] == nil || !strings.HasSuffix(page, "/v1/renders/"+string(id)+"/approval") {
		t.Errorf("elicitation %+v", ask)
	}
	s.answer(ask, `{"action":"accept"}`)
	if task := s.coreTask(id); task["status"] != "input_required" || !strings.Contains(task["statusMessage"].(string), "vidforge_approve_watermark") {
		t.Errorf("consent is no decision: %v", task)
	}
	b.apply(id, render.Decided{Decision: render.Decision{Approved: false}})
	if done := get.until("notifications/elicitation/complete"); done.Params["elicitationId"] != ask.Params["elicitationId"] {
		t.Errorf("complete: %+v", done)
	}
	status := get.until("notifications/tasks/status")
	message, _ := status.Params["statusMessage"].(string)
	if status.Params["status"] != "failed" || !strings.Contains(message, "watermark_rejected") || !strings.Contains(message, "Next: call vidforge_render_video with {") || related(status.Params) != "" {
		t.Errorf("status: %+v", status)
	}
	if task := s.coreTask(id); task["status"] != "failed" || task["statusMessage"] != message {
		t.Errorf("rejected: %v", task)
	}
	a := s.request("tasks/result", fmt.Sprintf(`{"taskId":%q}`, id))
	if res := decode[toolResult](t, a.Result); !res.IsError || related(object(t, a.Result)) != string(id) {
		t.Errorf("result: %s", a.Raw)
	} else {
		b.wantEnvelope(res.Structured, render.CodeWatermarkRejected, true)
	}
}

// Clients that decide nothing by themselves, or cannot, are told the tool.
func TestCoreTaskWithoutADecision(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ caps, answer string }{
		"no elicitation": {`{}`, ""},
		"declined":       {`{"elicitation":{}}`, `{"action":"decline"}`},
		"cancelled":      {`{"elicitation":{}}`, `{"action":"cancel"}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			s := b.connect(coreVersion, c.caps)
			id, _ := s.submitTask(renderArgs(b.source()), `{}`)
			held := s.result(id)
			b.pause(id)
			if c.answer != "" {
				s.answer(held.until("elicitation/create"), c.answer)
			}
			task := s.coreTask(id)
			if m, _ := task["statusMessage"].(string); task["status"] != "input_required" ||
				!strings.Contains(m, `vidforge_approve_watermark with {"approved":true,"render_id":"`+string(id)+`"}`) || !strings.Contains(m, "/approval") {
				t.Errorf("task %v", task)
			}
			// The mirrors are there besides, and one of them ends it.
			a := s.request("tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, id))
			if a.Error != nil || object(t, a.Result)["status"] != "cancelled" {
				t.Errorf("cancel: %s", a.Raw)
			}
			last := held.until("")
			if res := decode[toolResult](t, last.Result); !res.IsError {
				t.Errorf("result: %s", last.Result)
			} else {
				b.wantEnvelope(res.Structured, render.CodeRenderCancelled, true)
			}
		})
	}
}

func TestCoreTaskRefusals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.connect(coreVersion, `{}`)
	for params, code := range map[string]int{
		`{"name":"vidforge_render_video","arguments":{},"task":{"ttl":-1}}`:      -32602,
		`{"name":"vidforge_render_video","arguments":{},"task":{"ttl":"1h"}}`:    -32602,
		`{"name":"vidforge_get_capabilities","arguments":{},"task":{"ttl":1}}`:   -32601,
		`{"name":"vidforge_get_render_status","arguments":{},"task":{"ttl":-1}}`: -32601,
	} {
		a := s.request("tools/call", params)
		if a.Error == nil || a.Error.Code != code {
			t.Fatalf("%s: %s", params, a.Raw)
		}
		if code == -32602 {
			if env := b.wantEnvelope(a.Error.Data, render.CodeInvalidField, false); env.Details["field"] != "task.ttl" {
				t.Errorf("%s: %s", params, a.Raw)
			}
		}
	}
	for _, method := range []string{"tasks/list", "tasks/update"} {
		if a := s.request(method, `{}`); a.Error == nil || a.Error.Code != -32601 {
			t.Errorf("%s: %s", method, a.Raw)
		}
	}
	unknown := render.NewID()
	for _, method := range []string{"tasks/get", "tasks/result", "tasks/cancel"} {
		a := s.request(method, fmt.Sprintf(`{"taskId":%q}`, unknown))
		if a.Error == nil || a.Error.Code != -32602 {
			t.Fatalf("%s: %s", method, a.Raw)
		}
		b.wantEnvelope(a.Error.Data, render.CodeTaskNotFound, false)
	}
	// What the tool refuses is a failed task: the client can read nothing else.
	id, v := s.submitTask(plainArgs("vidforge://assets/a_"+strings.Repeat("x", 26)), `{}`)
	created, _ := v["task"].(map[string]any)
	if m, _ := created["statusMessage"].(string); created["status"] != "failed" || !strings.Contains(m, "source_not_found") {
		t.Errorf("refused: %v", v)
	}
	res := decode[toolResult](t, s.request("tasks/result", fmt.Sprintf(`{"taskId":%q}`, id)).Result)
	b.wantEnvelope(res.Structured, render.CodeSourceNotFound, true)
}
