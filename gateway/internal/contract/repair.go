package contract

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode"

	"github.com/vidforge/vidforge/pkg/render"
)

// failure is where an error happened: what the caller asked for and, when it is
// known, the render that it concerns.
type failure struct {
	tool string          // "" outside tools/call
	raw  json.RawMessage // the arguments as sent
	// corrected: what was wrong with the arguments is left out already.
	corrected bool
	record    *render.Record
	id        render.ID // when only the id is known
	// approvalURL is the page on which a person decides.
	approvalURL string
	// local: file URIs are as good as those of assets.
	local bool
}

func (f failure) renderID() render.ID {
	if f.record != nil {
		return f.record.ID
	}
	return f.id
}

// repair names the next call after an error, nil where no call can help.
func repair(e *render.Error, f failure) *NextStep {
	switch e.Code {
	case render.CodeInvalidField:
		return fixedCall(e, f)
	case render.CodeTextNotRenderable:
		return renderableText(f)
	case render.CodeIdempotencyKeyReused:
		args, ok := sentArguments(f)
		if !ok {
			return nil
		}
		delete(args, "idempotency_key")
		return &NextStep{Step: "render_without_key", Tool: ToolRender, Arguments: args,
			Alternative: "send a new idempotency_key, or the arguments that the key was first used with."}
	case render.CodeSourceTooLarge, render.CodeUnsupportedCodec:
		if uri := assetOf(e, f); uri != "" && f.tool != ToolProbe {
			return &NextStep{Step: "inspect_asset", Tool: ToolProbe, Arguments: map[string]any{"asset_uri": uri},
				Alternative: "convert the source elsewhere, upload it again and use the new URI."}
		}
		return nil
	case render.CodeAssetNotReady, render.CodeRenderQuotaExceeded, render.CodeRateLimited, render.CodeUnavailable, render.CodeRenderFailed, render.CodeInternalError:
		return retry(e, f)
	case render.CodeWatermarkRejected:
		return again(f, "ask the user what to change and send another watermark.text, position or opacity.")
	case render.CodeWatermarkApprovalTimeout:
		return again(f, "when nobody can decide, ask the user whether require_watermark_approval may be false.")
	case render.CodeRenderCancelled:
		return again(f, "")
	case render.CodeApprovalRequiresHuman:
		s := statusCall(f)
		if s != nil && f.approvalURL != "" {
			s.Alternative = askAt(f.approvalURL)
		}
		return s
	case render.CodeApprovalAlreadyRecorded, render.CodeApprovalNotPending, render.CodeTaskExpired, render.CodeResourceNotReady, render.CodeMissingClientCapability:
		return statusCall(f)
	default: // the handle is gone or the credential is wrong
		return nil
	}
}

func statusCall(f failure) *NextStep {
	id := f.renderID()
	if id == "" {
		return nil
	}
	return &NextStep{Step: "get_status", Tool: ToolStatus, Arguments: map[string]any{"render_id": string(id)}}
}

// again is the render once more, from the arguments that were sent or, after
// the end, from the record. The key is left out: it is bound to the render that
// ended.
func again(f failure, alternative string) *NextStep {
	args, ok := sentArguments(f)
	if !ok {
		return nil
	}
	delete(args, "idempotency_key")
	return &NextStep{Step: "render_again", Tool: ToolRender, Arguments: args, Alternative: alternative}
}

func retry(e *render.Error, f failure) *NextStep {
	if f.record != nil && f.record.State.Terminal() {
		return again(f, "")
	}
	args, ok := sentArguments(f)
	if !ok || f.tool == "" {
		return nil
	}
	n := &NextStep{Step: "retry_after_delay", Tool: f.tool, Arguments: args}
	if uri := assetOf(e, f); e.Code == render.CodeAssetNotReady && uri != "" && f.tool != ToolProbe {
		n.Alternative = ToolProbe + " tells when " + uri + " is ready."
	}
	return n
}

// sentArguments are the arguments of the call when they are valid, else those
// that the render was made with.
func sentArguments(f failure) (map[string]any, bool) {
	if f.record != nil && f.tool != ToolRender {
		return specArguments(f.record.Spec), true
	}
	var args map[string]any
	if f.check(f.raw) == nil && json.Unmarshal(f.raw, &args) == nil {
		return args, true
	}
	if f.record != nil {
		return specArguments(f.record.Spec), true
	}
	return nil, false
}

// specArguments are the arguments that give this spec.
func specArguments(s render.Spec) map[string]any {
	args := map[string]any{
		"source_asset_uri": s.Source.URI(), "output_format": s.Format, "resolution": s.Resolution, "quality": s.Quality,
	}
	if w := s.Watermark; w != nil {
		args["watermark"] = watermarkArguments(w)
		args["require_watermark_approval"] = s.RequireApproval
	}
	return args
}

func watermarkArguments(w *render.Watermark) map[string]any {
	m := map[string]any{"mode": w.Mode, "position": w.Position, "opacity": w.Opacity}
	if w.Mode == render.WatermarkImage {
		m["image_asset_uri"] = w.Image.URI()
	} else {
		m["text"] = w.Text
	}
	return m
}

// assetOf is the asset that an error is about.
func assetOf(e *render.Error, f failure) string {
	logo := e.Details != nil && e.Details.Field == "watermark.image_asset_uri"
	if f.record != nil {
		if logo && f.record.Spec.Watermark != nil {
			return f.record.Spec.Watermark.Image.URI()
		}
		return f.record.Spec.Source.URI()
	}
	req, err := renderRequest(f.raw)
	switch {
	case err != nil:
		return ""
	case logo && req.Watermark != nil:
		return deref(req.Watermark.ImageAssetURI)
	default:
		return req.SourceAssetURI
	}
}

// renderableText drops from a watermark text what fonts for scripts lack:
// pictographs, their joiners and selectors, private and unassigned characters.
func renderableText(f failure) *NextStep {
	args, ok := sentArguments(f)
	if !ok {
		return nil
	}
	w := mapOf(args["watermark"])
	text, _ := w["text"].(string)
	kept := strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case unicode.In(r, unicode.So, unicode.Sk, unicode.Co, unicode.Variation_Selector, unicode.Join_Control), !unicode.IsGraphic(r) && !unicode.IsSpace(r):
			return -1
		default:
			return r
		}
	}, text))
	if kept == "" || kept == text {
		return nil
	}
	w["text"] = kept
	args["watermark"] = w
	delete(args, "idempotency_key")
	return &NextStep{Step: "render_with_renderable_text", Tool: ToolRender, Arguments: args,
		Alternative: "ask the user for another text, or upload it as a picture and send watermark.image_asset_uri."}
}

// check decodes the arguments of a tool as its handler does.
func check(tool string, raw json.RawMessage) error {
	var err error
	switch tool {
	case ToolRender, ToolValidate:
		var req render.Request
		if req, err = renderRequest(raw); err == nil {
			_, err = render.Normalize(req)
		}
	case ToolStatus, ToolCancel:
		_, err = idArgument(raw)
	case ToolApprove:
		_, err = approveArguments(raw)
	case ToolProbe:
		_, err = probeArgument(raw)
	case ToolCapabilities:
		_, err = detailArgument(raw)
	default:
		err = errNoSuchTool
	}
	return err
}

// maxFixes is more than a call has arguments.
const maxFixes = 24

// fixedCall is the same call with every still valid argument kept and the
// wrong ones corrected where the correction is plain, dropped where they are
// optional. It exists only if the result is a valid call.
func fixedCall(e *render.Error, f failure) *NextStep {
	var args map[string]any
	if json.Unmarshal(f.raw, &args) != nil || args == nil {
		return nil
	}
	if f.corrected {
		err := check(f.tool, f.raw)
		if err == nil {
			return &NextStep{Step: "retry_with_corrected_arguments", Tool: f.tool, Arguments: args}
		}
		e = render.AsError(err)
	}
	alternative := ""
	for range maxFixes {
		if e.Code != render.CodeInvalidField || e.Details == nil || !fix(args, e.Details, f.tool) {
			return nil
		}
		if len(e.Details.Fields) > 0 {
			alternative = "to use the other one, send only " + e.Details.Fields[1] + "."
		}
		raw, err := json.Marshal(args)
		if err != nil {
			return nil
		}
		err = f.check(raw)
		if err == nil {
			return &NextStep{Step: "retry_with_corrected_arguments", Tool: f.tool, Arguments: args, Alternative: alternative}
		}
		e = render.AsError(err)
	}
	return nil
}

// fix corrects one wrong argument in place. false: only the caller can.
func fix(args map[string]any, d *render.Details, tool string) bool {
	if len(d.Fields) > 0 { // both watermark kinds, or neither
		w := mapOf(args["watermark"])
		if w["text"] == nil || w["image_asset_uri"] == nil {
			return false
		}
		if w["mode"] == string(render.WatermarkImage) {
			delete(w, "text")
		} else {
			delete(w, "image_asset_uri")
		}
		return true
	}
	in, name := args, d.Field
	if rest, ok := strings.CutPrefix(d.Field, "watermark."); ok {
		in, name = mapOf(args["watermark"]), rest
	}
	if name == `""` { // as UnknownArgument names it
		name = ""
	}
	set := func(v any, ok bool) bool {
		if ok {
			in[name] = v
		}
		return ok
	}
	drop := func() bool {
		_, there := in[name]
		delete(in, name)
		return there
	}
	switch d.Field {
	case "output_format":
		if v, ok := enumValue(in[name], "mp4", "webm", "mov"); ok && v != in[name] {
			return set(v, true)
		}
		return set("mp4", true)
	case "resolution":
		if v, ok := enumValue(in[name], "720p", "1080p", "4k"); ok {
			return set(v, true)
		}
		return set("1080p", true)
	case "quality":
		return set(enumValue(in[name], "draft", "standard", "high")) || drop()
	case "detail":
		return set(enumValue(in[name], "summary", "full")) || drop()
	case "watermark.position":
		return set(enumValue(in[name], "top_left", "top_right", "bottom_left", "bottom_right", "center")) || drop()
	case "watermark.mode":
		return drop()
	case "watermark.opacity":
		return set(opacityValue(in[name])) || drop()
	case "watermark":
		return set(objectValue(in[name])) || in[name] == nil && drop()
	case "watermark.text":
		return set(textValue(in[name]))
	case "require_watermark_approval":
		return set(boolValue(in[name])) || drop()
	case "approved":
		return set(boolValue(in[name]))
	case "note":
		return set(noteValue(in[name])) || drop()
	case "idempotency_key":
		return set(textValue(in[name])) || drop()
	case "source_asset_uri", "watermark.image_asset_uri", "render_id", "asset_uri", "arguments":
		return false
	default: // an argument that the tool does not have
		return tool != "" && drop()
	}
}

func mapOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// enumValue finds the value that differs only in case and separators.
func enumValue(v any, allowed ...string) (any, bool) {
	s, ok := v.(string)
	if !ok {
		return nil, false
	}
	bare := func(s string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", " ", "", ".", "").Replace(s))
	}
	for _, a := range allowed {
		if bare(a) == bare(s) {
			return a, true
		}
	}
	return nil, false
}

func boolValue(v any) (any, bool) {
	s, _ := v.(string)
	b, err := strconv.ParseBool(strings.ToLower(s))
	return b, err == nil
}

func opacityValue(v any) (any, bool) {
	f, ok := v.(float64)
	if s, isText := v.(string); isText {
		var err error
		f, err = strconv.ParseFloat(s, 64)
		ok = err == nil && f == f
	}
	return min(1, max(0, f)), ok
}

// textValue turns a number into the text that it was meant to be.
func textValue(v any) (any, bool) {
	f, ok := v.(float64)
	return strconv.FormatFloat(f, 'f', -1, 64), ok
}

func noteValue(v any) (any, bool) {
	s, ok := v.(string)
	r := []rune(s)
	if !ok || len(r) <= maxNote {
		return nil, false
	}
	return string(r[:maxNote]), true
}

// objectValue parses an object that was sent as a string.
func objectValue(v any) (any, bool) {
	s, _ := v.(string)
	var m map[string]any
	return m, json.Unmarshal([]byte(s), &m) == nil && m != nil
}
