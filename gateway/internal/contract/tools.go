package contract

import (
	"encoding/json"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/render"
)

// Names of the tools.
const (
	ToolRender       = "vidforge_render_video"
	ToolStatus       = "vidforge_get_render_status"
	ToolApprove      = "vidforge_approve_watermark"
	ToolCancel       = "vidforge_cancel_render"
	ToolValidate     = "vidforge_validate_render"
	ToolProbe        = "vidforge_probe_asset"
	ToolCapabilities = "vidforge_get_capabilities"
)

// toolOrder is the order in which tools are shown.
func toolOrder() []string {
	return []string{ToolRender, ToolStatus, ToolApprove, ToolCancel, ToolValidate, ToolProbe, ToolCapabilities}
}

// requiredScopes lists the scopes of a tool; any one of them is enough.
func requiredScopes(tool string) []string {
	switch tool {
	case ToolRender, ToolApprove, ToolCancel:
		return []string{apikey.ScopeRenderWrite}
	case ToolValidate, ToolProbe:
		return []string{apikey.ScopeAssetRead}
	case ToolStatus:
		return []string{apikey.ScopeRenderWrite, apikey.ScopeAssetRead}
	default:
		return nil
	}
}

// deprecationMonths is how long a tool or a resource stays after it was marked
// in its lifecycle as going away.
const deprecationMonths = 12

// Lifecycle tells how settled a tool, a resource or a template is. One that is
// to go away would have a deprecation beside it.
type Lifecycle struct {
	Stability string `json:"stability"`
	// Since is the version that had it first.
	Since string `json:"since"`
}

// Stable is the lifecycle of all that there is.
func Stable() Lifecycle { return Lifecycle{Stability: "stable", Since: "0.1.0"} }

// exampleID and exampleAsset appear in descriptions.
const (
	exampleID    = "task_abcdefghijklmnopqrstuvwxyz"
	exampleAsset = "vidforge://assets/a_abcdefghijklmnopqrstuvwxyz"
)

// toolSpec is a tool as written by hand. Schemas are literal JSON, so that what
// a reviewer reads is what a client gets.
type toolSpec struct {
	name, title, description string
	readOnly, idempotent     bool
	input, output            string // the members of properties
	required, outRequired    string // names with blanks between them
	errors                   []render.Code
}

const renderInput = `
"source_asset_uri":{"type":"string","format":"uri","description":"The uploaded video, vidforge://assets/…"},
"output_format":{"type":"string","enum":["mp4","webm","mov"]},
"resolution":{"type":"string","enum":["720p","1080p","4k"],"description":"The box that the picture fits into: aspect kept, never cropped, portrait box for portrait sources, smaller sources scaled up."},
"quality":{"type":"string","enum":["draft","standard","high"],"default":"standard","description":"Omitted: standard."},
"watermark":{"type":"object","additionalProperties":false,"description":"Set exactly one of text and image_asset_uri. Omitted: no watermark and no pause.","properties":{
"mode":{"type":"string","enum":["text","image"],"description":"Omitted: follows from which of text and image_asset_uri is set."},
"text":{"type":"string","minLength":1,"maxLength":200,"description":"Drawn literally. Omitted: image_asset_uri is used."},
"image_asset_uri":{"type":"string","format":"uri","description":"An uploaded PNG, JPEG or WebP. Omitted: text is used."},
"position":{"type":"string","enum":["top_left","top_right","bottom_left","bottom_right","center"],"default":"bottom_right","description":"Omitted: bottom_right."},
"opacity":{"type":"number","minimum":0,"maximum":1,"default":1,"description":"Omitted: 1, opaque."}}},
"require_watermark_approval":{"type":"boolean","default":true,"description":"Pause until the preview is approved. Omitted: true. No effect without a watermark."}`

// validateInput takes the same arguments; the words are in the render tool.
const validateInput = `
"source_asset_uri":{"type":"string","format":"uri"},
"output_format":{"type":"string","enum":["mp4","webm","mov"]},
"resolution":{"type":"string","enum":["720p","1080p","4k"]},
"quality":{"type":"string","enum":["draft","standard","high"],"default":"standard","description":"Omitted: standard."},
"watermark":{"type":"object","additionalProperties":false,"description":"Omitted: none.","properties":{
"mode":{"type":"string","enum":["text","image"],"description":"Omitted: follows from the others."},
"text":{"type":"string","minLength":1,"maxLength":200,"description":"Omitted: image."},
"image_asset_uri":{"type":"string","format":"uri","description":"Omitted: text."},
"position":{"type":"string","enum":["top_left","top_right","bottom_left","bottom_right","center"],"default":"bottom_right","description":"Omitted: bottom_right."},
"opacity":{"type":"number","minimum":0,"maximum":1,"default":1,"description":"Omitted: 1."}}},
"require_watermark_approval":{"type":"boolean","default":true,"description":"Omitted: true."},
"idempotency_key":{"type":"string","minLength":1,"maxLength":128,"description":"Checked, not used. Omitted: none."}`

const idempotencyInput = `,
"idempotency_key":{"type":"string","minLength":1,"maxLength":128,"description":"Same key and arguments within 24 hours: the same render. Omitted: each call renders."}`

const renderIDInput = `"render_id":{"type":"string","pattern":"^task_[a-z2-7]{26}$","description":"From the render call; equals its task id."}`

const stringsSchema = `{"type":"array","items":{"type":"string"}}`

// FollowUpSchema is the schema of a NextStep that names a tool.
const FollowUpSchema = `{"type":"object","additionalProperties":false,"required":["next_step","tool","arguments"],"properties":{
"next_step":{"type":"string"},"tool":{"type":"string"},"arguments":{"type":"object","description":"To send as they are."},"alternative":{"type":"string"}}}`

// downloadOutput are the fields of clients that come over HTTP.
const downloadOutput = `
"download_url":{"type":"string","description":"Fresh at each read."},
"download_expires_at":{"type":"string","format":"date-time"},`

const videoOutput = `
"video_uri":{"type":"string"},` + downloadOutput + `
"duration_seconds":{"type":"number"},"size_bytes":{"type":"integer"},"sha256":{"type":"string"},
"resolution":{"type":"string"},"width":{"type":"integer"},"height":{"type":"integer"},"frame_count":{"type":"integer"},
"video_codec":{"type":"string"},"audio_codec":{"type":"string","description":"Absent: silent."},
"watermark_applied":{"type":"boolean"},"encoder":{"type":"string"},"hardware_fallback_reason":{"type":"string"},
"segments_total":{"type":"integer"},"segments_reused":{"type":"integer"}`

const pollOutput = `"poll_after_ms":{"type":"integer"}`

// EnvelopeSchema is the schema of an Envelope inside a status.
const EnvelopeSchema = `{"type":"object","additionalProperties":false,"required":["code","message","temporary","retry_after_ms","request_id","fingerprint"],"properties":{
"code":{"type":"string"},"message":{"type":"string"},"temporary":{"type":"boolean"},"retry_after_ms":{"type":["integer","null"]},
"request_id":{"type":"string"},"fingerprint":{"type":"string"},"details":{"type":"object","description":"Members depend on code."},"repair":{"type":"object","description":"As follow_up."}}}`

func toolSpecs() []toolSpec {
	return []toolSpec{{
		name:  ToolRender,
		title: "Render a video",
		description: "Converts, resizes, transcodes or watermarks an uploaded video. Use it when the user wants a video file made from a vidforge://assets/… source. " +
			"A render takes 1 to 10 minutes. The call may answer with a task; without tasks it answers at once with status accepted and a render_id.\n" +
			"Upload the source to POST /v1/assets first.\n" +
			"A watermarked render pauses until its preview is approved, unless require_watermark_approval is false.\n" +
			"Set require_watermark_approval to false only when the user asked to skip the preview.\n" +
			"Send an idempotency_key with every call that may be repeated; repeat an unanswered call with the same key and arguments.\n" +
			"Check isError in the result of a completed task: completed says delivered, not succeeded.\n" +
			`Example: {"source_asset_uri":"` + exampleAsset + `","output_format":"mp4","resolution":"1080p","watermark":{"text":"Draft"},"idempotency_key":"job-7"}`,
		input:    renderInput + idempotencyInput,
		required: "source_asset_uri output_format resolution",
		output: `"status":{"type":"string","enum":["accepted","completed"]},"render_id":{"type":"string"},
"state":{"type":"string","enum":["queued","rendering","awaiting_watermark_approval"],"description":"With accepted."},` +
			pollOutput + `,"log_uri":{"type":"string"},"expires_at":{"type":"string","format":"date-time"},"follow_up":` + FollowUpSchema + `,` + videoOutput,
		outRequired: "status render_id expires_at",
		errors: []render.Code{render.CodeInvalidField, render.CodeSourceNotFound, render.CodeAssetNotReady, render.CodeUnsupportedCodec, render.CodeTextNotRenderable,
			render.CodeIdempotencyKeyReused, render.CodeRenderQuotaExceeded, render.CodeWatermarkRejected, render.CodeWatermarkApprovalTimeout, render.CodeRenderFailed},
	}, {
		name:  ToolStatus,
		title: "Get a render's status",
		description: "Fallback that mirrors tasks/get for clients without tasks: state, progress and, at the end, the video or the error of a render. " +
			"Use it with the render_id of an accepted render. Answers in milliseconds; renders take 1 to 10 minutes. Repeating it is safe.\n" +
			"Wait poll_after_ms between calls.\n" +
			"When state is awaiting_watermark_approval, show the preview image to the user before deciding.\n" +
			"A failed render is a successful call: read error.\n" +
			`Example: {"render_id":"` + exampleID + `"}`,
		readOnly: true,
		input:    renderIDInput, required: "render_id",
		output: `"render_id":{"type":"string"},
"state":{"type":"string","enum":["queued","rendering","awaiting_watermark_approval","succeeded","failed","cancelled"]},
"terminal":{"type":"boolean"},"terminal_states":` + stringsSchema + `,
"status_message":{"type":"string"},"log_uri":{"type":"string"},"expires_at":{"type":"string","format":"date-time"},` + pollOutput + `,
"progress":{"type":"number","minimum":0,"maximum":1},"stage":{"type":"string","enum":["preview","plan","segment","audio","assemble"]},
"frames_done":{"type":"integer"},"frames_total":{"type":"integer"},"fps":{"type":"number"},"speed":{"type":"number"},"eta_seconds":{"type":"number"},
"segments_done":{"type":"integer"},"attempt":{"type":"integer"},"queue_position":{"type":"integer"},
"log_tail":` + stringsSchema + `,
"watermark_preview_uri":{"type":"string"},"approval_expires_at":{"type":"string","format":"date-time"},"approval_url":{"type":"string"},
"follow_up":` + FollowUpSchema + `,` + videoOutput + `,"error":` + EnvelopeSchema,
		outRequired: "render_id state terminal terminal_states status_message log_uri expires_at",
		errors:      []render.Code{render.CodeInvalidField, render.CodeRenderNotFound},
	}, {
		name:  ToolApprove,
		title: "Approve or reject a watermark",
		description: "Fallback that mirrors tasks/update for clients that were sent no input request: decides on the watermark preview of a paused render. " +
			"Use it when a status says awaiting_watermark_approval. Answers in milliseconds; the render then goes on for 1 to 10 minutes.\n" +
			"Decide only as the user decided after seeing the preview.\n" +
			"Rejecting ends the render.\n" +
			"An undecided render ends after 30 minutes.\n" +
			"The first decision stands: the same again succeeds, the opposite is approval_already_recorded.\n" +
			`Example: {"render_id":"` + exampleID + `","approved":true}`,
		idempotent: true,
		input: renderIDInput + `,"approved":{"type":"boolean","description":"true renders the video, false ends the render."},
"note":{"type":"string","maxLength":500,"description":"Kept with the decision. Omitted: no note."}`,
		required: "render_id approved",
		output: `"render_id":{"type":"string"},"decision":{"type":"string","enum":["approved","rejected"]},
"state":{"type":"string","enum":["queued","rendering","succeeded","failed","cancelled"]},` + pollOutput + `,"follow_up":` + FollowUpSchema,
		outRequired: "render_id decision state follow_up",
		errors:      []render.Code{render.CodeInvalidField, render.CodeRenderNotFound, render.CodeApprovalAlreadyRecorded, render.CodeApprovalNotPending, render.CodeApprovalRequiresHuman},
	}, {
		name:  ToolCancel,
		title: "Cancel a render",
		description: "Fallback that mirrors tasks/cancel: ends a render that the user no longer wants. Answers in milliseconds. Repeating it is safe, also after the end.\n" +
			"A cancelled render cannot be resumed; submit it again.\n" +
			`Example: {"render_id":"` + exampleID + `"}`,
		idempotent: true,
		input:      renderIDInput, required: "render_id",
		output:      `"render_id":{"type":"string"},"acknowledged":{"type":"boolean"},"state":{"type":"string","enum":["cancelling","succeeded","failed","cancelled"]}`,
		outRequired: "render_id acknowledged state",
		errors:      []render.Code{render.CodeInvalidField, render.CodeRenderNotFound},
	}, {
		name:  ToolValidate,
		title: "Check a render request",
		description: "Checks the arguments of " + ToolRender + " against everything the farm knows already, in milliseconds, changing nothing. " +
			"Use it to learn the output's size, duration and warnings before rendering. Repeating it is safe; what rendering would refuse comes as the same error.\n" +
			`Example: {"source_asset_uri":"` + exampleAsset + `","output_format":"mp4","resolution":"720p"}`,
		readOnly: true,
		input:    validateInput,
		required: "source_asset_uri output_format resolution",
		output: `"valid":{"type":"boolean"},"spec":{"type":"object","additionalProperties":false,"description":"The request with every default filled in.","properties":{
"source_asset_uri":{"type":"string"},"output_format":{"type":"string"},"resolution":{"type":"string"},"quality":{"type":"string"},
"watermark":{"type":"object","additionalProperties":false,"properties":{"mode":{"type":"string"},"text":{"type":"string"},"image_asset_uri":{"type":"string"},"position":{"type":"string"},"opacity":{"type":"number"}}},
"require_watermark_approval":{"type":"boolean"}}},
"output":{"type":"object","additionalProperties":false,"properties":{"width":{"type":"integer"},"height":{"type":"integer"},"frame_rate":{"type":"number"},"duration_seconds":{"type":"number"},"video_codec":{"type":"string"},"audio_codec":{"type":"string"}}},
"estimated_seconds":{"type":"number"},"warnings":` + stringsSchema,
		outRequired: "valid spec output warnings",
		errors:      []render.Code{render.CodeInvalidField, render.CodeSourceNotFound, render.CodeAssetNotReady, render.CodeUnsupportedCodec},
	}, {
		name:  ToolProbe,
		title: "Look at an asset",
		description: "Tells what the farm knows of an uploaded asset: container, duration, streams, and whether it can be rendered. " +
			"Use it to answer questions about a source, or after source_not_found, asset_not_ready or unsupported_codec. Answers in milliseconds. Repeating it is safe.\n" +
			`Example: {"asset_uri":"` + exampleAsset + `"}`,
		readOnly: true,
		input:    `"asset_uri":{"type":"string","format":"uri","description":"vidforge://assets/…"}`, required: "asset_uri",
		output: `"asset_uri":{"type":"string"},"name":{"type":"string"},"mime_type":{"type":"string"},"size_bytes":{"type":"integer"},"sha256":{"type":"string"},
"container":{"type":"string"},"duration_seconds":{"type":"number"},
"streams":{"type":"array","items":{"type":"object","additionalProperties":false,"required":["kind","codec"],"properties":{
"kind":{"type":"string"},"codec":{"type":"string"},"width":{"type":"integer"},"height":{"type":"integer"},"frame_rate":{"type":"number"},"variable_frame_rate":{"type":"boolean"},
"rotation":{"type":"integer"},"pixel_aspect":{"type":"string"},"bit_depth":{"type":"integer"},"hdr":{"type":"string"},"channels":{"type":"integer"},"sample_rate":{"type":"integer"}}}},
"renderable":{"type":"boolean"},"reason":{"type":"string","description":"Why it cannot be rendered."},"expires_at":{"type":"string","format":"date-time"}`,
		outRequired: "asset_uri name mime_type size_bytes sha256 container streams renderable expires_at",
		errors:      []render.Code{render.CodeInvalidField, render.CodeSourceNotFound, render.CodeAssetNotReady},
	}, {
		name:  ToolCapabilities,
		title: "What vidforge does",
		description: "Tells what this server does and does not do, its limits, how to upload, how tasks and approvals work, and where errors travel. " +
			"Use it before the first render or when a call failed in a way that its repair does not explain. Answers in milliseconds. Repeating it is safe.\n" +
			`Example: {"detail":"full"}`,
		readOnly: true,
		input:    `"detail":{"type":"string","enum":["summary","full"],"default":"summary","description":"full adds negotiated_capabilities, covers and every error code. Omitted: summary."}`,
		output: `"server":{"type":"object","additionalProperties":false,"properties":{"name":{"type":"string"},"version":{"type":"string"},"fingerprint":{"type":"string"},"transport":{"type":"string"},
"spec_target":{"type":"object","additionalProperties":false,"properties":{"revisions":` + stringsSchema + `,"extensions":` + stringsSchema + `}},"summary":{"type":"string"}}},
"does":` + stringsSchema + `,"does_not":` + stringsSchema + `,
"error_carriers":{"type":"object","additionalProperties":false,"properties":{"tool_errors":{"type":"string"},"non_tool_rpc_errors":{"type":"string"}}},
"task_semantics":{"type":"object","additionalProperties":false,"properties":{"note":{"type":"string"},"task_ttl_ms":{"type":"integer"},"result_retention":{"type":"string"}}},
"negotiated_capabilities":{"type":"object","additionalProperties":false,"properties":{"server":{"type":"object"},"client":{"type":"object"},"fallbacks":{"type":"object"}}},
"approval":{"type":"object","additionalProperties":false,"properties":{"policy":{"type":"string"},"window_ms":{"type":"integer"},"rules":` + stringsSchema + `}},
"limits":{"type":"object","additionalProperties":{"type":"number"}},"required_scopes":{"type":"object","additionalProperties":` + stringsSchema + `},
"covers":` + stringsSchema + `,
"errors":{"type":"array","items":{"type":"object","additionalProperties":false,"properties":{"code":{"type":"string"},"temporary":{"type":"boolean"},"carrier":{"type":"string"},"meaning":{"type":"string"}}}}`,
		outRequired: "server does does_not error_carriers task_semantics approval limits required_scopes",
		errors:      []render.Code{render.CodeInvalidField},
	}}
}

// tool makes the wire form.
func (t toolSpec) tool() *mcp.Tool {
	no := false
	a := &mcp.ToolAnnotations{ReadOnlyHint: t.readOnly, IdempotentHint: t.idempotent || t.readOnly, OpenWorldHint: &no}
	if !t.readOnly {
		a.DestructiveHint = &no
	}
	return &mcp.Tool{
		Name: t.name, Title: t.title, Description: t.description, Annotations: a,
		InputSchema:  Schema(t.input, t.required),
		OutputSchema: Schema(t.output, t.outRequired),
		Meta: mcp.Meta{
			"com.vidforge/errors":    t.errors,
			"com.vidforge/lifecycle": Stable(),
		},
	}
}

// Schema puts the members of properties into the closed schema of an object, of
// which required (names with blanks between them) must be there.
func Schema(properties, required string) json.RawMessage {
	s := `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object","additionalProperties":false,`
	if f := strings.Fields(required); len(f) > 0 {
		s += `"required":["` + strings.Join(f, `","`) + `"],`
	}
	return json.RawMessage(strings.ReplaceAll(s+`"properties":{`+properties+`}}`, "\n", ""))
}

// RequestScopes lists the scopes that an MCP request needs; any one of them is
// enough, and none means that every credential may.
func (s *Service) RequestScopes(method, tool string) []string {
	if method == "tools/call" {
		t, _ := s.dialect.tool(tool)
		return requiredScopes(t.As)
	}
	return methodScopes(method)
}

func methodScopes(method string) []string {
	switch method {
	case "tasks/get", "tasks/result", "resources/read", "resources/subscribe", "subscriptions/listen":
		return requiredScopes(ToolStatus)
	case "tasks/update", "tasks/cancel":
		return requiredScopes(ToolCancel)
	default:
		return nil
	}
}
