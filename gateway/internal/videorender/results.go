package videorender

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/contract"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// stateCompleted is what package contract calls succeeded.
const stateCompleted = "completed"

// native is what the tools of package contract answer, as far as this contract
// has it.
type native struct {
	RenderID            string             `json:"render_id"`
	Status              string             `json:"status"`
	State               string             `json:"state"`
	Terminal            bool               `json:"terminal"`
	StatusMessage       string             `json:"status_message"`
	ExpiresAt           string             `json:"expires_at"`
	PollAfterMS         int64              `json:"poll_after_ms"`
	Progress            *float64           `json:"progress"`
	WatermarkPreviewURI string             `json:"watermark_preview_uri"`
	ApprovalExpiresAt   string             `json:"approval_expires_at"`
	ApprovalURL         string             `json:"approval_url"`
	FollowUp            *contract.NextStep `json:"follow_up"`
	VideoURI            string             `json:"video_uri"`
	DurationSeconds     *float64           `json:"duration_seconds"`
	Width               int                `json:"width"`
	Height              int                `json:"height"`
	WatermarkApplied    *bool              `json:"watermark_applied"`
	Error               json.RawMessage    `json:"error"`
	Decision            string             `json:"decision"`
	Acknowledged        bool               `json:"acknowledged"`
}

// result is a finished video. All members are empty before.
type result struct {
	ResultResourceURI string   `json:"result_resource_uri,omitempty"`
	OutputFormat      string   `json:"output_format,omitempty"`
	DurationSeconds   *float64 `json:"duration_seconds,omitempty"`
	Width             int      `json:"width,omitempty"`
	Height            int      `json:"height,omitempty"`
	WatermarkApplied  *bool    `json:"watermark_applied,omitempty"`
}

func (t *translator) result(n native) result {
	if n.VideoURI == "" {
		return result{}
	}
	return result{
		ResultResourceURI: t.text(n.VideoURI), OutputFormat: strings.TrimPrefix(path.Ext(n.VideoURI), "."),
		DurationSeconds: n.DurationSeconds, Width: n.Width, Height: n.Height, WatermarkApplied: n.WatermarkApplied,
	}
}

// resultFunc translates what a tool of package contract answered.
type resultFunc func(c mcptask.Caller, n native) any

// translate makes the whole result: the structured content, the same as text,
// and the further blocks.
func (f resultFunc) translate(c mcptask.Caller, res *mcp.CallToolResult) (*mcp.CallToolResult, error) {
	raw, err := json.Marshal(res.StructuredContent)
	if err != nil {
		return nil, fmt.Errorf("encode result: %w", err)
	}
	var n native
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, fmt.Errorf("decode result: %w", err)
	}
	var more []mcp.Content
	for _, block := range res.Content {
		switch b := block.(type) {
		case *mcp.ResourceLink:
			link := *b
			link.URI = videoPattern.ReplaceAllString(b.URI, "video://renders/$1/output")
			more = append(more, &link)
		case *mcp.ImageContent:
			more = append(more, b)
		}
	}
	return contract.Structured(f(c, n), more...)
}

// state names a state.
func state(native string) string {
	if native == string(render.StateSucceeded) {
		return stateCompleted
	}
	return native
}

func (t *translator) renderResult(c mcptask.Caller, n native) any {
	out := struct {
		RenderID    string             `json:"render_id"`
		State       string             `json:"state,omitempty"`
		Terminal    *bool              `json:"terminal,omitempty"`
		PollAfterMS int64              `json:"poll_after_ms,omitempty"`
		FollowUp    *contract.NextStep `json:"follow_up,omitempty"`
		result
	}{RenderID: n.RenderID, PollAfterMS: n.PollAfterMS, FollowUp: t.next(n.FollowUp), result: t.result(n)}
	if !c.Tasks() {
		finished := n.VideoURI != ""
		out.State, out.Terminal = n.State, &finished
		if finished {
			out.State = stateCompleted
		}
	}
	return out
}

// pending says who has to do what before a paused render goes on.
type pending struct {
	Step      string         `json:"next_step"`
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
	Reason    string         `json:"reason"`
}

func (t *translator) pending(c mcptask.Caller, n native) *pending {
	if n.State != string(render.StateAwaitingApproval) {
		return nil
	}
	next := t.next(n.FollowUp)
	if next == nil {
		return nil
	}
	p := &pending{next.Step, next.Tool, next.Arguments, "undecided"}
	switch {
	case next.Tool == ToolStatus: // there is nothing to decide for this caller
		p.Reason = string(render.CodeApprovalRequiresHuman)
	case !elicitable(c):
		p.Reason = "capability_not_negotiated"
	}
	return p
}

// elicitable reports whether a caller negotiated what an input request needs.
func elicitable(c mcptask.Caller) bool {
	if c.Capabilities == nil || c.Capabilities.Elicitation == nil {
		return false
	}
	return c.ProtocolVersion < mcptask.Version20260728 || c.Tasks()
}

func (t *translator) statusResult(c mcptask.Caller, n native) any {
	return struct {
		RenderID           string          `json:"render_id"`
		State              string          `json:"state"`
		Terminal           bool            `json:"terminal"`
		TerminalStates     []string        `json:"terminal_states"`
		StatusMessage      string          `json:"status_message"`
		Progress           *float64        `json:"progress,omitempty"`
		PollAfterMS        int64           `json:"poll_after_ms,omitempty"`
		ExpiresAt          string          `json:"expires_at"`
		PreviewResourceURI string          `json:"preview_resource_uri,omitempty"`
		ApprovalExpiresAt  string          `json:"approval_expires_at,omitempty"`
		ApprovalURL        string          `json:"approval_url,omitempty"`
		PendingInput       *pending        `json:"pending_input,omitempty"`
		Error              json.RawMessage `json:"error,omitempty"`
		result
	}{
		RenderID: n.RenderID, State: state(n.State), Terminal: n.Terminal,
		TerminalStates: []string{stateCompleted, string(render.StateFailed), string(render.StateCancelled)},
		StatusMessage:  t.text(n.StatusMessage), Progress: n.Progress, PollAfterMS: n.PollAfterMS, ExpiresAt: n.ExpiresAt,
		PreviewResourceURI: t.text(n.WatermarkPreviewURI), ApprovalExpiresAt: n.ApprovalExpiresAt, ApprovalURL: n.ApprovalURL,
		PendingInput: t.pending(c, n), Error: n.Error, result: t.result(n),
	}
}

func (t *translator) approveResult(_ mcptask.Caller, n native) any {
	return struct {
		RenderID    string             `json:"render_id"`
		Decision    string             `json:"decision"`
		State       string             `json:"state"`
		PollAfterMS int64              `json:"poll_after_ms,omitempty"`
		FollowUp    *contract.NextStep `json:"follow_up"`
	}{n.RenderID, n.Decision, state(n.State), n.PollAfterMS, t.next(n.FollowUp)}
}

func (t *translator) cancelResult(_ mcptask.Caller, n native) any {
	return struct {
		RenderID     string `json:"render_id"`
		Acknowledged bool   `json:"acknowledged"`
		State        string `json:"state"`
	}{n.RenderID, n.Acknowledged, state(n.State)}
}
