package videorender

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/render"
)

const (
	exampleID    = "task_abcdefghijklmnopqrstuvwxyz"
	exampleAsset = "as_abcdefghijklmnopqrstuvwxyz"
)

const renderInput = `
"source_asset_id":{"type":"string","pattern":"^as_[a-z0-9]{3,}$","description":"The uploaded video: as_x is the asset vidforge://assets/a_x."},
"output_format":{"type":"string","enum":["mp4","webm","mov"],"default":"mp4","description":"Omitted: mp4."},
"resolution":{"type":"string","enum":["720p","1080p","4k"],"default":"1080p","description":"The box that the picture fits into: aspect kept, never cropped. Omitted: 1080p."},
"watermark":{"type":"object","additionalProperties":false,"required":["mode"],"description":"Omitted: none and no pause.","properties":{
"mode":{"type":"string","enum":["none","text","image"],"description":"text needs text, image needs image_asset_id, none ignores the rest."},
"text":{"type":"string","minLength":1,"maxLength":200,"description":"Drawn literally. Omitted: none, for other modes."},
"image_asset_id":{"type":"string","pattern":"^as_[a-z0-9]{3,}$","description":"An uploaded PNG, JPEG or WebP. Omitted: none, for other modes."},
"position":{"type":"string","enum":["top_left","top_right","bottom_left","bottom_right","center"],"default":"bottom_right","description":"Omitted: bottom_right."}}},
"require_watermark_approval":{"type":"boolean","default":true,"description":"Pause until the preview is approved. Omitted: true. No effect without a watermark."},
"idempotency_key":{"type":"string","minLength":1,"maxLength":128,"description":"Same key and arguments within 30 minutes: the same render. Omitted: each call renders."}`

const renderIDInput = `"render_id":{"type":"string","pattern":"^task_[a-z2-7]{26}$","description":"From the render call; equals its task id."}`

const resultOutput = `"result_resource_uri":{"type":"string"},"output_format":{"type":"string"},"duration_seconds":{"type":"number"},
"width":{"type":"integer"},"height":{"type":"integer"},"watermark_applied":{"type":"boolean"}`

const pollOutput = `"poll_after_ms":{"type":"integer"}`

const pendingSchema = `{"type":"object","additionalProperties":false,"required":["next_step","tool","arguments","reason"],"properties":{
"next_step":{"type":"string"},"tool":{"type":"string"},"arguments":{"type":"object","description":"To send as they are."},
"reason":{"type":"string","enum":["capability_not_negotiated","approval_requires_human","undecided"]}}}`

// tools lists the tools in their order.
func (t *translator) tools() []contract.Tool {
	no := false
	tool := func(name, title, description string, a mcp.ToolAnnotations, input, required, output, outRequired string, errors ...render.Code) *mcp.Tool {
		a.OpenWorldHint = &no
		if !a.ReadOnlyHint {
			a.DestructiveHint = &no
		}
		return &mcp.Tool{
			Name: name, Title: title, Description: description, Annotations: &a,
			InputSchema: contract.Schema(input, required), OutputSchema: contract.Schema(output, outRequired),
			Meta: mcp.Meta{
				namespace + "/errors":    errors,
				namespace + "/lifecycle": contract.Stable(),
			},
		}
	}
	as := func(native string, tool *mcp.Tool, args func(json.RawMessage) (json.RawMessage, error), result resultFunc) contract.Tool {
		return contract.Tool{Tool: tool, As: native, Arguments: args, Result: result.translate}
	}
	out := []contract.Tool{
		as(contract.ToolRender, tool(ToolRender, "Render a video",
			"Converts, resizes or watermarks an uploaded video. Use it when the user wants a video file made from a source that was uploaded to POST /v1/assets. "+
				"A render takes 1 to 10 minutes. The call may answer with a task; without tasks it answers at once with a render_id to poll.\n"+
				"A watermarked render pauses until its preview is approved, unless require_watermark_approval is false.\n"+
				"Set require_watermark_approval to false only when the user asked to skip the preview.\n"+
				"Send an idempotency_key with every call that may be repeated; repeat an unanswered call with the same key and arguments.\n"+
				"Check isError in the result of a completed task: completed says delivered, not succeeded.\n"+
				`Example: {"source_asset_id":"`+exampleAsset+`","watermark":{"mode":"text","text":"Draft"},"idempotency_key":"job-7"}`,
			mcp.ToolAnnotations{},
			renderInput, "source_asset_id",
			`"render_id":{"type":"string"},"state":{"type":"string","enum":["queued","rendering","awaiting_watermark_approval","completed"],"description":"Without a task."},
"terminal":{"type":"boolean","description":"Without a task."},`+pollOutput+`,"follow_up":`+contract.FollowUpSchema+`,`+resultOutput, "render_id",
			render.CodeInvalidField, render.CodeSourceNotFound, render.CodeAssetNotReady, render.CodeUnsupportedCodec, render.CodeTextNotRenderable,
			render.CodeIdempotencyKeyReused, codeQuotaExceeded, codeRateLimited, render.CodeWatermarkRejected, render.CodeWatermarkApprovalTimeout, render.CodeRenderFailed),
			t.renderArguments, t.renderResult),
		as(contract.ToolStatus, tool(ToolStatus, "Get a render's status",
			"Fallback that mirrors tasks/get for clients without tasks: state, progress and, at the end, the video or the error of a render. "+
				"Use it with the render_id of a render call. Answers in milliseconds; renders take 1 to 10 minutes. Repeating it is safe.\n"+
				"Wait poll_after_ms between calls.\n"+
				"When state is awaiting_watermark_approval, show the preview image to the user before deciding.\n"+
				"A failed render is a successful call: read error.\n"+
				`Example: {"render_id":"`+exampleID+`"}`,
			mcp.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true},
			renderIDInput, "render_id",
			`"render_id":{"type":"string"},"state":{"type":"string","enum":["queued","rendering","awaiting_watermark_approval","completed","failed","cancelled"]},
"terminal":{"type":"boolean"},"terminal_states":{"type":"array","items":{"type":"string"}},"status_message":{"type":"string"},
"progress":{"type":"number","minimum":0,"maximum":1},`+pollOutput+`,"expires_at":{"type":"string","format":"date-time"},
"preview_resource_uri":{"type":"string"},"approval_expires_at":{"type":"string","format":"date-time"},"approval_url":{"type":"string"},
"pending_input":`+pendingSchema+`,`+resultOutput+`,"error":`+contract.EnvelopeSchema,
			"render_id state terminal terminal_states status_message expires_at",
			render.CodeInvalidField, render.CodeRenderNotFound),
			renderIDArguments, t.statusResult),
		as(contract.ToolApprove, tool(ToolApprove, "Approve or reject a watermark",
			"Fallback that mirrors tasks/update for clients that were sent no input request: decides on the watermark preview of a paused render. "+
				"Use it when a status says awaiting_watermark_approval. Answers in milliseconds; the render then goes on for 1 to 10 minutes.\n"+
				"Decide only as the user decided after seeing the preview.\n"+
				"Rejecting ends the render.\n"+
				"An undecided render ends after 30 minutes.\n"+
				"The first decision stands: the same again succeeds, the opposite is approval_already_recorded.\n"+
				`Example: {"render_id":"`+exampleID+`","approved":true}`,
			mcp.ToolAnnotations{IdempotentHint: true},
			renderIDInput+`,"approved":{"type":"boolean","description":"true renders the video, false ends the render."},
"feedback":{"type":"string","maxLength":500,"description":"Kept with the decision. Omitted: none."}`, "render_id approved",
			`"render_id":{"type":"string"},"decision":{"type":"string","enum":["approved","rejected"]},
"state":{"type":"string","enum":["queued","rendering","completed","failed","cancelled"]},`+pollOutput+`,"follow_up":`+contract.FollowUpSchema,
			"render_id decision state follow_up",
			render.CodeInvalidField, render.CodeRenderNotFound, render.CodeApprovalAlreadyRecorded, render.CodeApprovalNotPending, render.CodeApprovalRequiresHuman),
			approveArguments, t.approveResult),
		as(contract.ToolCancel, tool(ToolCancel, "Cancel a render",
			"Fallback that mirrors tasks/cancel: ends a render that the user no longer wants. Answers in milliseconds. Repeating it is safe, also after the end.\n"+
				"A cancelled render cannot be resumed; submit it again.\n"+
				`Example: {"render_id":"`+exampleID+`"}`,
			mcp.ToolAnnotations{IdempotentHint: true},
			renderIDInput, "render_id",
			`"render_id":{"type":"string"},"acknowledged":{"type":"boolean"},"state":{"type":"string","enum":["cancelling","completed","failed","cancelled"]}`,
			"render_id acknowledged state",
			render.CodeInvalidField, render.CodeRenderNotFound),
			renderIDArguments, t.cancelResult),
	}
	out[0].Meta[namespace+"/duration"] = duration{TypicalSeconds: [2]int{60, 600}, RunsAs: "task"}
	return out
}

// duration tells how long a tool usually takes.
type duration struct {
	TypicalSeconds [2]int `json:"typical_seconds"`
	RunsAs         string `json:"runs_as"`
}
