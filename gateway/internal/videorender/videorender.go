// Package videorender is the older video_render contract: four tools over the
// same service that package contract puts before the farm, under names, limits
// and shapes of its own. It is a table of translations and keeps no state.
package videorender

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/render"
)

// Names of the tools.
const (
	ToolRender  = "video_render"
	ToolStatus  = "video_get_render_status"
	ToolApprove = "video_approve_watermark"
	ToolCancel  = "video_cancel_render"
)

// Path of the endpoint below the public URL.
const Path = "/mcp/video-render"

const (
	namespace = "com.video-render"
	// idempotencyWindow is how long a key stands for its render.
	idempotencyWindow = 30 * time.Minute

	uriCapabilities = "video://capabilities"
	templateOutput  = "video://renders/{render_id}/output"
	templatePreview = "video://renders/{render_id}/watermark-preview.png"

	assetURIPrefix   = "vidforge://assets/a_"
	assetIDPrefix    = "as_"
	renderURIPrefix  = "vidforge://renders/"
	nativeToolPrefix = "vidforge_"
)

// Codes that package contract has under another name.
const (
	codeQuotaExceeded render.Code = "quota_exceeded"
	codeRateLimited               = render.CodeRateLimited
)

var (
	resourcePattern = regexp.MustCompile(`^video://renders/([^/]+)/(output|watermark-preview\.png)$`)
	videoPattern    = regexp.MustCompile(`vidforge://videos/([^/\s]+)/final\.[a-z0-9]+`)
	assetPattern    = regexp.MustCompile(`vidforge://assets/a_([a-z0-9]+)`)
)

// Dialect is the contract.
func Dialect() *contract.Dialect {
	t := newTranslator()
	return &contract.Dialect{
		Name: "video-render-mcp", Title: "Video rendering", Path: Path, Namespace: namespace, Instructions: instructions,
		Tools: t.tools(), Resources: []contract.StaticResource{t.capabilities()}, Templates: templates(), Parse: parse,
		IdempotencyWindow: idempotencyWindow,
		Text:              t.text, Next: t.next, Error: t.envelope,
	}
}

// instructions repeat what the tools say: some clients never show them.
const instructions = summary + "\n" +
	"Upload the source with POST /v1/assets; the asset URI vidforge://assets/a_x that it returns is the source_asset_id as_x.\n" +
	"Renders take 1 to 10 minutes: poll the task, or " + ToolStatus + " when the answer was no task.\n" +
	"Show the watermark preview to the user and decide only as the user decided.\n" +
	"Read isError in the result of a completed task: completed says delivered, not succeeded.\n" +
	"After an error, make the call in its repair.\n" +
	"Limits, approvals and every error code: the resource " + uriCapabilities + "."

func templates() []*mcp.ResourceTemplate {
	return []*mcp.ResourceTemplate{
		{URITemplate: templateOutput, Name: "output", Title: "Rendered video",
			Description: "The finished video. Up to 8 MiB come as bytes; a larger one as a text/uri-list entry with a download URL that expires."},
		{URITemplate: templatePreview, Name: "watermark-preview", Title: "Watermark preview", MIMEType: "image/png",
			Description: "A frame with the watermark as it will be drawn, up to 1 MiB. It exists once the render awaits approval."},
	}
}

func parse(uri string) (r contract.Resource, ok bool) {
	m := resourcePattern.FindStringSubmatch(uri)
	if m == nil {
		return r, false
	}
	r.Kind = contract.KindPreview
	if m[2] == "output" {
		r.Kind = contract.KindVideo
	}
	r.ID, ok = render.ParseID(m[1])
	return r, ok
}

// translator puts what package contract says into the words of this one.
type translator struct {
	toolNames map[string]string // of package contract, to ours
	fields    map[string]string // arguments of package contract, to ours
	words     *strings.Replacer
}

func newTranslator() *translator {
	t := &translator{
		toolNames: map[string]string{
			contract.ToolRender: ToolRender, contract.ToolStatus: ToolStatus, contract.ToolApprove: ToolApprove, contract.ToolCancel: ToolCancel,
		},
		fields: map[string]string{
			"source_asset_uri": "source_asset_id", "watermark.image_asset_uri": "watermark.image_asset_id", "note": "feedback",
		},
	}
	pairs := []string{
		"source_asset_uri", "source_asset_id", "image_asset_uri", "image_asset_id",
		"text, position or opacity", "text or position",
		"leave mode out or send", "send",
		renderURIPrefix, "video://renders/",
	}
	for from, to := range t.toolNames {
		pairs = append(pairs, from, to)
	}
	t.words = strings.NewReplacer(pairs...)
	return t
}

// text translates prose, or JSON that holds URIs and prose.
func (t *translator) text(s string) string {
	s = videoPattern.ReplaceAllString(s, "video://renders/$1/output")
	s = assetPattern.ReplaceAllString(s, assetIDPrefix+"$1")
	return t.words.Replace(s)
}

// next translates a next call. There is none where this contract has no such
// tool.
func (t *translator) next(n *contract.NextStep) *contract.NextStep {
	if n == nil {
		return nil
	}
	out := *n
	out.ResourceURI, out.Alternative = t.text(n.ResourceURI), t.text(n.Alternative)
	if strings.Contains(out.Alternative, nativeToolPrefix) {
		out.Alternative = "" // about a tool that is not here
	}
	if n.Tool == "" {
		return &out
	}
	var ok bool
	if out.Tool, ok = t.toolNames[n.Tool]; !ok {
		return nil
	}
	out.Arguments = map[string]any{}
	for k, v := range n.Arguments {
		switch k {
		case "source_asset_uri":
			out.Arguments["source_asset_id"] = t.value(v)
		case "watermark":
			out.Arguments[k] = t.watermark(v)
		case "note":
			out.Arguments["feedback"] = v
		case "quality": // always the standard one here
		default:
			out.Arguments[k] = v
		}
	}
	return &out
}

// value translates an asset's URI.
func (t *translator) value(v any) any {
	if s, ok := v.(string); ok {
		return assetPattern.ReplaceAllString(s, assetIDPrefix+"$1")
	}
	return v
}

// watermark translates a watermark that will be drawn.
func (t *translator) watermark(v any) any {
	w, ok := v.(map[string]any)
	if !ok {
		return v
	}
	out := map[string]any{}
	for k, v := range w {
		switch k {
		case "image_asset_uri":
			out["image_asset_id"] = t.value(v)
		case "opacity": // always opaque here
		default:
			out[k] = v
		}
	}
	if out["mode"] == nil {
		out["mode"] = render.WatermarkText
		if out["text"] == nil {
			out["mode"] = render.WatermarkImage
		}
	}
	return out
}

// envelope translates an error.
func (t *translator) envelope(e contract.Envelope) contract.Envelope {
	e.Message, e.ResourceURI, e.Repair = t.text(e.Message), t.text(e.ResourceURI), t.next(e.Repair)
	if e.Code == render.CodeRenderQuotaExceeded {
		if e.Code = codeRateLimited; isMinutes(e.Details) {
			e.Code = codeQuotaExceeded
		} else {
			e.RateLimitRemaining = new(int)
		}
	}
	if e.Details == nil {
		return e
	}
	details := map[string]any{}
	for k, v := range e.Details {
		switch v := v.(type) {
		case string:
			details[k] = v
			switch k {
			case "field":
				details[k] = t.field(v)
			case "value", "reason":
				details[k] = t.text(v)
			}
		case []string:
			details[k] = v
			if k == "fields" {
				fields := slices.Clone(v)
				for i, f := range fields {
					fields[i] = t.field(f)
				}
				details[k] = fields
			}
		default:
			details[k] = v
		}
	}
	e.Details = details
	return e
}

func (t *translator) field(name string) string {
	if ours, ok := t.fields[name]; ok {
		return ours
	}
	return name
}

// isMinutes reports whether a quota is that of render minutes; the other one
// bounds how many renders are under way.
func isMinutes(details map[string]any) bool {
	limit, _ := details["limit"].(string)
	return limit == "render_minutes"
}

// capabilities is what this server does.
func (t *translator) capabilities() contract.StaticResource {
	return contract.StaticResource{
		Resource: &mcp.Resource{
			URI: uriCapabilities, Name: "capabilities", Title: "What the server does", MIMEType: "application/json",
			Annotations: &mcp.Annotations{Audience: []mcp.Role{"assistant"}, Priority: 0.5},
			Description: "What the server does and does not do, what must be there before a render, how long it takes, limits, tasks, approvals and every error code.",
		},
		Read: func(c contract.Capabilities) (string, error) {
			raw, err := json.Marshal(t.document(c))
			return string(raw), err
		},
	}
}
