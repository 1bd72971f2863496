package gateway

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/render"
)

// nextCall is how the text of an error names it, for those who see no more.
var nextCall = regexp.MustCompile(`Next: call (\S+) with (\{.*?\})\. Or: `)

// coldAgent knows what tools/list told it, and nothing else.
type coldAgent struct {
	*testing.T
	ask   requester
	tools map[string]listedTool
	order []string
}

func newColdAgent(t *testing.T, ask requester) *coldAgent {
	t.Helper()
	c := &coldAgent{T: t, ask: ask, tools: map[string]listedTool{}}
	for _, tool := range decode[struct{ Tools []listedTool }](t, ask("tools/list", "").Result).Tools {
		c.tools[tool.Name] = tool
		c.order = append(c.order, tool.Name)
	}
	return c
}

// first is the tool to begin with: the first one that is not read only.
func (c *coldAgent) first() string {
	for _, name := range c.order {
		if c.tools[name].Annotations["readOnlyHint"] != true {
			return name
		}
	}
	c.Fatal("no tool acts")
	return ""
}

// arguments fills the required arguments of a tool from its schema: asset stands
// for the source, the first value for each enumeration.
func (c *coldAgent) arguments(tool, asset string) map[string]any {
	c.Helper()
	s := object(c, c.tools[tool].InputSchema)
	props, _ := s["properties"].(map[string]any)
	need, _ := s["required"].([]any)
	args := map[string]any{}
	for _, n := range need {
		name, _ := n.(string)
		p, _ := props[name].(map[string]any)
		if values, _ := p["enum"].([]any); len(values) > 0 {
			args[name] = values[0]
		} else {
			args[name] = asset
		}
	}
	return args
}

// call checks the arguments against the schema, as clients do, and calls. The
// answer is the text block: hosts drop the rest.
func (c *coldAgent) call(tool string, args map[string]any) (v map[string]any, failed bool) {
	c.Helper()
	if err := resolve(c, c.tools[tool].InputSchema).Validate(args); err != nil {
		c.Fatalf("%s %v: %v", tool, args, err)
	}
	raw, err := json.Marshal(args)
	if err != nil {
		c.Fatal(err)
	}
	a := c.ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, raw))
	if a.Error != nil {
		c.Fatalf("%s: %s", tool, a.Raw)
	}
	r := decode[toolResult](c, a.Result)
	text, _ := r.Content[0]["text"].(string)
	switch {
	case r.IsError && r.Structured == nil: // the text names the next call too
		m := nextCall.FindStringSubmatch(text)
		if m == nil {
			c.Fatalf("%s: no next call in %q", tool, text)
		}
		return map[string]any{"repair": map[string]any{"tool": m[1], "arguments": object(c, []byte(m[2]))}}, true
	case r.IsError:
		return object(c, r.Structured), true
	}
	return object(c, []byte(text)), false
}

// follow makes the call that an answer names.
func (c *coldAgent) follow(next any) map[string]any {
	c.Helper()
	n, ok := next.(map[string]any)
	if !ok {
		c.Fatalf("no next call but %v", next)
	}
	tool, _ := n["tool"].(string)
	args, _ := n["arguments"].(map[string]any)
	if _, ok := c.tools[tool]; !ok {
		c.Fatalf("tools/list has no %q", tool)
	}
	v, failed := c.call(tool, args)
	if failed {
		c.Fatalf("%s %v: %v", tool, args, v)
	}
	return v
}

// TestColdStart: whoever knows tools/list and an asset's URI gets a video, in
// every version, by both contracts.
func TestColdStart(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, b *bench, version string) {
		asset := b.source()
		if b.path == videorender.Path {
			asset = "as_" + strings.TrimPrefix(asset, "vidforge://assets/a_")
		}
		ask := b.client(version)
		if version == modern { // without tasks, as most clients are
			ask = func(method, params string) answer { return b.rpc(noCaps, method, params) }
		}
		agent := newColdAgent(t, ask)
		v, failed := agent.call(agent.first(), agent.arguments(agent.first(), asset))
		if failed || v["follow_up"] == nil {
			t.Fatalf("first call: %v", v)
		}
		next := v["follow_up"]
		if v = agent.follow(next); v["terminal"] != false || v["poll_after_ms"] == nil {
			t.Fatalf("status: %v", v)
		}
		b.finish(render.ID(v["render_id"].(string)), []byte("video"))
		if v = agent.follow(next); v["terminal"] != true {
			t.Fatalf("status: %v", v)
		}
		uri, _ := v["video_uri"].(string)
		if uri == "" {
			uri, _ = v["result_resource_uri"].(string)
		}
		got := decode[readResult](t, ask("resources/read", fmt.Sprintf(`{"uri":%q}`, uri)).Result)
		if len(got.Contents) != 1 || string(got.Contents[0].Blob) != "video" {
			t.Errorf("%s: %+v", uri, got)
		}
	})
}

// TestFirstRepair: after a rejection one call, taken from the error as it is,
// makes the next render.
func TestFirstRepair(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, b *bench, version string) {
		args := strings.TrimSuffix(renderArgs(b.source()), "}") + `,"idempotency_key":"k"}`
		if b.path == videorender.Path {
			args = fmt.Sprintf(`{"source_asset_id":%q,"watermark":{"mode":"text","text":"Draft"},"idempotency_key":"k"}`, b.sourceID())
		}
		ask := b.client(version)
		if version == modern {
			ask = func(method, params string) answer { return b.rpc(noCaps, method, params) }
		}
		agent := newColdAgent(t, ask)
		v, _ := agent.call(agent.first(), object(t, []byte(args)))
		id := render.ID(v["render_id"].(string))
		b.pause(id)
		b.apply(id, render.Decided{Decision: render.Decision{}})
		e, failed := agent.call(agent.first(), object(t, []byte(args)))
		if !failed || version != "2025-03-26" && e["code"] != "watermark_rejected" {
			t.Fatalf("the rejection: %v", e)
		}
		v = agent.follow(e["repair"])
		again := render.ID(v["render_id"].(string))
		if again == id {
			t.Fatal("the repair named the render that ended")
		}
		b.pause(again)
		b.apply(again, render.Decided{Decision: render.Decision{Approved: true}})
		b.finish(again, []byte("video"))
		if v = agent.follow(v["follow_up"]); v["terminal"] != true || v["error"] != nil {
			t.Errorf("the repaired render: %v", v)
		}
	})
}

// TestOlderAndNewerClient act on one render: a newer one's task is paused, an
// older one's decision resumes it, and both see the end.
func TestOlderAndNewerClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(formCaps, renderArgs(b.source()))
	older := b.connect("2025-06-18", `{}`)
	status := fmt.Sprintf(`{"render_id":%q}`, id)
	b.pause(id)
	if v := b.task(formCaps, id); v["status"] != "input_required" {
		t.Errorf("newer: %v", v)
	}
	v := object(t, older.call("vidforge_get_render_status", status).Structured)
	next, _ := v["follow_up"].(map[string]any)
	args, err := json.Marshal(next["arguments"])
	if err != nil {
		t.Fatal(err)
	}
	if r := older.call(next["tool"].(string), string(args)); r.IsError {
		t.Fatalf("older: %s", r.Structured)
	}
	if v := b.task(formCaps, id); v["status"] != "working" || v["inputRequests"] != nil {
		t.Errorf("newer: %v", v)
	}
	// What the newer one was about to answer comes too late, and changes nothing.
	b.wantAck(b.update(formCaps, id, `{"watermark-approval-1":{"action":"accept","content":{"approved":false}}}`))
	b.finish(id, []byte("video"))
	if v := b.task(formCaps, id); v["status"] != "completed" {
		t.Errorf("newer: %v", v)
	}
	if v := object(t, older.call("vidforge_get_render_status", status).Structured); v["state"] != "succeeded" {
		t.Errorf("older: %v", v)
	}
	// And the other way round: an older one cancels what a newer one polls.
	id = b.submit(tasks, plainArgs(b.source()))
	older.call("vidforge_cancel_render", fmt.Sprintf(`{"render_id":%q}`, id))
	if v := b.task(tasks, id); v["status"] != "cancelled" {
		t.Errorf("newer: %v", v)
	}
}
