package videorender

import (
	"strings"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/render"
)

// summary is the first thing that an agent reads.
const summary = "Renders uploaded videos: another container or resolution, with or without a watermark that somebody approves first."

// document is video://capabilities.
type document struct {
	contract.Capabilities
	LongRunning   longRunning `json:"long_running"`
	Prerequisites []string    `json:"prerequisites"`
}

// longRunning tells what is not answered at once.
type longRunning struct {
	duration
	Tool            string `json:"tool"`
	WithoutTasks    string `json:"without_tasks"`
	TaskTTLMS       int64  `json:"task_ttl_ms"`
	ResultRetention string `json:"result_retention"`
}

// document puts the capabilities into the words of this contract.
func (t *translator) document(c contract.Capabilities) document {
	c.Server.Summary = summary
	c.Does = []string{
		"Renders an uploaded video to mp4, mov or webm, fitted into 720p, 1080p or 4k.",
		"Draws a text or an image watermark and pauses for the approval of a preview.",
		"Reports progress, can be cancelled, and survives restarts of every part.",
		"Keeps a finished video for 7 days.",
	}
	c.TaskSemantics.Note, c.TaskSemantics.ResultRetention = t.text(c.TaskSemantics.Note), t.text(c.TaskSemantics.ResultRetention)
	scopes := map[string][]string{}
	for call, need := range c.RequiredScopes {
		if ours, ok := t.toolNames[call]; ok {
			call = ours
		} else if isNative(call) {
			continue
		}
		scopes[call] = need
	}
	c.RequiredScopes = scopes
	if c.Negotiated != nil {
		c.Negotiated = c.Negotiated.With(t.text)
	}
	c.Covers = []string{"tools", "resources", "resource_templates", "subscriptions", "extensions", "capabilities", "instructions", "errors"}
	all := c.Errors
	c.Errors = nil
	for _, e := range all {
		switch e.Code {
		case render.CodeRenderQuotaExceeded:
			e.Code, e.Meaning = codeQuotaExceeded, "The render minutes of this tenant are used up."
		case codeRateLimited:
			e.Meaning = "Too many renders of this tenant are under way, or too many requests came in a short time."
		}
		c.Errors = append(c.Errors, e)
	}
	return document{
		Capabilities: c,
		LongRunning: longRunning{
			duration: duration{TypicalSeconds: [2]int{60, 600}, RunsAs: "task"}, Tool: ToolRender,
			WithoutTasks: "The call answers at once with a render_id; poll " + ToolStatus + ".",
			TaskTTLMS:    c.TaskSemantics.TaskTTLMS, ResultRetention: c.TaskSemantics.ResultRetention,
		},
		Prerequisites: []string{
			"The source is uploaded: POST /v1/assets returns vidforge://assets/a_x, which is the source_asset_id as_x.",
			"An image watermark is uploaded the same way.",
			"Somebody can look at a watermark preview and decide within 30 minutes, unless the user asked to skip that.",
		},
	}
}

// isNative reports a tool that this contract does not have.
func isNative(call string) bool { return strings.HasPrefix(call, nativeToolPrefix) }
