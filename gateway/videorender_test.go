package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// newVideoBench is a gateway whose video_render endpoint is talked to.
func newVideoBench(t *testing.T) *bench {
	t.Helper()
	return newBench(t).at(videorender.Path)
}

// sourceID adds a source under the name that it has in video_render.
func (b *bench) sourceID() string {
	return "as_" + strings.TrimPrefix(b.source(), "vidforge://assets/a_")
}

func outputURI(id render.ID) string { return "video://renders/" + string(id) + "/output" }

func TestVideoRenderDiscovery(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	a := b.rpc(tasks, "tools/list", "")
	if len(a.Raw) > 20<<10 {
		t.Errorf("tools/list is %d bytes", len(a.Raw))
	}
	if strings.Contains(strings.ReplaceAll(a.Raw, "vidforge://assets/a_x", ""), "vidforge_") || strings.Contains(a.Raw, "com.vidforge") {
		t.Errorf("tools/list speaks of another contract: %s", a.Raw)
	}
	var names []string
	for _, tool := range b.listTools() {
		names = append(names, tool.Name)
		checkSchema(t, tool.Name+" input", tool.InputSchema, true)
		checkSchema(t, tool.Name+" output", tool.OutputSchema, false)
		if codes := decode[[]string](t, tool.Meta["com.video-render/errors"]); len(codes) == 0 {
			t.Errorf("%s: no errors", tool.Name)
		}
		_, example, _ := strings.Cut(tool.Description, "Example: ")
		if err := resolve(t, tool.InputSchema).Validate(decode[any](t, []byte(example))); err != nil {
			t.Errorf("%s: its example does not fit its schema: %v", tool.Name, err)
		}
	}
	if !slices.Equal(names, []string{"video_render", "video_get_render_status", "video_approve_watermark", "video_cancel_render"}) {
		t.Errorf("tools %v", names)
	}
	first := b.listTools()[0]
	if !jsonEqual(`{"typical_seconds":[60,600],"runs_as":"task"}`, first.Meta["com.video-render/duration"]) {
		t.Errorf("duration %s", first.Meta["com.video-render/duration"])
	}
	if out := object(t, first.OutputSchema); fmt.Sprint(out["required"]) != "[render_id]" || fmt.Sprint(object(t, first.InputSchema)["required"]) != "[source_asset_id]" {
		t.Errorf("required %v", out["required"])
	}
	codes := decode[[]string](t, first.Meta["com.video-render/errors"])
	if !slices.Contains(codes, "quota_exceeded") || !slices.Contains(codes, "rate_limited") || slices.Contains(codes, "render_quota_exceeded") {
		t.Errorf("codes %v", codes)
	}

	d := object(t, b.rpc(tasks, "server/discover", "").Result)
	info, _ := d["_meta"].(map[string]any)
	if fp, _ := info["com.video-render/fingerprint"].(string); !strings.HasPrefix(fp, "video-render-mcp@1.2.3+") {
		t.Errorf("fingerprint %v", info)
	}
	raw, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(raw), `"name":"video-render-mcp"`) || strings.Contains(string(raw), `"completions"`) {
		t.Errorf("discover %s", raw)
	}
	for _, version := range []string{"2025-11-25", "2025-06-18", "2025-03-26"} {
		s := b.connect(version, `{}`)
		if !strings.Contains(string(s.init), `"name":"video-render-mcp"`) {
			t.Errorf("%s: %s", version, s.init)
		}
		if got := decode[struct{ Tools []listedTool }](t, s.request("tools/list", "").Result).Tools; len(got) != 4 || got[0].Name != "video_render" {
			t.Errorf("%s: tools %v", version, got)
		}
	}

	c := object(t, []byte(b.read("video://capabilities").Contents[0].Text))
	for _, member := range []string{"server", "does", "does_not", "long_running", "prerequisites", "limits", "approval", "task_semantics", "errors", "negotiated_capabilities", "required_scopes"} {
		if c[member] == nil {
			t.Errorf("capabilities lack %s", member)
		}
	}
	if s := b.read("video://capabilities").Contents[0].Text; strings.Contains(s, "vidforge_") || strings.Contains(s, "render_quota_exceeded") {
		t.Errorf("capabilities speak of another contract: %s", s)
	}
	if limits, _ := c["limits"].(map[string]any); limits["idempotency_window_ms"] != 1800000.0 {
		t.Errorf("limits %v", c["limits"])
	}
	// One surface does not change the other.
	if other := b.at("/mcp").fingerprint(); other == b.fingerprint() || !strings.HasPrefix(other, "vidforge@1.2.3+") {
		t.Errorf("fingerprints %s %s", other, b.fingerprint())
	}
}

// TestVideoRenderOutputs drives every tool through every state: each result fits
// its schema, and every advertised member comes.
func TestVideoRenderOutputs(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	o := newOutputs(b)
	src := b.sourceID()
	watermarked := fmt.Sprintf(`{"source_asset_id":%q,"watermark":{"mode":"text","text":"Draft"},"idempotency_key":"w"}`, src)
	v := o.see("video_render", b.call(noCaps, "video_render", watermarked))
	id := render.ID(v["render_id"].(string))
	if v["state"] != "queued" || v["terminal"] != false || v["poll_after_ms"] == nil || v["result_resource_uri"] != nil {
		t.Errorf("accepted: %v", v)
	}
	args := fmt.Sprintf(`{"render_id":%q}`, id)
	wantCall(t, v["follow_up"], "video_get_render_status", args)
	spec := b.farm.Record(id).Spec
	if spec.Format != render.FormatMP4 || spec.Resolution != render.Resolution1080p || spec.Quality != render.QualityStandard || !spec.RequireApproval || spec.Watermark.Opacity != 1 {
		t.Errorf("spec %+v", spec)
	}
	status := func(caps string) map[string]any {
		t.Helper()
		return o.see("video_get_render_status", b.call(caps, "video_get_render_status", args))
	}
	if v := status(noCaps); fmt.Sprint(v["terminal_states"]) != "[completed failed cancelled]" || v["expires_at"] == nil || v["pending_input"] != nil {
		t.Errorf("queued: %v", v)
	}
	b.pause(id)
	r := b.call(noCaps, "video_get_render_status", args)
	v = o.see("video_get_render_status", r)
	if v["state"] != "awaiting_watermark_approval" || v["preview_resource_uri"] != "video://renders/"+string(id)+"/watermark-preview.png" || v["poll_after_ms"] != 30000.0 {
		t.Errorf("awaiting: %v", v)
	}
	checkPreview(t, r)
	if v := o.see("video_render", b.call(noCaps, "video_render", watermarked)); v["state"] != "awaiting_watermark_approval" {
		t.Errorf("replay while paused: %v", v)
	}
	wantCall(t, v["pending_input"], "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true}`, id))
	for caps, reason := range map[string]string{
		noCaps: "capability_not_negotiated", tasks: "capability_not_negotiated", `{"elicitation":{"form":{}}}`: "capability_not_negotiated",
		formCaps: "undecided", urlCaps: "undecided",
	} {
		if p, _ := status(caps)["pending_input"].(map[string]any); p["reason"] != reason {
			t.Errorf("%s: reason %v, want %s", caps, p["reason"], reason)
		}
	}
	v = o.see("video_approve_watermark", b.call(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true,"feedback":"schön"}`, id)))
	if v["decision"] != "approved" || v["state"] != "rendering" {
		t.Errorf("approve: %v", v)
	}
	if d := b.farm.Record(id).Decision; d.Note != "schön" || d.Channel != render.ChannelTool {
		t.Errorf("decision %+v", d)
	}
	b.farm.SetProgress(id, farm.Progress{Fraction: new(0.42)})
	if v := status(noCaps); v["progress"] != 0.42 {
		t.Errorf("rendering: %v", v)
	}
	b.finish(id, []byte("video"))
	r = b.call(noCaps, "video_get_render_status", args)
	v = o.see("video_get_render_status", r)
	if v["state"] != "completed" || v["terminal"] != true || v["result_resource_uri"] != outputURI(id) || v["output_format"] != "mp4" || v["watermark_applied"] != true {
		t.Errorf("completed: %v", v)
	}
	if l := r.Content[1]; l["type"] != "resource_link" || l["uri"] != outputURI(id) || l["mimeType"] != "video/mp4" {
		t.Errorf("link %v", l)
	}
	// The same key again, when the render is finished: its result.
	v = o.see("video_render", b.call(noCaps, "video_render", watermarked))
	if v["render_id"] != string(id) || v["state"] != "completed" || v["terminal"] != true || v["result_resource_uri"] != outputURI(id) || v["duration_seconds"] != 10.0 {
		t.Errorf("replay: %v", v)
	}

	// A task's result.
	task := b.task(formCaps, b.taskOf(watermarked))
	res, _ := task["result"].(map[string]any)
	structured, err := json.Marshal(res["structuredContent"])
	if err != nil {
		t.Fatal(err)
	}
	if task["status"] != "completed" || res["resultType"] != "complete" || !jsonEqual(fmt.Sprintf(
		`{"render_id":%q,"result_resource_uri":%q,"output_format":"mp4","duration_seconds":10,"width":1280,"height":720,"watermark_applied":true}`, id, outputURI(id)), structured) {
		t.Errorf("task %v", task)
	}
	if err := o.schemas["video_render"].Validate(object(t, structured)); err != nil {
		t.Errorf("the task's result does not fit: %v", err)
	}

	// A failure is a successful status, with the error in this contract's words.
	failed := b.taskOf(fmt.Sprintf(`{"source_asset_id":%q}`, src))
	b.apply(failed, render.Failed{Failure: render.Failure{Code: render.CodeRenderFailed, Message: "It broke.", Temporary: true, Field: "source_asset_uri", Reason: "broken"}})
	args = fmt.Sprintf(`{"render_id":%q}`, failed)
	v = status(noCaps)
	raw, err := json.Marshal(v["error"])
	if err != nil {
		t.Fatal(err)
	}
	if v["state"] != "failed" {
		t.Errorf("failed: %v", v)
	}
	e := b.wantEnvelope(raw, render.CodeRenderFailed, true)
	if e.Details["field"] != "source_asset_id" {
		t.Errorf("details %v", e.Details)
	}
	wantRepair(t, e, "video_render", fmt.Sprintf(`{"source_asset_id":%q,"output_format":"mp4","resolution":"1080p"}`, src))

	rejected := b.taskOf(watermarkArgs(src))
	b.pause(rejected)
	v = o.see("video_approve_watermark", b.call(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":false}`, rejected)))
	wantCall(t, v["follow_up"], "video_render", fmt.Sprintf(
		`{"source_asset_id":%q,"output_format":"mp4","resolution":"1080p","watermark":{"mode":"text","text":"Draft","position":"bottom_right"},"require_watermark_approval":true}`, src))
	v = o.see("video_cancel_render", b.call(noCaps, "video_cancel_render", fmt.Sprintf(`{"render_id":%q}`, b.taskOf(watermarkArgs(src)))))
	if v["state"] != "cancelled" || v["acknowledged"] != true {
		t.Errorf("cancel: %v", v)
	}
	if v = o.see("video_cancel_render", b.call(noCaps, "video_cancel_render", fmt.Sprintf(`{"render_id":%q}`, id))); v["state"] != "completed" {
		t.Errorf("cancel after the end: %v", v)
	}
	if missing := o.missing(); len(missing) > 0 {
		t.Errorf("advertised but never seen:\n%s", strings.Join(missing, "\n"))
	}
}

func watermarkArgs(src string) string {
	return fmt.Sprintf(`{"source_asset_id":%q,"watermark":{"mode":"text","text":"Draft"}}`, src)
}

// taskOf renders as a task.
func (b *bench) taskOf(args string) render.ID {
	b.Helper()
	r := b.call(formCaps, "video_render", args)
	id, ok := render.ParseID(r.TaskID)
	if !ok || r.ResultType != "task" {
		b.Fatalf("no task: %+v %s", r, r.Structured)
	}
	return id
}

// TestVideoRenderTask: the native lifecycle, and the same render by the other
// endpoint.
func TestVideoRenderTask(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	id := b.taskOf(watermarkArgs(b.sourceID()))
	b.pause(id)
	first := b.task(formCaps, id)
	in := inputs(t, first)
	params, _ := in["watermark-approval-1"]["params"].(map[string]any)
	message, _ := params["message"].(string)
	if first["status"] != "input_required" || !strings.Contains(message, "video://renders/"+string(id)+"/watermark-preview.png") || strings.Contains(message, "vidforge:") {
		t.Errorf("paused: %v", first)
	}
	if again := b.task(formCaps, id); fmt.Sprint(again["inputRequests"]) != fmt.Sprint(first["inputRequests"]) {
		t.Errorf("asked otherwise: %v", again)
	}
	// One who cannot be asked is told which tool decides.
	silent, _ := b.task(tasks, id)["statusMessage"].(string)
	if !strings.Contains(silent, fmt.Sprintf(`video_approve_watermark with {"approved":true,"render_id":%q}`, id)) || strings.Contains(silent, "vidforge_") {
		t.Errorf("message %q", silent)
	}
	// The other contract sees the same render under its own names.
	other := b.at("/mcp")
	theirs, _ := inputs(t, other.task(formCaps, id))["watermark-approval-1"]["params"].(map[string]any)
	if s, _ := theirs["message"].(string); !strings.Contains(s, id.PreviewURI()) || b.farm.Minted != 1 {
		t.Errorf("by the other endpoint: %v, minted %d times", theirs, b.farm.Minted)
	}
	b.wantAck(b.update(formCaps, id, `{"watermark-approval-1":{"action":"accept","content":{"approved":true}}}`))
	b.finish(id, []byte("video"))
	if v := b.task(formCaps, id); v["status"] != "completed" {
		t.Errorf("completed: %v", v)
	}
	b.wantAck(b.rpc(tasks, "tasks/cancel", fmt.Sprintf(`{"taskId":%q}`, id)))

	rejected := b.taskOf(watermarkArgs(b.sourceID()))
	b.pause(rejected)
	b.task(formCaps, rejected)
	b.wantAck(b.update(formCaps, rejected, `{"watermark-approval-1":{"action":"accept","content":{"approved":false}}}`))
	v := b.task(formCaps, rejected)
	res, _ := v["result"].(map[string]any)
	raw, err := json.Marshal(res["structuredContent"])
	if err != nil {
		t.Fatal(err)
	}
	if v["status"] != "completed" || res["isError"] != true {
		t.Fatalf("rejected: %v", v)
	}
	e := b.wantEnvelope(raw, render.CodeWatermarkRejected, true)
	if r := b.call(noCaps, e.Repair.Tool, string(e.Repair.Arguments)); r.IsError || e.Repair.Tool != "video_render" {
		t.Errorf("the repair fails: %s", r.Structured)
	}
	for _, method := range []string{"tasks/get", "tasks/cancel"} {
		a := b.rpc(noCaps, method, fmt.Sprintf(`{"taskId":%q}`, id))
		if a.Error == nil || a.Error.Code != -32021 {
			t.Fatalf("%s: %s", method, a.Raw)
		}
		tool := map[string]string{"tasks/get": "video_get_render_status", "tasks/cancel": "video_cancel_render"}[method]
		wantRepair(t, b.wantEnvelope(a.Error.Data, render.CodeMissingClientCapability, false), tool, fmt.Sprintf(`{"render_id":%q}`, id))
	}
}

// TestVideoRenderKeys: a key stands for 30 minutes, and is not that of the
// other contract.
func TestVideoRenderKeys(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	src := b.sourceID()
	args := fmt.Sprintf(`{"source_asset_id":%q,"output_format":"webm","idempotency_key":"k"}`, src)
	id := b.taskOf(args)
	if again := b.taskOf(strings.Replace(args, `"webm"`, `"webm","resolution":"1080p"`, 1)); again != id {
		t.Error("another render for the same arguments")
	}
	if got := b.farm.Windows; len(got) == 0 || slices.ContainsFunc(got, func(w time.Duration) bool { return w != 30*time.Minute }) {
		t.Errorf("windows %v", got)
	}
	e := b.wantToolError(tasks, "video_render", strings.Replace(args, "webm", "mov", 1), render.CodeIdempotencyKeyReused)
	wantRepair(t, e, "video_render", fmt.Sprintf(`{"source_asset_id":%q,"output_format":"mov","resolution":"1080p"}`, src))
	other := b.at("/mcp").submit(tasks, fmt.Sprintf(`{"source_asset_uri":"vidforge://assets/a_%s","output_format":"webm","resolution":"1080p","idempotency_key":"k"}`, strings.TrimPrefix(src, "as_")))
	if other == id {
		t.Error("the contracts share keys")
	}
}

// TestVideoRenderErrors forces each error of the tools and asserts it as it is
// on the wire.
func TestVideoRenderErrors(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	src := b.sourceID()
	logo := "as_" + strings.TrimPrefix(string(b.farm.AddAsset(render.LocalTenant, "logo.png", &render.Facts{Kind: "image", Video: -1, Audio: -1})), "a_")
	at := func(s string) string { return strings.NewReplacer("SRC", src, "LOGO", logo).Replace(s) }
	const ok = `"output_format":"mp4","resolution":"1080p"`
	for name, c := range map[string]struct {
		args, field, value, repair string
	}{
		"nothing":          {`{}`, "source_asset_id", "", ""},
		"no object":        {`[]`, "arguments", "", ""},
		"a URI":            {`{"source_asset_id":"vidforge://assets/a_abc"}`, "source_asset_id", "", ""},
		"a number":         {`{"source_asset_id":7}`, "source_asset_id", "", ""},
		"another contract": {`{"source_asset_uri":"vidforge://assets/a_abc"}`, "source_asset_uri", "", ""},
		"quality":          {`{"source_asset_id":"SRC","quality":"high"}`, "quality", "", `{"source_asset_id":"SRC",` + ok + `}`},
		"format":           {`{"source_asset_id":"SRC","output_format":"MP4"}`, "output_format", "MP4", `{"source_asset_id":"SRC",` + ok + `}`},
		"format, resolution, quality": {`{"source_asset_id":"SRC","output_format":"MOV","resolution":"4K","quality":1}`, "quality", "",
			`{"source_asset_id":"SRC","output_format":"mov","resolution":"4k"}`},
		"no mode":             {`{"source_asset_id":"SRC","watermark":{"text":"a"}}`, "watermark.mode", "", `{"source_asset_id":"SRC",` + ok + `,"watermark":{"mode":"text","text":"a"}}`},
		"odd mode":            {`{"source_asset_id":"SRC","watermark":{"mode":"Text","text":"a"}}`, "watermark.mode", "Text", `{"source_asset_id":"SRC",` + ok + `,"watermark":{"mode":"text","text":"a"}}`},
		"no text":             {`{"source_asset_id":"SRC","watermark":{"mode":"text"}}`, "watermark.text,watermark.image_asset_id", "", ""},
		"both":                {`{"source_asset_id":"SRC","watermark":{"mode":"image","text":"a","image_asset_id":"LOGO"}}`, "watermark.text,watermark.image_asset_id", "", `{"source_asset_id":"SRC",` + ok + `,"watermark":{"mode":"image","image_asset_id":"LOGO"}}`},
		"opacity":             {`{"source_asset_id":"SRC","watermark":{"mode":"text","text":"a","opacity":1}}`, "watermark.opacity", "", `{"source_asset_id":"SRC",` + ok + `,"watermark":{"mode":"text","text":"a"}}`},
		"image":               {`{"source_asset_id":"SRC","watermark":{"mode":"image","image_asset_id":"logo.png"}}`, "watermark.image_asset_id", "", ""},
		"no object watermark": {`{"source_asset_id":"SRC","watermark":true}`, "watermark", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.T = t
			e := b.wantToolError(tasks, "video_render", at(c.args), render.CodeInvalidField)
			field, _ := e.Details["field"].(string)
			if fields, ok := e.Details["fields"].([]any); ok {
				field = strings.Trim(strings.ReplaceAll(fmt.Sprint(fields), " ", ","), "[]")
			}
			value, _ := e.Details["value"].(string)
			if field != c.field || value != c.value || e.Details["reason"] == nil {
				t.Errorf("details %v, want field %q, value %q", e.Details, c.field, c.value)
			}
			if c.repair == "" {
				wantRepair(t, e, "", "")
				return
			}
			wantRepair(t, e, "video_render", at(c.repair))
			if r := b.call(noCaps, e.Repair.Tool, string(e.Repair.Arguments)); r.IsError {
				t.Errorf("the repair fails: %s", r.Structured)
			}
		})
	}
	// none ignores the rest.
	none := b.taskOf(at(`{"source_asset_id":"SRC","watermark":{"mode":"none","text":"","image_asset_id":"?","colour":"red"}}`))
	if w := b.farm.Record(none).Spec.Watermark; w != nil {
		t.Errorf("watermark %+v", w)
	}
	image := b.taskOf(at(`{"source_asset_id":"SRC","watermark":{"mode":"image","image_asset_id":"LOGO","position":"center"}}`))
	if w := b.farm.Record(image).Spec.Watermark; w == nil || w.Mode != render.WatermarkImage || w.Position != render.PositionCenter {
		t.Errorf("watermark %+v", w)
	}

	for _, id := range []string{"as_abc", "as_" + strings.Repeat("z", 26)} {
		e := b.wantToolError(tasks, "video_render", fmt.Sprintf(`{"source_asset_id":%q}`, id), render.CodeSourceNotFound)
		if e.Details["field"] != "source_asset_id" || e.Details["value"] != id || e.Details["upload_url"] != b.url+"/v1/assets" {
			t.Errorf("details %v", e.Details)
		}
	}
	plain := fmt.Sprintf(`{"source_asset_id":%q,"output_format":"mp4","resolution":"720p"}`, src)
	minutes := render.Errorf(render.CodeRenderQuotaExceeded, render.BlameCaller, "The render minutes are used up.")
	minutes.Details = &render.Details{Extra: map[string]any{"limit": "render_minutes"}}
	for want, forced := range map[render.Code]error{
		"quota_exceeded":            minutes,
		"rate_limited":              render.Errorf(render.CodeRenderQuotaExceeded, render.BlameCaller, "All are in use."),
		render.CodeUnavailable:      render.Errorf(render.CodeUnavailable, render.BlameFarm, "Not now."),
		render.CodeInternalError:    render.AsError(errors.New("a secret")),
		render.CodeUnsupportedCodec: nil,
		render.CodeSourceTooLarge:   nil,
	} {
		if forced == nil {
			forced = render.Errorf(want, render.BlameSource, "source_asset_uri cannot be used.")
		}
		b.farm.Fail("Submit", forced)
		e := b.wantToolError(tasks, "video_render", plain, want)
		if strings.Contains(e.Message, "source_asset_uri") {
			t.Errorf("%s: message %q", want, e.Message)
		}
		if want == render.CodeUnsupportedCodec || want == render.CodeSourceTooLarge {
			wantRepair(t, e, "", "")
		} else {
			wantRepair(t, e, "video_render", plain)
		}
	}
	b.farm.Fail("Submit", nil)

	// The other tools.
	unknown := render.NewID()
	for tool, args := range map[string]string{
		"video_get_render_status": `{"render_id":%q}`, "video_cancel_render": `{"render_id":%q}`, "video_approve_watermark": `{"render_id":%q,"approved":true}`,
	} {
		wantRepair(t, b.wantToolError(noCaps, tool, fmt.Sprintf(args, unknown), render.CodeRenderNotFound), "", "")
		e := b.wantToolError(noCaps, tool, strings.Replace(fmt.Sprintf(args, unknown), "{", `{"note":"x",`, 1), render.CodeInvalidField)
		wantRepair(t, e, tool, fmt.Sprintf(args, unknown))
		if e.Details["field"] != "note" {
			t.Errorf("%s: details %v", tool, e.Details)
		}
	}
	e := b.wantToolError(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true,"feedback":%q}`, unknown, strings.Repeat("n", 501)), render.CodeInvalidField)
	wantRepair(t, e, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true,"feedback":%q}`, unknown, strings.Repeat("n", 500)))
	if e.Details["field"] != "feedback" {
		t.Errorf("details %v", e.Details)
	}
	id := b.taskOf(watermarkArgs(src))
	b.wantToolError(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true}`, id), render.CodeApprovalNotPending)
	b.pause(id)
	b.call(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":true}`, id))
	wantRepair(t, b.wantToolError(noCaps, "video_approve_watermark", fmt.Sprintf(`{"render_id":%q,"approved":false}`, id), render.CodeApprovalAlreadyRecorded),
		"video_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id))
	// Under the names of the other contract there is nothing.
	if a := b.rpc(noCaps, "tools/call", `{"name":"vidforge_render_video","arguments":{}}`); a.Error == nil || a.Error.Code != -32602 {
		t.Errorf("the other contract's tool: %s", a.Raw)
	}
}

func TestVideoRenderResources(t *testing.T) {
	t.Parallel()
	b := newVideoBench(t)
	id := b.taskOf(watermarkArgs(b.sourceID()))
	preview := "video://renders/" + string(id) + "/watermark-preview.png"
	for _, uri := range []string{preview, outputURI(id)} {
		wantRepair(t, b.wantReadError(uri, render.CodeResourceNotReady), "video_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id))
	}
	b.pause(id)
	if r := b.read(preview); r.Contents[0].MIMEType != "image/png" || len(r.Contents[0].Blob) == 0 {
		t.Errorf("preview %+v", r)
	}
	b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
	b.finish(id, []byte("video"))
	if r := b.read(outputURI(id)); string(r.Contents[0].Blob) != "video" || r.Contents[0].MIMEType != "video/mp4" {
		t.Errorf("video %+v", r)
	}
	for _, uri := range []string{outputURI(render.NewID()), id.VideoURI(render.FormatMP4), "video://renders/task_*/output", "video://renders/" + string(id) + "/log", "video://coffee"} {
		b.wantReadError(uri, render.CodeResourceNotFound)
	}
	s := b.connect("2025-11-25", `{}`)
	if a := s.request("resources/read", fmt.Sprintf(`{"uri":%q}`, outputURI(id))); a.Error != nil || !strings.Contains(a.Raw, outputURI(id)) {
		t.Errorf("by a session: %s", a.Raw)
	}
	if a := s.request("resources/read", fmt.Sprintf(`{"uri":%q}`, outputURI(render.NewID()))); a.Error == nil || a.Error.Code != -32002 {
		t.Errorf("by a session: %s", a.Raw)
	}
}

// TestVideoRenderOlderClients: sessions, with the same answers.
func TestVideoRenderOlderClients(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2025-06-18", "2025-03-26"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newVideoBench(t)
			s := b.connect(version, `{}`)
			r := s.call("video_render", watermarkArgs(b.sourceID()))
			text := object(t, []byte(r.Content[0]["text"].(string)))
			if (r.Structured == nil) != (version == "2025-03-26") || text["state"] != "queued" {
				t.Errorf("accepted: %+v", r)
			}
			id := render.ID(text["render_id"].(string))
			args := fmt.Sprintf(`{"render_id":%q}`, id)
			b.pause(id)
			text = object(t, []byte(s.call("video_get_render_status", args).Content[0]["text"].(string)))
			if p, _ := text["pending_input"].(map[string]any); p["reason"] != "capability_not_negotiated" {
				t.Errorf("pending: %v", text)
			}
			if able := b.connect(version, `{"elicitation":{}}`); version != "2025-03-26" {
				text = object(t, []byte(able.call("video_get_render_status", args).Content[0]["text"].(string)))
				if p, _ := text["pending_input"].(map[string]any); p["reason"] != "undecided" {
					t.Errorf("pending with elicitation: %v", text)
				}
			}
			b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
			b.finish(id, []byte("video"))
			r = s.call("video_get_render_status", args)
			links := slices.ContainsFunc(r.Content, func(c map[string]any) bool { return c["type"] == "resource_link" })
			if links == (version == "2025-03-26") {
				t.Errorf("links %t: %+v", links, r.Content)
			}
			if res, _ := b.do("GET", b.path, nil, "Accept", "text/event-stream"); res.StatusCode != 405 {
				t.Errorf("GET without a session: %d", res.StatusCode)
			}
		})
	}
}
