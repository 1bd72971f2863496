package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// inputs are the input requests of a task.
func inputs(t testing.TB, task map[string]any) map[string]map[string]any {
	t.Helper()
	raw, err := json.Marshal(task["inputRequests"])
	if err != nil {
		t.Fatal(err)
	}
	return decode[map[string]map[string]any](t, raw)
}

func (b *bench) update(caps string, id render.ID, responses string) answer {
	b.Helper()
	return b.rpc(caps, "tasks/update", fmt.Sprintf(`{"taskId":%q,"inputResponses":%s}`, id, responses))
}

// wantAck checks the answer to tasks/update and tasks/cancel.
func (b *bench) wantAck(a answer) {
	b.Helper()
	if a.Error != nil {
		b.Fatalf("not acknowledged: %s", a.Raw)
	}
	v := object(b, a.Result)
	delete(v, "_meta")
	if len(v) != 1 || v["resultType"] != "complete" {
		b.Errorf("acknowledgement %s", a.Result)
	}
}

func TestTaskLifecycle(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	r := b.rpc(formCaps, "tools/call", fmt.Sprintf(`{"name":"vidforge_render_video","arguments":%s}`, renderArgs(b.source())))
	v := object(t, r.Result)
	id := render.ID(v["taskId"].(string))
	if v["resultType"] != "task" || v["status"] != "working" || v["ttlMs"].(float64) < 24*3600*1000 || v["createdAt"] == nil || v["lastUpdatedAt"] == nil ||
		v["statusMessage"] != "Queued." || v["content"] != nil || v["structuredContent"] != nil {
		t.Errorf("created: %s", r.Result)
	}
	if p := v["pollIntervalMs"].(float64); p < 2000 || p > 10000 {
		t.Errorf("pollIntervalMs %v", p)
	}
	if v = b.task(formCaps, id); v["resultType"] != "complete" || v["status"] != "working" || v["inputRequests"] != nil {
		t.Errorf("working: %v", v)
	}
	b.pause(id)
	v = b.task(formCaps, id)
	in := inputs(t, v)
	if v["status"] != "input_required" || v["pollIntervalMs"] != 30000.0 || len(in) != 1 {
		t.Fatalf("paused: %v", v)
	}
	form := in["watermark-approval-1"]
	params, _ := form["params"].(map[string]any)
	message, _ := params["message"].(string)
	if form["method"] != "elicitation/create" || params["mode"] != "form" {
		t.Errorf("request %v", form)
	}
	for _, part := range []string{id.PreviewURI(), "top_left", "0.5", "Rejecting ends the render", "approved = false"} {
		if !strings.Contains(message, part) {
			t.Errorf("message %q lacks %q", message, part)
		}
	}
	schema, err := json.Marshal(params["requestedSchema"])
	if err != nil {
		t.Fatal(err)
	}
	if s := object(t, schema); fmt.Sprint(s["required"]) != "[approved]" || s["properties"].(map[string]any)["approved"].(map[string]any)["type"] != "boolean" {
		t.Errorf("schema %s", schema)
	}
	b.wantAck(b.update(formCaps, id, `{"watermark-approval-1":{"action":"accept","content":{"approved":true,"note":"gut"}}}`))
	if d := b.farm.Record(id).Decision; d == nil || !d.Approved || d.Note != "gut" || d.Channel != render.ChannelElicitation || d.By != "local" {
		t.Errorf("decision %+v", d)
	}
	if v = b.task(formCaps, id); v["status"] != "working" || v["inputRequests"] != nil {
		t.Errorf("resumed: %v", v)
	}
	b.finish(id, []byte("video"))
	v = b.task(formCaps, id)
	res, _ := v["result"].(map[string]any)
	if v["status"] != "completed" || res["resultType"] != "complete" || res["isError"] == true || v["error"] != nil {
		t.Fatalf("completed: %v", v)
	}
	if s, _ := res["structuredContent"].(map[string]any); s["status"] != "completed" || s["render_id"] != string(id) || s["audio_codec"] != "aac" {
		t.Errorf("result %v", res)
	}
	// 24 hours from the end, not from now.
	rec := b.farm.Record(id)
	if ttl := time.Duration(v["ttlMs"].(float64) * float64(time.Millisecond)); ttl != rec.Ended.Sub(rec.Created)+24*time.Hour {
		t.Errorf("ttl %v", ttl)
	}
}

// TestInputRequestsAreMintedOnce: the same bytes at every poll, by any replica,
// while everything around them changes.
func TestInputRequestsAreMintedOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ caps, key string }{
		"form": {formCaps, "watermark-approval-1"},
		"url":  {urlCaps, "watermark-approval-1-url"},
		"both": {bothCaps, "watermark-approval-1"},
		"old":  {`{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{}}`, "watermark-approval-1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			id := b.submit(c.caps, renderArgs(b.source()))
			b.pause(id)
			get := func() string {
				a := b.rpc(c.caps, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
				v := decode[struct {
					InputRequests map[string]json.RawMessage `json:"inputRequests"`
				}](t, a.Result)
				if len(v.InputRequests) != 1 {
					t.Fatalf("input requests %s", a.Result)
				}
				return string(v.InputRequests[c.key])
			}
			first := get()
			b.clock.add(7 * time.Minute)
			b.farm.SetProgress(id, farm.Progress{Attempt: new(2)})
			if second := get(); second != first || b.farm.Minted != 1 {
				t.Errorf("minted %d times:\n%s\n%s", b.farm.Minted, first, second)
			}
			// What was stored is what is sent, whatever the code would make now.
			rec := *b.farm.Record(id)
			rec.Inputs = []render.InputRequest{{Key: c.key, Params: json.RawMessage(`{"mode":"form", "message":"as stored <é>"}`)}}
			b.farm.Replace(&rec)
			if got, want := get(), `{"method":"elicitation/create","params":{"mode":"form", "message":"as stored <é>"}}`; !jsonEqual(want, []byte(got)) {
				t.Errorf("sent %s, stored %s", got, want)
			}
			if name == "url" {
				p, _ := object(t, []byte(first))["params"].(map[string]any)
				if p["mode"] != "url" || p["url"] != b.url+"/v1/renders/"+string(id)+"/approval" || p["requestedSchema"] != nil {
					t.Errorf("params %v", p)
				}
			}
		})
	}
}

// TestNoElicitation: without a mode nothing is asked, and the message names the
// call with its literal arguments, and the page.
func TestNoElicitation(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, renderArgs(b.source()))
	b.pause(id)
	v := b.task(tasks, id)
	message, _ := v["statusMessage"].(string)
	if v["status"] != "input_required" || fmt.Sprint(v["inputRequests"]) != "map[]" || b.farm.Minted != 0 {
		t.Errorf("paused: %v", v)
	}
	for _, part := range []string{"vidforge_approve_watermark", fmt.Sprintf(`{"approved":true,"render_id":%q}`, id), b.url + "/v1/renders/" + string(id) + "/approval"} {
		if !strings.Contains(message, part) {
			t.Errorf("message %q lacks %s", message, part)
		}
	}
}

// TestAnswers: what decides, what does not, and what leaves the key open.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const form, page = "watermark-approval-1", "watermark-approval-1-url"
	for name, c := range map[string]struct {
		caps, answer string
		field        string // of -32602
		open         bool   // the key is asked again
		decided      string // "", approved, rejected
	}{
		"approve":           {formCaps, `{"` + form + `":{"action":"accept","content":{"approved":true}}}`, "", false, "approved"},
		"reject":            {formCaps, `{"` + form + `":{"action":"accept","content":{"approved":false,"note":"no"}}}`, "", false, "rejected"},
		"decline":           {formCaps, `{"` + form + `":{"action":"decline"}}`, "", false, ""},
		"cancel":            {formCaps, `{"` + form + `":{"action":"cancel"}}`, "", false, ""},
		"consent to a page": {urlCaps, `{"` + page + `":{"action":"accept"}}`, "", false, ""},
		"decline a page":    {urlCaps, `{"` + page + `":{"action":"decline"}}`, "", false, ""},
		"unknown key":       {formCaps, `{"coffee":{"action":"accept"}}`, "", true, ""},
		"not asked":         {formCaps, `{"` + page + `":{"action":"accept"}}`, "", true, ""},
		"nothing":           {formCaps, `{}`, "", true, ""},
		"no content":        {formCaps, `{"` + form + `":{"action":"accept"}}`, "inputResponses." + form + ".content", true, ""},
		"no approved":       {formCaps, `{"` + form + `":{"action":"accept","content":{}}}`, "inputResponses." + form + ".content.approved", true, ""},
		"approved as text":  {formCaps, `{"` + form + `":{"action":"accept","content":{"approved":"true"}}}`, "inputResponses." + form + ".content.approved", true, ""},
		"unknown member":    {formCaps, `{"` + form + `":{"action":"accept","content":{"approved":true,"x":1}}}`, "inputResponses." + form + ".content.x", true, ""},
		"long note":         {formCaps, `{"` + form + `":{"action":"accept","content":{"approved":true,"note":"` + strings.Repeat("n", 501) + `"}}}`, "inputResponses." + form + ".content.note", true, ""},
		"unknown action":    {formCaps, `{"` + form + `":{"action":"maybe"}}`, "inputResponses." + form + ".action", true, ""},
		"no object":         {formCaps, `{"` + form + `":true}`, "inputResponses." + form, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			id := b.submit(c.caps, renderArgs(b.source()))
			b.pause(id)
			if len(inputs(t, b.task(c.caps, id))) != 1 {
				t.Fatal("nothing was asked")
			}
			a := b.update(c.caps, id, c.answer)
			if c.field == "" {
				b.wantAck(a)
			} else {
				if a.Error == nil || a.Error.Code != -32602 || a.Status != 400 {
					t.Fatalf("answer %d %s", a.Status, a.Raw)
				}
				if e := b.wantEnvelope(a.Error.Data, render.CodeInvalidField, false); e.Details["field"] != c.field {
					t.Errorf("details %v", e.Details)
				}
			}
			rec := b.farm.Record(id)
			decided := ""
			if rec.Decision != nil {
				decided = map[bool]string{true: "approved", false: "rejected"}[rec.Decision.Approved]
			}
			if decided != c.decided {
				t.Errorf("decided %q", decided)
			}
			v := b.task(c.caps, id)
			if c.decided != "" {
				return
			}
			message, _ := v["statusMessage"].(string)
			if v["status"] != "input_required" || (len(inputs(t, v)) == 1) != c.open || strings.Contains(message, "vidforge_approve_watermark") == c.open {
				t.Errorf("afterwards: %v", v)
			}
			// A key that was answered is answered.
			if !c.open {
				b.wantAck(b.update(c.caps, id, strings.Replace(c.answer, `"decline"`, `"accept","content":{"approved":true}`, 1)))
				if b.farm.Record(id).Decision != nil {
					t.Error("a second answer decided")
				}
			}
		})
	}
}

// TestAnswersAfterADecision are ignored: somebody was faster.
func TestAnswersAfterADecision(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(formCaps, renderArgs(b.source()))
	b.pause(id)
	b.task(formCaps, id)
	b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
	b.wantAck(b.update(formCaps, id, `{"watermark-approval-1":{"action":"accept","content":{"approved":false}}}`))
	if !b.farm.Record(id).Decision.Approved {
		t.Error("the decision changed")
	}
	// The race itself: the render is decided between the look and the answer.
	other := b.submit(formCaps, renderArgs(b.source()))
	b.pause(other)
	b.task(formCaps, other)
	b.farm.Fail("Decide", render.Errorf(render.CodeApprovalAlreadyRecorded, render.BlameCaller, "Too late."))
	b.wantAck(b.update(formCaps, other, `{"watermark-approval-1":{"action":"accept","content":{"approved":false}}}`))
	b.farm.Fail("Decide", render.Errorf(render.CodeUnavailable, render.BlameFarm, "Not now."))
	if a := b.update(formCaps, other, `{"watermark-approval-1":{"action":"accept","content":{"approved":false}}}`); a.Error == nil || a.Error.Code != -32603 {
		t.Errorf("unavailable: %s", a.Raw)
	}
}

func TestCancelTask(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	cancel := func(id render.ID) answer { return b.rpc(tasks, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, id)) }
	for range 2 {
		b.wantAck(cancel(id))
		if v := b.task(tasks, id); v["status"] != "cancelled" {
			t.Errorf("task %v", v)
		}
	}
	if by := b.farm.Record(id).CancelledBy; by != "local" {
		t.Errorf("cancelled by %q", by)
	}
	done := b.submit(tasks, plainArgs(b.source()))
	b.finish(done, []byte("video"))
	b.wantAck(cancel(done))
	if v := b.task(tasks, done); v["status"] != "completed" {
		t.Errorf("a finished task became %v", v["status"])
	}
}

// TestAskedRetention: a submitter may have asked for less than 24 hours.
func TestAskedRetention(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	b.finish(id, []byte("video"))
	rec := *b.farm.Record(id)
	rec.TaskRetention = 90 * time.Minute
	b.farm.Replace(&rec)
	if v := b.task(tasks, id); v["ttlMs"] != float64((rec.Ended.Sub(rec.Created) + 90*time.Minute).Milliseconds()) {
		t.Errorf("ttl %v", v["ttlMs"])
	}
	rec.Created, rec.Ended = rec.Created.Add(-2*time.Hour), rec.Ended.Add(-2*time.Hour)
	b.farm.Replace(&rec)
	a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error == nil || !strings.Contains(a.Error.Message, "1.5 hours") {
		t.Fatalf("tasks/get: %s", a.Raw)
	}
	b.wantEnvelope(a.Error.Data, render.CodeTaskExpired, false)
}

// TestExpiry: 24 hours as a task, 7 days as a render.
func TestExpiry(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	b.finish(id, []byte("video"))
	rec := *b.farm.Record(id)
	rec.Created, rec.Ended = rec.Created.Add(-48*time.Hour), rec.Ended.Add(-25*time.Hour)
	b.farm.Replace(&rec)
	for _, method := range []string{"tasks/get", "tasks/cancel", "tasks/update"} {
		a := b.rpc(tasks, method, fmt.Sprintf(`{"taskId":%q,"inputResponses":{}}`, id))
		if a.Error == nil || a.Error.Code != -32602 {
			t.Fatalf("%s: %s", method, a.Raw)
		}
		wantRepair(t, b.wantEnvelope(a.Error.Data, render.CodeTaskExpired, false), "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id))
	}
	if v := object(t, b.call(noCaps, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured); v["state"] != "succeeded" {
		t.Errorf("status %v", v)
	}
}

// TestReplays: the same key and arguments give the render as it now is.
func TestReplays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	args := strings.TrimSuffix(renderArgs(b.source()), "}") + `,"idempotency_key":"k"}`
	id := b.submit(formCaps, args)
	if again := b.submit(formCaps, strings.Replace(args, `"720p"`, `"720p","quality":"standard"`, 1)); again != id {
		t.Errorf("another render for the same arguments: %s", again)
	}
	want := func(status string) {
		t.Helper()
		if r := b.call(formCaps, "vidforge_render_video", args); r.ResultType != "task" || r.TaskID != string(id) || r.Status != status {
			t.Errorf("replay %+v, want %s", r, status)
		}
	}
	want("working")
	b.pause(id)
	want("input_required")
	b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
	b.finish(id, []byte("video"))
	want("completed")
	// Without a key each call renders.
	if x, y := b.submit(tasks, plainArgs(b.source())), b.submit(tasks, plainArgs(b.source())); x == y {
		t.Error("one render for two calls without a key")
	}
}

// TestMissingCapability: tasks/* without the extension says which tool does it.
func TestMissingCapability(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	for method, tool := range map[string]string{"tasks/get": "vidforge_get_render_status", "tasks/update": "vidforge_get_render_status", "tasks/cancel": "vidforge_cancel_render"} {
		a := b.rpc(noCaps, method, fmt.Sprintf(`{"taskId":%q,"inputResponses":{}}`, id))
		if a.Error == nil || a.Error.Code != -32021 || a.Status != 400 {
			t.Fatalf("%s: %d %s", method, a.Status, a.Raw)
		}
		e := b.wantEnvelope(a.Error.Data, render.CodeMissingClientCapability, false)
		wantRepair(t, e, tool, fmt.Sprintf(`{"render_id":%q}`, id))
		if !jsonEqual(`{"extensions":{"io.modelcontextprotocol/tasks":{}}}`, e.RequiredCapabilities) {
			t.Errorf("%s: requiredCapabilities %s", method, e.RequiredCapabilities)
		}
	}
	a := b.rpc(noCaps, "subscriptions/listen", fmt.Sprintf(`{"notifications":{"taskIds":[%q]}}`, id))
	if a.Error == nil || a.Error.Code != -32021 {
		t.Errorf("listen: %s", a.Raw)
	}
}

// TestHeadersMustMatch: Mcp-Method and Mcp-Name mirror the body.
func TestHeadersMustMatch(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	for name, headers := range map[string][]string{
		"other task":   {"Mcp-Name", string(render.NewID())},
		"other method": {"Mcp-Method", "tasks/cancel"},
	} {
		a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id), headers...)
		if a.Error == nil || a.Error.Code != -32020 || a.Status != 400 {
			t.Errorf("%s: %d %s", name, a.Status, a.Raw)
		}
	}
	if a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id), "Mcp-Name", "=?base64?"+base64Std(string(id))+"?="); a.Error != nil {
		t.Errorf("encoded name: %s", a.Raw)
	}
}

// TestTrace: the caller's context in _meta goes to the farm; the header's does
// when _meta has none.
func TestTrace(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const id = "0af7651916cd43dd8448eb211c80319c"
	src := b.source()
	b.rpc(tasks, "tools/call", fmt.Sprintf(`{"name":"vidforge_render_video","arguments":%s}`, plainArgs(src)), "traceparent", "00-"+id+"-b7ad6b7169203331-01", "tracestate", "a=b")
	if got := b.farm.Traces[0]; !strings.Contains(got.Traceparent, id) || got.Tracestate != "a=b" {
		t.Errorf("from the header: %+v", got)
	}
	other := strings.Replace(id, "0", "f", 1)
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"vidforge_render_video","arguments":%s,"_meta":{"traceparent":"00-%s-b7ad6b7169203331-01","baggage":"k=v",`+
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, plainArgs(src), other)
	b.post(body, "Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", "2026-07-28",
		"Mcp-Method", "tools/call", "Mcp-Name", "vidforge_render_video", "traceparent", "00-"+id+"-b7ad6b7169203331-01")
	if got := b.farm.Traces[1]; !strings.Contains(got.Traceparent, other) || got.Baggage != "k=v" {
		t.Errorf("from _meta: %+v", got)
	}
}
