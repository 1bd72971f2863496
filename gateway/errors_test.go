package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/render"
)

// envelope is an error as it was on the wire, in either carrier.
type envelope struct {
	Code         string          `json:"code"`
	Message      string          `json:"message"`
	MachineCode  string          `json:"machine_code"`
	HumanMessage string          `json:"human_message"`
	Temporary    *bool           `json:"temporary"`
	RetryAfterMS json.RawMessage `json:"retry_after_ms"`
	RequestID    string          `json:"request_id"`
	Fingerprint  string          `json:"fingerprint"`
	Details      map[string]any  `json:"details"`
	Repair       *struct {
		NextStep    string          `json:"next_step"`
		Tool        string          `json:"tool"`
		ResourceURI string          `json:"resource_uri"`
		Arguments   json.RawMessage `json:"arguments"`
		Alternative string          `json:"alternative"`
	} `json:"repair"`
	RateLimitRemaining   *int            `json:"rate_limit_remaining"`
	ResourceURI          string          `json:"resource_uri"`
	RequiredCapabilities json.RawMessage `json:"requiredCapabilities"`
}

// wantEnvelope checks what every error has, and its code.
func (b *bench) wantEnvelope(raw []byte, code render.Code, tool bool) envelope {
	b.Helper()
	e := decode[envelope](b, raw)
	got, message, other := e.Code, e.Message, e.MachineCode+e.HumanMessage
	if !tool {
		got, message, other = e.MachineCode, e.HumanMessage, e.Code+e.Message
	}
	if got != string(code) || message == "" || other != "" {
		b.Fatalf("error %s, want %s", raw, code)
	}
	entry := render.Describe(code)
	if e.Temporary == nil || *e.Temporary != entry.Temporary || len(e.RetryAfterMS) == 0 || !entry.Temporary && string(e.RetryAfterMS) != "null" {
		b.Errorf("%s: temporary and retry_after_ms in %s", code, raw)
	}
	if e.RequestID == "" || e.Fingerprint != b.fingerprint() {
		b.Errorf("%s: request_id %q, fingerprint %q", code, e.RequestID, e.Fingerprint)
	}
	if strings.Contains(string(raw), `"repair":null`) || strings.Contains(string(raw), `"details":null`) {
		b.Errorf("%s: placeholder null in %s", code, raw)
	}
	return e
}

// wantToolError calls a tool and checks that it fails so.
func (b *bench) wantToolError(caps, tool, args string, code render.Code) envelope {
	b.Helper()
	r := b.call(caps, tool, args)
	if !r.IsError {
		b.Fatalf("%s %s succeeded: %s", tool, args, r.Structured)
	}
	e := b.wantEnvelope(r.Structured, code, true)
	text, _ := r.Content[0]["text"].(string)
	if !strings.HasPrefix(text, e.Message) {
		b.Errorf("%s: text %q does not begin with the message", code, text)
	}
	if e.Repair != nil && e.Repair.Tool != "" && (!strings.Contains(text, e.Repair.Tool) || !strings.Contains(text, string(e.Repair.Arguments))) {
		b.Errorf("%s: text %q lacks the literal next call %s %s", code, text, e.Repair.Tool, e.Repair.Arguments)
	}
	return e
}

// wantRepair checks the next call that an error names; "" wants none.
func wantRepair(t testing.TB, e envelope, tool, args string) {
	t.Helper()
	switch {
	case tool == "" && e.Repair != nil:
		t.Errorf("%s: repair %+v %s, want none", e.Code, e.Repair, e.Repair.Arguments)
	case tool == "":
	case e.Repair == nil:
		t.Errorf("%s: no repair, want %s %s", e.Code, tool, args)
	case e.Repair.Tool != tool || !jsonEqual(args, e.Repair.Arguments) || e.Repair.NextStep == "":
		t.Errorf("%s: repair %s %s, want %s %s", e.Code, e.Repair.Tool, e.Repair.Arguments, tool, args)
	}
}

// TestInvalidFields: each wrong argument is named, and where the correction is
// plain the repair is the corrected call, which then works.
func TestInvalidFields(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	src := b.source()
	logo := b.farm.AddAsset(render.LocalTenant, "logo.png", &render.Facts{Kind: "image", Video: -1, Audio: -1}).URI()
	at := func(s string) string { return strings.NewReplacer("SRC", src, "LOGO", logo).Replace(s) }
	const base = `"source_asset_uri":"SRC","output_format":"mp4","resolution":"720p"`
	for name, c := range map[string]struct {
		tool, args string
		field      string // details.field, or fields with commas
		value      string // details.value
		repair     string // arguments; "" for none
	}{
		"no source":                {"", `{"output_format":"mp4","resolution":"720p"}`, "source_asset_uri", "", ""},
		"external source":          {"", `{"source_asset_uri":"https://example.org/a.mp4","output_format":"mp4","resolution":"720p"}`, "source_asset_uri", "", ""},
		"path":                     {"", `{"source_asset_uri":"/etc/passwd","output_format":"mp4","resolution":"720p"}`, "source_asset_uri", "", ""},
		"no format":                {"", `{"source_asset_uri":"SRC","resolution":"720p"}`, "output_format", "", `{` + base + `}`},
		"enum in capitals":         {"", `{"source_asset_uri":"SRC","output_format":"MP4","resolution":"720P"}`, "output_format", "MP4", `{` + base + `}`},
		"unknown enum":             {"", `{` + base + `,"quality":"ultra"}`, "quality", "ultra", `{` + base + `}`},
		"enum with a dash":         {"", `{` + base + `,"watermark":{"text":"x","position":"Top-Left"}}`, "watermark.position", "Top-Left", `{` + base + `,"watermark":{"text":"x","position":"top_left"}}`},
		"unknown format":           {"", `{"source_asset_uri":"SRC","output_format":"avi","resolution":"720p"}`, "output_format", "avi", `{` + base + `}`},
		"unknown resolution":       {"", `{"source_asset_uri":"SRC","output_format":"mp4","resolution":"8k"}`, "resolution", "8k", `{"source_asset_uri":"SRC","output_format":"mp4","resolution":"1080p"}`},
		"wrong type of enum":       {"", `{"source_asset_uri":"SRC","output_format":"mp4","resolution":720}`, "resolution", "", `{"source_asset_uri":"SRC","output_format":"mp4","resolution":"1080p"}`},
		"unknown argument":         {"", `{` + base + `,"fps":30}`, "fps", "", `{` + base + `}`},
		"unknown nested argument":  {"", `{` + base + `,"watermark":{"text":"x","size":3}}`, "watermark.size", "", `{` + base + `,"watermark":{"text":"x"}}`},
		"both watermark kinds":     {"", `{` + base + `,"watermark":{"text":"x","image_asset_uri":"LOGO"}}`, "watermark.text,watermark.image_asset_uri", "", `{` + base + `,"watermark":{"text":"x"}}`},
		"both, mode image":         {"", `{` + base + `,"watermark":{"mode":"image","text":"x","image_asset_uri":"LOGO"}}`, "watermark.text,watermark.image_asset_uri", "", `{` + base + `,"watermark":{"mode":"image","image_asset_uri":"LOGO"}}`},
		"neither kind":             {"", `{` + base + `,"watermark":{"position":"center"}}`, "watermark.text,watermark.image_asset_uri", "", ""},
		"mode against kind":        {"", `{` + base + `,"watermark":{"mode":"image","text":"x"}}`, "watermark.mode", "image", `{` + base + `,"watermark":{"text":"x"}}`},
		"opacity as text":          {"", `{` + base + `,"watermark":{"text":"x","opacity":"0.5"}}`, "watermark.opacity", "", `{` + base + `,"watermark":{"text":"x","opacity":0.5}}`},
		"opacity out of range":     {"", `{` + base + `,"watermark":{"text":"x","opacity":50}}`, "watermark.opacity", "", `{` + base + `,"watermark":{"text":"x","opacity":1}}`},
		"watermark as text":        {"", `{` + base + `,"watermark":"{\"text\":\"x\"}"}`, "watermark", "", `{` + base + `,"watermark":{"text":"x"}}`},
		"watermark null":           {"", `{` + base + `,"watermark":null}`, "watermark", "", `{` + base + `}`},
		"watermark array":          {"", `{` + base + `,"watermark":[]}`, "watermark", "", ""},
		"text is a number":         {"", `{` + base + `,"watermark":{"text":2026}}`, "watermark.text", "", `{` + base + `,"watermark":{"text":"2026"}}`},
		"text is blank":            {"", `{` + base + `,"watermark":{"text":" "}}`, "watermark.text", "", ""},
		"text is too long":         {"", `{` + base + `,"watermark":{"text":"` + strings.Repeat("é", 201) + `"}}`, "watermark.text", "", ""},
		"text with NUL":            {"", `{` + base + `,"watermark":{"text":"a\u0000b"}}`, "watermark.text", "", ""},
		"text with half a pair":    {"", `{` + base + `,"watermark":{"text":"a\ud83db"}}`, "watermark.text", "", ""},
		"text is not UTF-8":        {"", `{` + base + `,"watermark":{"text":"a` + "\xff" + `b"}}`, "watermark.text", "", ""},
		"approval as text":         {"", `{` + base + `,"require_watermark_approval":"false"}`, "require_watermark_approval", "", `{` + base + `,"require_watermark_approval":false}`},
		"approval null":            {"", `{` + base + `,"require_watermark_approval":null}`, "require_watermark_approval", "", `{` + base + `}`},
		"empty key":                {"", `{` + base + `,"idempotency_key":""}`, "idempotency_key", "", `{` + base + `}`},
		"logo is no asset":         {"", `{` + base + `,"watermark":{"image_asset_uri":"logo.png"}}`, "watermark.image_asset_uri", "", ""},
		"validate the same":        {"vidforge_validate_render", `{` + base + `,"quality":"ultra"}`, "quality", "ultra", `{` + base + `}`},
		"arguments are an array":   {"", `[]`, "arguments", "", ""},
		"several wrong":            {"", `{"source_asset_uri":"SRC","output_format":"Mp4","resolution":"4K","quality":7,"fps":1,"require_watermark_approval":"yes"}`, "fps", "", `{"source_asset_uri":"SRC","output_format":"mp4","resolution":"4k"}`},
		"status without id":        {"vidforge_get_render_status", `{}`, "render_id", "", ""},
		"status with a number":     {"vidforge_get_render_status", `{"render_id":7}`, "render_id", "", ""},
		"approve without decision": {"vidforge_approve_watermark", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa"}`, "approved", "", ""},
		"approve with text":        {"vidforge_approve_watermark", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa","approved":"true"}`, "approved", "", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa","approved":true}`},
		"approve with a long note": {"vidforge_approve_watermark", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa","approved":true,"note":"` + strings.Repeat("n", 501) + `"}`, "note", "",
			`{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa","approved":true,"note":"` + strings.Repeat("n", 500) + `"}`},
		"cancel with more":    {"vidforge_cancel_render", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa","why":"x"}`, "why", "", `{"render_id":"task_aaaaaaaaaaaaaaaaaaaaaaaaaa"}`},
		"probe without asset": {"vidforge_probe_asset", `{}`, "asset_uri", "", ""},
		"probe of a path":     {"vidforge_probe_asset", `{"asset_uri":"clip.mov"}`, "asset_uri", "", ""},
		"capabilities":        {"vidforge_get_capabilities", `{"detail":"Full"}`, "detail", "Full", `{"detail":"full"}`},
		"capabilities, all":   {"vidforge_get_capabilities", `{"detail":"everything"}`, "detail", "everything", `{}`},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.T = t
			tool := c.tool
			if tool == "" {
				tool = "vidforge_render_video"
			}
			e := b.wantToolError(tasks, tool, at(c.args), render.CodeInvalidField)
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
			wantRepair(t, e, tool, at(c.repair))
			if e.Repair != nil && !strings.Contains(c.repair, "task_aaaa") {
				if r := b.call(noCaps, e.Repair.Tool, string(e.Repair.Arguments)); r.IsError {
					t.Errorf("the repair fails: %s", r.Structured)
				}
			}
		})
	}
}

// TestRenderErrors forces each error of the render tool.
func TestRenderErrors(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	src := b.source()
	keyed := func(key, resolution string) string {
		return fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":%q,"idempotency_key":%q}`, src, resolution, key)
	}
	const render_ = "vidforge_render_video"

	foreign := b.farm.AddAsset("somebody", "theirs.mov", farmtest.VideoFacts()).URI()
	unknown := render.NewAssetID().URI()
	for _, uri := range []string{foreign, unknown, "vidforge://assets/a_*", "vidforge://assets/a_b.>", "vidforge://assets/../x y"} {
		e := b.wantToolError(tasks, render_, plainArgs(uri), render.CodeSourceNotFound)
		if e.Details["field"] != "source_asset_uri" || e.Details["value"] != uri || e.Details["upload_url"] != b.url+"/v1/assets" {
			t.Errorf("details %v", e.Details)
		}
		wantRepair(t, e, "", "")
	}

	probing := b.farm.AddAsset(render.LocalTenant, "new.mov", nil).URI()
	e := b.wantToolError(tasks, render_, plainArgs(probing), render.CodeAssetNotReady)
	wantRepair(t, e, render_, plainArgs(probing))
	if string(e.RetryAfterMS) != "2000" || !strings.Contains(e.Repair.Alternative, "vidforge_probe_asset") {
		t.Errorf("asset_not_ready: %s %q", e.RetryAfterMS, e.Repair.Alternative)
	}
	wantRepair(t, b.wantToolError(noCaps, "vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, probing), render.CodeAssetNotReady),
		"vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, probing))

	text := b.farm.AddAsset(render.LocalTenant, "text.mp4", &render.Facts{Kind: "other", Video: -1, Audio: -1, Reason: "It is a text file.", Code: render.CodeUnsupportedCodec}).URI()
	wantRepair(t, b.wantToolError(tasks, render_, plainArgs(text), render.CodeUnsupportedCodec), "vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, text))
	large := b.farm.AddAsset(render.LocalTenant, "large.mp4", &render.Facts{Kind: "video", Video: -1, Audio: -1, Reason: "Too many pixels.", Code: render.CodeSourceTooLarge}).URI()
	wantRepair(t, b.wantToolError(tasks, render_, plainArgs(large), render.CodeSourceTooLarge), "vidforge_probe_asset", fmt.Sprintf(`{"asset_uri":%q}`, large))

	b.call(tasks, render_, keyed("one", "720p"))
	wantRepair(t, b.wantToolError(tasks, render_, keyed("one", "4k"), render.CodeIdempotencyKeyReused), render_,
		fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"4k"}`, src))

	for code, retry := range map[render.Code]string{
		render.CodeRenderQuotaExceeded: "10000", render.CodeRateLimited: "1500", render.CodeUnavailable: "5000", render.CodeInternalError: "null",
	} {
		forced := render.Errorf(code, render.BlameFarm, "Not now.").WithCause(errors.New("a secret cause"))
		if code == render.CodeRateLimited {
			forced.RetryAfter = 1500 * time.Millisecond
		}
		b.farm.Fail("Submit", forced)
		e := b.wantToolError(tasks, render_, keyed("two", "720p"), code)
		wantRepair(t, e, render_, keyed("two", "720p"))
		if string(e.RetryAfterMS) != retry {
			t.Errorf("%s: retry_after_ms %s, want %s", code, e.RetryAfterMS, retry)
		}
		if (e.RateLimitRemaining != nil) != (code == render.CodeRateLimited) {
			t.Errorf("%s: rate_limit_remaining %v", code, e.RateLimitRemaining)
		}
	}
	b.farm.Fail("Submit", errors.New("a secret cause"))
	if r := b.call(tasks, render_, plainArgs(src)); strings.Contains(string(r.Structured), "secret") {
		t.Errorf("the cause leaked: %s", r.Structured)
	}
	b.farm.Fail("Submit", nil)
}

// TestFailedRenders asks for failed renders in every way, and makes the call
// that the error names.
func TestFailedRenders(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	src := b.source()
	watermarked := func(key string) string {
		return fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p","watermark":{"text":"Draft 🎬"},"idempotency_key":%q}`, src, key)
	}
	again := fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p","watermark":{"text":"Draft 🎬"}}`, src)
	full := fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p","quality":"standard","watermark":{"mode":"text","text":"Draft 🎬","position":"bottom_right","opacity":1},"require_watermark_approval":true}`, src)
	without := func(s, part string) string { return strings.Replace(s, part, "", 1) }
	for name, c := range map[string]struct {
		end         func(id render.ID)
		code        render.Code
		tool        string
		again, full string
	}{
		"rejected": {func(id render.ID) {
			b.pause(id)
			b.apply(id, render.Decided{Decision: render.Decision{}})
		}, render.CodeWatermarkRejected, "vidforge_render_video", again, full},
		"timed out": {func(id render.ID) {
			b.failWith(id, render.CodeWatermarkApprovalTimeout, "Nobody decided.")
		}, render.CodeWatermarkApprovalTimeout, "vidforge_render_video", again, full},
		"failed": {func(id render.ID) { b.failWith(id, render.CodeRenderFailed, "It broke.") }, render.CodeRenderFailed, "vidforge_render_video", again, full},
		"text": {func(id render.ID) { b.failWith(id, render.CodeTextNotRenderable, "No glyph.") }, render.CodeTextNotRenderable, "vidforge_render_video",
			without(again, " 🎬"), without(full, " 🎬")},
		"codec": {func(id render.ID) { b.failWith(id, render.CodeUnsupportedCodec, "No decoder.") }, render.CodeUnsupportedCodec, "vidforge_probe_asset",
			fmt.Sprintf(`{"asset_uri":%q}`, src), fmt.Sprintf(`{"asset_uri":%q}`, src)},
	} {
		t.Run(name, func(t *testing.T) {
			b := *b
			b.T = t
			id := b.submit(tasks, watermarked(name))
			c.end(id)
			// By the key again, as a plain call.
			e := b.wantToolError(noCaps, "vidforge_render_video", watermarked(name), c.code)
			wantRepair(t, e, c.tool, c.again)
			// By the status, which is no error.
			st := object(t, b.call(noCaps, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured)
			raw, err := json.Marshal(st["error"])
			if err != nil {
				t.Fatal(err)
			}
			e = b.wantEnvelope(raw, c.code, true)
			wantRepair(t, e, c.tool, c.full)
			// By the task: delivered, with an error inside.
			task := b.task(tasks, id)
			res, _ := task["result"].(map[string]any)
			if task["status"] != "completed" || res["isError"] != true || res["resultType"] != "complete" || task["error"] != nil {
				t.Fatalf("task %v", task)
			}
			if raw, err = json.Marshal(res["structuredContent"]); err != nil {
				t.Fatal(err)
			}
			wantRepair(t, b.wantEnvelope(raw, c.code, true), c.tool, c.full)
			// And the repair works.
			if r := b.call(noCaps, e.Repair.Tool, string(e.Repair.Arguments)); r.IsError {
				t.Errorf("the repair fails: %s", r.Structured)
			}
		})
	}

	t.Run("cancelled", func(t *testing.T) {
		id := b.submit(tasks, watermarked("cancelled"))
		b.apply(id, render.Cancelled{By: "test"})
		wantRepair(t, b.wantToolError(noCaps, "vidforge_render_video", watermarked("cancelled"), render.CodeRenderCancelled), "vidforge_render_video", again)
		if task := b.task(tasks, id); task["status"] != "cancelled" || task["result"] != nil || task["error"] != nil {
			t.Errorf("task %v", task)
		}
	})
	t.Run("lost", func(t *testing.T) {
		id := b.submit(tasks, plainArgs(src))
		b.failWith(id, render.CodeInternalError, "The farm lost it.")
		task := b.task(tasks, id)
		fault, _ := task["error"].(map[string]any)
		if task["status"] != "failed" || fault["code"] != -32603.0 || task["result"] != nil {
			t.Fatalf("task %v", task)
		}
		raw, err := json.Marshal(fault["data"])
		if err != nil {
			t.Fatal(err)
		}
		b.wantEnvelope(raw, render.CodeInternalError, false)
	})
	t.Run("unrenderable as a whole", func(t *testing.T) {
		id := b.submit(tasks, strings.Replace(plainArgs(src), `"720p"`, `"720p","watermark":{"text":"🎬🎬"}`, 1))
		b.failWith(id, render.CodeTextNotRenderable, "No glyph.")
		st := object(t, b.call(noCaps, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured)
		if r := st["error"].(map[string]any)["repair"]; r != nil {
			t.Errorf("repair %v", r)
		}
	})
}

// TestUnknownRenders: unknown, foreign and malformed ids get the same answer,
// whichever tool asks.
func TestUnknownRenders(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "other")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	foreign := b.submit(tasks, plainArgs(b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()))
	b.key = keys[1]
	var first string
	for _, id := range []string{string(render.NewID()), string(foreign), "task_*", "task_a.>", "task_/../x", "", " ", "task_aaaaaaaaaaaaaaaaaaaaaaaaa ", "task_" + strings.Repeat("a", 1000), "наше"} {
		quoted, err := json.Marshal(id)
		if err != nil {
			t.Fatal(err)
		}
		for _, tool := range []string{"vidforge_get_render_status", "vidforge_cancel_render", "vidforge_approve_watermark"} {
			args := fmt.Sprintf(`{"render_id":%s}`, quoted)
			if tool == "vidforge_approve_watermark" {
				args = fmt.Sprintf(`{"render_id":%s,"approved":true}`, quoted)
			}
			e := b.wantToolError(noCaps, tool, args, render.CodeRenderNotFound)
			wantRepair(t, e, "", "")
			got := fmt.Sprint(e.Message, e.Details)
			if first == "" {
				first = got
			}
			if got != first {
				t.Errorf("%s %q: %s, want %s", tool, id, got, first)
			}
		}
		a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%s}`, quoted))
		if id == "" {
			continue // no Mcp-Name can be sent
		}
		if a.Error == nil || a.Error.Code != -32602 || a.Status != 400 {
			t.Errorf("tasks/get %q: %d %s", id, a.Status, a.Raw)
			continue
		}
		if e := b.wantEnvelope(a.Error.Data, render.CodeTaskNotFound, false); e.Repair != nil {
			t.Errorf("tasks/get %q: %s", id, a.Error.Data)
		}
	}
}

// TestApprovals: the first decision stands.
func TestApprovals(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	src := b.source()
	const tool = "vidforge_approve_watermark"
	decide := func(id render.ID, approved bool) string {
		return fmt.Sprintf(`{"render_id":%q,"approved":%t}`, id, approved)
	}
	status := func(id render.ID) string { return fmt.Sprintf(`{"render_id":%q}`, id) }

	id := b.submit(tasks, renderArgs(src))
	wantRepair(t, b.wantToolError(noCaps, tool, decide(id, true), render.CodeApprovalNotPending), "vidforge_get_render_status", status(id))
	b.pause(id)
	for range 2 {
		if r := b.call(noCaps, tool, decide(id, true)); r.IsError {
			t.Fatalf("approve: %s", r.Structured)
		}
	}
	wantRepair(t, b.wantToolError(noCaps, tool, decide(id, false), render.CodeApprovalAlreadyRecorded), "vidforge_get_render_status", status(id))

	cancelled := b.submit(tasks, renderArgs(src))
	b.pause(cancelled)
	b.call(noCaps, "vidforge_cancel_render", status(cancelled))
	wantRepair(t, b.wantToolError(noCaps, tool, decide(cancelled, true), render.CodeApprovalNotPending), "vidforge_get_render_status", status(cancelled))

	b.farm.Fail("Decide", render.Errorf(render.CodeApprovalRequiresHuman, render.BlameCaller, "A person decides."))
	e := b.wantToolError(noCaps, tool, decide(id, true), render.CodeApprovalRequiresHuman)
	wantRepair(t, e, "vidforge_get_render_status", status(id))
	if !strings.Contains(e.Repair.Alternative, b.url+"/v1/renders/"+string(id)+"/approval") {
		t.Errorf("alternative %q", e.Repair.Alternative)
	}
	b.farm.Fail("Decide", nil)

	// Cancel is no error, before and after the end.
	done := b.submit(tasks, plainArgs(src))
	b.finish(done, []byte("video"))
	for range 2 {
		r := b.call(noCaps, "vidforge_cancel_render", status(done))
		if v := object(t, r.Structured); r.IsError || v["state"] != "succeeded" || v["acknowledged"] != true {
			t.Errorf("cancel after the end: %s", r.Structured)
		}
	}
}

// TestPanicsAreErrors: a fault in a handler is an internal error of that call,
// not the end of the process.
func TestPanicsAreErrors(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	rec := *b.farm.Record(id)
	rec.State, rec.Step, rec.Ended, rec.Output = render.StateSucceeded, render.StepDone, b.clock.now(), nil
	b.farm.Replace(&rec)
	a := b.rpc(tasks, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error == nil || a.Error.Code != -32603 {
		t.Fatalf("tasks/get: %s", a.Raw)
	}
	b.wantEnvelope(a.Error.Data, render.CodeInternalError, false)
}

// TestUnknownTool is a protocol error, with the envelope.
func TestUnknownTool(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	a := b.rpc(noCaps, "tools/call", `{"name":"vidforge_make_coffee","arguments":{}}`)
	if a.Error == nil || a.Error.Code != -32602 {
		t.Fatal(a.Raw)
	}
	if e := b.wantEnvelope(a.Error.Data, render.CodeInvalidField, false); e.Details["field"] != "name" {
		t.Errorf("details %v", e.Details)
	}
	for _, method := range []string{"tasks/list", "tasks/result", "coffee/make"} {
		if a := b.rpc(tasks, method, `{"taskId":"x"}`); a.Error == nil || a.Error.Code != -32601 || a.Status != 404 {
			t.Errorf("%s: %d %s", method, a.Status, a.Raw)
		}
	}
}
