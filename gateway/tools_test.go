package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"image/png"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

type listedTool struct {
	Name, Title, Description string
	InputSchema              json.RawMessage `json:"inputSchema"`
	OutputSchema             json.RawMessage `json:"outputSchema"`
	Annotations              map[string]any
	Meta                     map[string]json.RawMessage `json:"_meta"`
	Execution                json.RawMessage
}

func (b *bench) listTools() []listedTool {
	b.Helper()
	a := b.rpc(tasks, "tools/list", "")
	return decode[struct{ Tools []listedTool }](b, a.Result).Tools
}

func TestToolsList(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.rpc(tasks, "tools/list", "")
	if len(a.Raw) > 20<<10 {
		t.Errorf("tools/list is %d bytes as received, more than 20 KiB", len(a.Raw))
	}
	hints := object(t, a.Result)
	if hints["ttlMs"] != 3600000.0 || hints["cacheScope"] != "private" || hints["resultType"] != "complete" {
		t.Errorf("cache hints %v %v %v", hints["ttlMs"], hints["cacheScope"], hints["resultType"])
	}
	if fp, _ := hints["_meta"].(map[string]any)["com.vidforge/fingerprint"].(string); !strings.HasPrefix(fp, "vidforge@1.2.3+") || len(fp) != len("vidforge@1.2.3+")+7 {
		t.Errorf("fingerprint %q", fp)
	}
	want := []string{"vidforge_render_video", "vidforge_get_render_status", "vidforge_approve_watermark", "vidforge_cancel_render",
		"vidforge_validate_render", "vidforge_probe_asset", "vidforge_get_capabilities"}
	readOnly := map[string]bool{want[1]: true, want[4]: true, want[5]: true, want[6]: true}
	var names []string
	for _, tool := range b.listTools() {
		names = append(names, tool.Name)
		if tool.Title == "" || !strings.Contains(tool.Description, "Example: {") || tool.Execution != nil {
			t.Errorf("%s: title %q, execution %s, description %q", tool.Name, tool.Title, tool.Execution, tool.Description)
		}
		if tool.Annotations["readOnlyHint"] != readOnly[tool.Name] || tool.Annotations["openWorldHint"] != false {
			t.Errorf("%s: annotations %v", tool.Name, tool.Annotations)
		}
		if d, ok := tool.Annotations["destructiveHint"]; ok == readOnly[tool.Name] || ok && d != false {
			t.Errorf("%s: destructiveHint %v", tool.Name, d)
		}
		for _, key := range []string{"com.vidforge/errors", "com.vidforge/lifecycle"} {
			if len(tool.Meta[key]) < 3 {
				t.Errorf("%s: _meta %s is %s", tool.Name, key, tool.Meta[key])
			}
		}
		for _, code := range decode[[]render.Code](t, tool.Meta["com.vidforge/errors"]) {
			if render.Describe(code).Code != code {
				t.Errorf("%s: unknown error %s", tool.Name, code)
			}
		}
		checkSchema(t, tool.Name+" input", tool.InputSchema, true)
		checkSchema(t, tool.Name+" output", tool.OutputSchema, false)
		_, example, _ := strings.Cut(tool.Description, "Example: ")
		if err := resolve(t, tool.InputSchema).Validate(decode[any](t, []byte(example))); err != nil {
			t.Errorf("%s: its example does not fit its schema: %v", tool.Name, err)
		}
	}
	if !slices.Equal(names, want) {
		t.Errorf("tools %v", names)
	}
}

func resolve(t testing.TB, raw []byte) *jsonschema.Resolved {
	t.Helper()
	s := decode[*jsonschema.Schema](t, raw)
	r, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkSchema asks for a closed flat schema; for inputs, for what omission means.
func checkSchema(t *testing.T, what string, raw []byte, input bool) {
	t.Helper()
	var walk func(path string, s map[string]any, required bool)
	walk = func(path string, s map[string]any, required bool) {
		for _, k := range []string{"anyOf", "oneOf", "allOf", "$ref", "patternProperties", "if"} {
			if _, ok := s[k]; ok {
				t.Errorf("%s %s uses %s", what, path, k)
			}
		}
		if props, ok := s["properties"].(map[string]any); ok {
			if s["additionalProperties"] != false {
				t.Errorf("%s %s is not closed", what, path)
			}
			need, _ := s["required"].([]any)
			for name, p := range props {
				sub, _ := p.(map[string]any)
				walk(path+"."+name, sub, slices.Contains(need, any(name)))
			}
		}
		if input && path != "" && !required {
			if d, _ := s["description"].(string); !strings.Contains(d, "Omitted: ") {
				t.Errorf("%s %s does not say what omission means: %q", what, path, d)
			}
		}
		if items, ok := s["items"].(map[string]any); ok {
			walk(path+"[]", items, true)
		}
	}
	s := object(t, raw)
	if s["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
		t.Errorf("%s: dialect %v", what, s["$schema"])
	}
	walk("", s, true)
}

// outputs sees every structured result of a tool and remembers which members
// were there.
type outputs struct {
	b       *bench
	schemas map[string]*jsonschema.Resolved
	raw     map[string]json.RawMessage
	seen    map[string]map[string]bool
}

func newOutputs(b *bench) *outputs {
	o := &outputs{b, map[string]*jsonschema.Resolved{}, map[string]json.RawMessage{}, map[string]map[string]bool{}}
	for _, t := range b.listTools() {
		o.schemas[t.Name], o.raw[t.Name], o.seen[t.Name] = resolve(b, t.OutputSchema), t.OutputSchema, map[string]bool{}
	}
	return o
}

// see validates a result and returns its members.
func (o *outputs) see(tool string, r toolResult) map[string]any {
	o.b.Helper()
	if r.IsError {
		o.b.Fatalf("%s: %s", tool, r.Structured)
	}
	v := object(o.b, r.Structured)
	if err := o.schemas[tool].Validate(v); err != nil {
		o.b.Errorf("%s: %s does not fit its outputSchema: %v", tool, r.Structured, err)
	}
	if text, _ := r.Content[0]["text"].(string); !jsonEqual(text, r.Structured) {
		o.b.Errorf("%s: the text block is %q, not the structured content", tool, text)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		o.seen[tool][path] = true
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(path+"."+k, x)
			}
		case []any:
			for _, x := range v {
				walk(path+"[]", x)
			}
		}
	}
	walk("", v)
	return v
}

// missing lists the advertised members that never appeared.
func (o *outputs) missing() []string {
	var out []string
	for tool, raw := range o.raw {
		var walk func(path string, s map[string]any)
		walk = func(path string, s map[string]any) {
			if path != "" && !o.seen[tool][path] {
				out = append(out, tool+path)
			}
			props, _ := s["properties"].(map[string]any)
			for name, p := range props {
				walk(path+"."+name, p.(map[string]any))
			}
			if items, ok := s["items"].(map[string]any); ok {
				walk(path+"[]", items)
			}
		}
		walk("", object(o.b, raw))
	}
	slices.Sort(out)
	return out
}

func jsonEqual(a string, b []byte) bool {
	var x, y any
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

// TestEveryOutput drives every tool through every state and fails when an
// advertised member never came, or when a result does not fit its schema.
func TestEveryOutput(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.farm.Presign = func(o render.Object) string { return "https://store.example.org/" + o.Key + "?X-Amz-Signature=abc" }
	o := newOutputs(b)
	src := b.source()

	// A watermarked render, from submission to success, by a client without tasks.
	watermarked := strings.TrimSuffix(renderArgs(src), "}") + `,"idempotency_key":"w"}`
	v := o.see("vidforge_render_video", b.call(noCaps, "vidforge_render_video", watermarked))
	id := render.ID(v["render_id"].(string))
	if v["status"] != "accepted" || v["state"] != "queued" {
		t.Errorf("accepted: %v", v)
	}
	wantCall(t, v["follow_up"], "vidforge_get_render_status", `{"render_id":"`+string(id)+`"}`)
	args := fmt.Sprintf(`{"render_id":%q}`, id)
	status := func() map[string]any {
		return o.see("vidforge_get_render_status", b.call(noCaps, "vidforge_get_render_status", args))
	}
	b.farm.SetProgress(id, farm.Progress{QueuePosition: new(3)})
	if v := status(); v["queue_position"] != 3.0 || v["terminal"] != false || v["status_message"] != "Queued at position 3." {
		t.Errorf("queued: %v", v)
	}
	b.farm.SetProgress(id, farm.Progress{})
	b.pause(id)
	v = o.see("vidforge_render_video", b.call(noCaps, "vidforge_render_video", watermarked))
	if v["state"] != "awaiting_watermark_approval" || v["render_id"] != string(id) {
		t.Errorf("replay while paused: %v", v)
	}
	r := b.call(noCaps, "vidforge_get_render_status", args)
	v = o.see("vidforge_get_render_status", r)
	if v["poll_after_ms"] != 30000.0 || v["watermark_preview_uri"] != id.PreviewURI() || v["approval_url"] != b.url+"/v1/renders/"+string(id)+"/approval" {
		t.Errorf("awaiting: %v", v)
	}
	wantCall(t, v["follow_up"], "vidforge_approve_watermark", `{"render_id":"`+string(id)+`","approved":true}`)
	checkPreview(t, r)
	v = o.see("vidforge_approve_watermark", b.call(noCaps, "vidforge_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true,"note":"schön"}`, id)))
	if v["decision"] != "approved" || v["state"] != "rendering" {
		t.Errorf("approve: %v", v)
	}
	if d := b.farm.Record(id).Decision; d.Note != "schön" || d.Channel != render.ChannelTool || d.By != "local" {
		t.Errorf("decision %+v", d)
	}
	b.encode(id)
	b.farm.SetProgress(id, farm.Progress{
		Fraction: new(0.42), Stage: render.StageSegment, FramesDone: new(int64(3021)), FramesTotal: new(int64(7200)), FPS: new(61.234), Speed: new(2.04),
		ETA: new(70 * time.Second), SegmentsDone: new(4), SegmentsTotal: new(12), Attempt: new(1), LogTail: append(make([]string, 30), "frame\x1b[0m= 3021", strings.Repeat("é", 400)),
	})
	v = status()
	if got := v["status_message"]; got != "Rendering: 42% (frame 3021/7200), segment 5 of 12, 61 fps, about 70 s left." {
		t.Errorf("message %q", got)
	}
	if lines := v["log_tail"].([]any); len(lines) != 20 || lines[18] != "frame[0m= 3021" || len([]rune(lines[19].(string))) != 300 {
		t.Errorf("log tail of %d: %q", len(lines), lines[18:])
	}
	b.farm.SetProgress(id, farm.Progress{})
	b.apply(id, render.Encoded{Generation: 1}, render.Assembled{Result: render.StageResult{Work: render.Work{Generation: 1}, Output: &render.Output{
		Object: b.farm.Put("v", []byte("video")), Duration: 10 * time.Second, Width: 1280, Height: 720, Frames: 300, VideoCodec: "h264", AudioCodec: "aac",
		WatermarkApplied: true, Encoder: "libx264", FallbackReason: "h264_nvenc failed", SegmentsTotal: 12, SegmentsReused: 2}}})
	r = b.call(noCaps, "vidforge_get_render_status", args)
	v = o.see("vidforge_get_render_status", r)
	if v["terminal"] != true || v["poll_after_ms"] != nil || v["status"] != nil || v["size_bytes"] != 5.0 || !strings.HasPrefix(v["download_url"].(string), "https://store.example.org/") {
		t.Errorf("succeeded: %v", v)
	}
	checkLink(t, r, id)

	// A rejection names the render that may follow.
	rejected := b.submit(tasks, renderArgs(src))
	b.pause(rejected)
	v = o.see("vidforge_approve_watermark", b.call(noCaps, "vidforge_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":false}`, rejected)))
	if v["decision"] != "rejected" || v["state"] != "failed" || v["poll_after_ms"] != nil {
		t.Errorf("reject: %v", v)
	}
	again, err := json.Marshal(v["follow_up"].(map[string]any)["arguments"])
	if err != nil {
		t.Fatal(err)
	}
	o.see("vidforge_render_video", b.call(noCaps, "vidforge_render_video", string(again)))

	// The same key again, when the render is finished: its result.
	keyed := strings.TrimSuffix(plainArgs(src), "}") + `,"idempotency_key":"k"}`
	id = render.ID(o.see("vidforge_render_video", b.call(noCaps, "vidforge_render_video", keyed))["render_id"].(string))
	b.finish(id, []byte("video"))
	r = b.call(noCaps, "vidforge_render_video", keyed)
	if v = o.see("vidforge_render_video", r); v["status"] != "completed" || v["render_id"] != string(id) {
		t.Errorf("replay: %v", v)
	}
	checkLink(t, r, id)

	// A failure is a successful status.
	failed := b.submit(tasks, plainArgs(src))
	b.apply(failed, render.Failed{Failure: render.Failure{Code: render.CodeUnsupportedCodec, Message: "It cannot be decoded.", Field: "source_asset_uri", Reason: "no decoder"}})
	args = fmt.Sprintf(`{"render_id":%q}`, failed)
	if v := status(); v["state"] != "failed" || v["error"].(map[string]any)["code"] != "unsupported_codec" {
		t.Errorf("failed: %v", v)
	}
	v = o.see("vidforge_cancel_render", b.call(noCaps, "vidforge_cancel_render", fmt.Sprintf(`{"render_id":%q}`, b.submit(tasks, plainArgs(src)))))
	if v["state"] != "cancelled" || v["acknowledged"] != true {
		t.Errorf("cancel: %v", v)
	}

	b.farm.Estimate, b.farm.Warnings = new(42*time.Second), []string{"It is scaled up."}
	logo := b.farm.AddAsset(render.LocalTenant, "logo.png", &render.Facts{Kind: "image", Container: "png", Video: -1, Audio: -1, Reason: "A picture is no source."}).URI()
	for _, wm := range []string{`{"text":"©"}`, fmt.Sprintf(`{"image_asset_uri":%q}`, logo)} {
		v = o.see("vidforge_validate_render", b.call(noCaps, "vidforge_validate_render", strings.TrimSuffix(plainArgs(src), "}")+`,"watermark":`+wm+`}`))
	}
	if v["valid"] != true || v["estimated_seconds"] != 42.0 {
		t.Errorf("validate: %v", v)
	}
	for format, codecs := range map[string]string{"mp4": "h264 aac", "webm": "vp9 opus", "mov": "h264 aac"} {
		v = o.see("vidforge_validate_render", b.call(noCaps, "vidforge_validate_render", fmt.Sprintf(`{"source_asset_uri":%q,"output_format":%q,"resolution":"4k"}`, src, format)))
		if out, _ := v["output"].(map[string]any); fmt.Sprint(out["video_codec"], " ", out["audio_codec"]) != codecs {
			t.Errorf("validate %s: %v", format, v)
		}
	}
	v = o.see("vidforge_probe_asset", b.call(noCaps, "vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, src)))
	if v["name"] != "Ferien äöü.mov" || v["renderable"] != true || v["duration_seconds"] != 10.0 {
		t.Errorf("probe: %v", v)
	}
	if v = o.see("vidforge_probe_asset", b.call(noCaps, "vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, logo))); v["reason"] == nil {
		t.Errorf("probe of a picture: %v", v)
	}
	summary := o.see("vidforge_get_capabilities", b.call(noCaps, "vidforge_get_capabilities", `{}`))
	full := o.see("vidforge_get_capabilities", b.call(formCaps, "vidforge_get_capabilities", `{"detail":"full"}`))
	for k, x := range summary {
		p, _ := json.Marshal(x)
		q, _ := json.Marshal(full[k])
		if !bytes.Equal(p, q) {
			t.Errorf("capabilities: %s differs between summary and full", k)
		}
	}
	if len(full["errors"].([]any)) != len(render.Catalogue()) || summary["errors"] != nil {
		t.Errorf("capabilities: %d errors", len(full["errors"].([]any)))
	}
	if missing := o.missing(); len(missing) > 0 {
		t.Errorf("advertised but never seen:\n%s", strings.Join(missing, "\n"))
	}
}

func wantCall(t testing.TB, v any, tool, args string) {
	t.Helper()
	n, ok := v.(map[string]any)
	if !ok {
		t.Fatalf("no next call but %v", v)
	}
	got, err := json.Marshal(n["arguments"])
	if err != nil {
		t.Fatal(err)
	}
	if n["tool"] != tool || !jsonEqual(args, got) || n["next_step"] == "" {
		t.Errorf("next call %v %s, want %s %s", n["tool"], got, tool, args)
	}
}

func checkPreview(t *testing.T, r toolResult) {
	t.Helper()
	for _, c := range r.Content {
		if c["type"] != "image" {
			continue
		}
		if c["mimeType"] != "image/png" {
			t.Errorf("preview type %v", c["mimeType"])
		}
		raw, err := json.Marshal(c["data"])
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := png.DecodeConfig(bytes.NewReader(decode[[]byte](t, raw)))
		if err != nil || cfg.Width != 640 || cfg.Height != 360 {
			t.Errorf("preview is %d×%d, %v", cfg.Width, cfg.Height, err)
		}
		return
	}
	t.Errorf("no preview in %d blocks", len(r.Content))
}

func checkLink(t *testing.T, r toolResult, id render.ID) {
	t.Helper()
	for _, c := range r.Content {
		if c["type"] != "resource_link" {
			continue
		}
		a, _ := c["annotations"].(map[string]any)
		if c["uri"] != id.VideoURI(render.FormatMP4) || c["name"] != "Ferien äöü.mp4" || c["title"] == nil || c["description"] == nil || c["mimeType"] != "video/mp4" ||
			c["size"] != 5.0 || a["priority"] != 0.9 || a["lastModified"] == nil || fmt.Sprint(a["audience"]) != "[user]" {
			t.Errorf("link %v", c)
		}
		return
	}
	t.Error("no resource_link")
}

func TestDiscover(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	v := object(t, b.rpc(noCaps, "server/discover", "").Result)
	caps, _ := json.Marshal(v["capabilities"])
	want := `{"tools":{},"resources":{"subscribe":true,"listChanged":true},"completions":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	if !jsonEqual(want, caps) {
		t.Errorf("capabilities %s", caps)
	}
	if fmt.Sprint(v["supportedVersions"]) != "[2026-07-28 2025-11-25 2025-06-18 2025-03-26]" || v["ttlMs"] != 3600000.0 || v["cacheScope"] != "private" || v["instructions"] == "" {
		t.Errorf("discover %v", v)
	}
	meta, _ := v["_meta"].(map[string]any)
	info, _ := meta["io.modelcontextprotocol/serverInfo"].(map[string]any)
	if meta["com.vidforge/fingerprint"] != b.srv.contract.Fingerprint() || info["name"] != "vidforge" || info["version"] != "1.2.3" {
		t.Errorf("_meta %v", meta)
	}
}

// TestFingerprintCoversTheSurface: the same surface, the same hash; another
// deployment does not change it.
func TestFingerprintCoversTheSurface(t *testing.T) {
	t.Parallel()
	a, b := newBench(t), newBench(t, func(c *Config) { c.PublicURL = "https://render.example.org" })
	b.farm.MaxUpload = 7
	if x, y := a.srv.contract.Fingerprint(), b.srv.contract.Fingerprint(); x != y {
		t.Errorf("fingerprints %s and %s", x, y)
	}
	other := newBench(t, func(c *Config) { c.Version = "1.2.4" })
	if x, y := a.srv.contract.Fingerprint(), other.srv.contract.Fingerprint(); x == y || !strings.HasPrefix(y, "vidforge@1.2.4+") {
		t.Errorf("fingerprints %s and %s", x, y)
	}
	for _, method := range []string{"tools/list", "resources/list", "resources/templates/list"} {
		meta, _ := object(t, a.rpc(noCaps, method, "").Result)["_meta"].(map[string]any)
		if meta["com.vidforge/fingerprint"] != a.srv.contract.Fingerprint() {
			t.Errorf("%s: _meta %v", method, slices.Sorted(maps.Keys(meta)))
		}
	}
}

var _ = farmtest.VideoFacts
