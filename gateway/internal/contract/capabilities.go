package contract

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

//go:embed guide.md
var guide string

// summary is the first thing that an agent reads.
const summary = "Renders uploaded videos on a farm: another container, resolution or quality, with or without a watermark that somebody approves first."

// instructions repeat what the tools say: some clients never show them.
const instructions = summary + "\n" +
	"Upload the source with POST /v1/assets, then call " + ToolRender + " with the asset URI that the upload returned.\n" +
	"Renders take 1 to 10 minutes: poll the task, or " + ToolStatus + " when the answer was status accepted.\n" +
	"Show the watermark preview to the user and decide only as the user decided.\n" +
	"Read isError in the result of a completed task: completed says delivered, not succeeded.\n" +
	"After an error, make the call in its repair.\n" +
	"Limits, approvals and every error code: " + ToolCapabilities + "."

func does() []string {
	return []string{
		"Renders an uploaded video to mp4 or mov (H.264 and AAC) or webm (VP9 and Opus), all as browsers play them, fitted into 720p, 1080p or 4k, as draft, standard or high quality.",
		"Draws a text or an image watermark and pauses for the approval of a preview.",
		"Reports progress, can be cancelled, and survives restarts of every part.",
		"Keeps a finished video for 7 days.",
	}
}

func doesNot() []string {
	return []string{
		"It does not fetch URLs or read paths: upload first.",
		"It does not cut, join, caption, generate or stream video.",
		"It does not list renders: keep the render_id.",
		"It does not decide on a watermark for the user.",
	}
}

type specTarget struct {
	Revisions  []string `json:"revisions"`
	Extensions []string `json:"extensions"`
}

type serverInfo struct {
	Name        string     `json:"name"`
	Version     string     `json:"version"`
	Fingerprint string     `json:"fingerprint"`
	Transport   string     `json:"transport"`
	SpecTarget  specTarget `json:"spec_target"`
	Summary     string     `json:"summary"`
}

type capabilityError struct {
	Code      render.Code    `json:"code"`
	Temporary bool           `json:"temporary"`
	Carrier   render.Carrier `json:"carrier"`
	Meaning   string         `json:"meaning"`
}

// Capabilities is vidforge://capabilities. The summary is a subset of the
// full one.
type Capabilities struct {
	Server        serverInfo `json:"server"`
	Does          []string   `json:"does"`
	DoesNot       []string   `json:"does_not"`
	ErrorCarriers struct {
		ToolErrors       string `json:"tool_errors"`
		NonToolRPCErrors string `json:"non_tool_rpc_errors"`
	} `json:"error_carriers"`
	TaskSemantics struct {
		Note            string `json:"note"`
		TaskTTLMS       int64  `json:"task_ttl_ms"`
		ResultRetention string `json:"result_retention"`
	} `json:"task_semantics"`
	Approval struct {
		Policy   string   `json:"policy"`
		WindowMS int64    `json:"window_ms"`
		Rules    []string `json:"rules"`
	} `json:"approval"`
	Limits struct {
		Limits
		MaxWatermarkText    int   `json:"max_watermark_text_characters"`
		MaxNote             int   `json:"max_note_characters"`
		MaxIdempotencyKey   int   `json:"max_idempotency_key_characters"`
		IdempotencyWindowMS int64 `json:"idempotency_window_ms"`
		MaxInlineVideoBytes int64 `json:"max_inline_video_bytes"`
		DeprecationMonths   int   `json:"deprecation_window_months"`
	} `json:"limits"`
	RequiredScopes map[string][]string `json:"required_scopes"`
	Negotiated     *negotiated         `json:"negotiated_capabilities,omitempty"`
	Covers         []string            `json:"covers,omitempty"`
	Errors         []capabilityError   `json:"errors,omitempty"`
}

type negotiated struct {
	Server    map[string]any    `json:"server"`
	Client    map[string]any    `json:"client"`
	Fallbacks map[string]string `json:"fallbacks"`
}

func (s *Service) capabilities(c mcptask.Caller, full bool) Capabilities {
	d := Capabilities{
		Server: serverInfo{
			Name: s.dialect.Name, Version: s.cfg.Version, Fingerprint: s.fingerprint, Transport: s.transport(), Summary: summary,
			SpecTarget: specTarget{
				Revisions:  []string{mcptask.Version20260728, mcptask.Version20251125, mcptask.Version20250618, mcptask.Version20250326},
				Extensions: []string{mcptask.ExtensionID},
			},
		},
		Does: s.does(), DoesNot: s.doesNot(), RequiredScopes: scopesByCall(),
	}
	d.ErrorCarriers.ToolErrors = "structuredContent of a tools/call result with isError true: code, message, temporary, retry_after_ms, request_id, fingerprint, details, repair. details.value is there only for handles of this server and misplaced enum values; any other value is left out, since it could be a secret. MCP 2025-03-26 has no structuredContent: there the second text block is the same JSON"
	d.ErrorCarriers.NonToolRPCErrors = "error.data of a JSON-RPC error: the same with machine_code and human_message"
	d.TaskSemantics.Note = "A completed task was delivered; read isError in its result. failed is only for faults of the server. Rejecting a watermark completes the task with isError true. A closed connection never ends a render; tasks/cancel and " + ToolCancel + " do."
	d.TaskSemantics.TaskTTLMS = render.TaskRetention.Milliseconds()
	d.TaskSemantics.ResultRetention = "A task answers for 24 hours after its end, " + ToolStatus + ", resources and downloads for 7 days."
	d.Approval.Policy, d.Approval.WindowMS = apikey.PolicyAgent, render.ApprovalWindow.Milliseconds()
	d.Approval.Rules = []string{
		"The first decision stands.",
		"Rejecting ends the render.",
		"Nobody decides for 30 minutes: watermark_approval_timeout.",
		"Declining or cancelling an elicitation is no decision.",
	}
	if r, ok := c.Principal.(auth.Request); ok && s.cfg.Limits != nil {
		d.Limits.Limits = s.cfg.Limits(r.Tenant)
	}
	if s.humanDecides(c) {
		d.Approval.Policy = apikey.PolicyHuman
		d.Approval.Rules = append(d.Approval.Rules, "Only a person who signs in at approval_url decides: no form is sent, and the tool answers approval_requires_human.")
	}
	d.Limits.MaxWatermarkText, d.Limits.MaxNote, d.Limits.MaxIdempotencyKey = render.MaxWatermarkText, maxNote, render.MaxIdempotencyKey
	d.Limits.IdempotencyWindowMS, d.Limits.MaxInlineVideoBytes = s.dialect.IdempotencyWindow.Milliseconds(), maxInlineVideo
	d.Limits.DeprecationMonths = deprecationMonths
	if !full {
		return d
	}
	d.Negotiated = s.negotiated(c)
	d.Covers = []string{"tools", "resources", "resource_templates", "completions", "subscriptions", "extensions", "capabilities", "instructions", "errors"}
	for _, e := range render.Catalogue() {
		d.Errors = append(d.Errors, capabilityError{e.Code, e.Temporary, e.Carrier, e.Meaning})
	}
	return d
}

// humanDecides reports whether the caller's renders wait for a person.
func (s *Service) humanDecides(c mcptask.Caller) bool {
	r, _ := c.Principal.(auth.Request)
	return s.cfg.HumanApproval != nil && s.cfg.HumanApproval(r.Tenant)
}

// With returns a copy whose prose went through text.
func (n *negotiated) With(text func(string) string) *negotiated {
	out := *n
	out.Fallbacks = map[string]string{}
	for k, v := range n.Fallbacks {
		out.Fallbacks[k] = text(v)
	}
	return &out
}

func (s *Service) negotiated(c mcptask.Caller) *negotiated {
	client := map[string]any{"tasks": c.Tasks(), "elicitation": []string{}, "protocol_version": c.ProtocolVersion}
	if caps := c.Capabilities; caps != nil && caps.Elicitation != nil {
		modes := []string{}
		if caps.Elicitation.Form != nil || caps.Elicitation.URL == nil {
			modes = append(modes, "form")
		}
		if caps.Elicitation.URL != nil {
			modes = append(modes, "url")
		}
		client["elicitation"] = modes
	}
	undecided := "decide with " + ToolApprove + " or on approval_url."
	if s.humanDecides(c) {
		undecided = "a person decides on approval_url; poll " + ToolStatus + "."
	}
	return &negotiated{
		Server: map[string]any{"tools": true, "resources": []string{"subscribe", "listChanged"}, "completions": s.dialect.Complete, "extensions": []string{mcptask.ExtensionID}},
		Client: client,
		Fallbacks: map[string]string{
			"no_tasks":               "The render tool answers status accepted; poll " + ToolStatus + ", end with " + ToolCancel + ".",
			"no_elicitation":         "The task is input_required with no input requests; " + undecided,
			"approval_never_arrives": "After 30 minutes the render ends with watermark_approval_timeout.",
			"no_resource_subscribe":  "Poll " + ToolStatus + "; the URIs are read when it names them.",
		},
	}
}

// scopesByCall tells which scopes a call needs; any one of them is enough.
func scopesByCall() map[string][]string {
	m := map[string][]string{
		"resources/read": requiredScopes(ToolStatus), "tasks/get": requiredScopes(ToolStatus),
		"tasks/update": requiredScopes(ToolApprove), "tasks/cancel": requiredScopes(ToolCancel),
		"POST /v1/assets": {apikey.ScopeAssetWrite}, "DELETE /v1/assets/{id}": {apikey.ScopeAssetWrite},
	}
	for _, t := range toolOrder() {
		if need := requiredScopes(t); need != nil {
			m[t] = need
		}
	}
	return m
}

func detailArgument(raw json.RawMessage) (full bool, err error) {
	a := parseArguments(raw, "detail")
	detail := a.str("detail")
	switch {
	case *a.err != nil:
		return false, *a.err
	case detail == nil, *detail == "summary":
		return false, nil
	case *detail == "full":
		return true, nil
	default:
		return false, render.InvalidField("detail", Clip(*detail, 64), "detail must be one of summary, full.")
	}
}

func (s *Service) capabilitiesTool(_ context.Context, in *call) (*mcp.CallToolResult, error) {
	full, err := detailArgument(in.raw)
	if err != nil {
		return nil, err
	}
	return Structured(s.capabilities(in.caller, full))
}

func renderSchema() json.RawMessage {
	for _, t := range toolSpecs() {
		if t.name == ToolRender {
			return Schema(t.input, t.required)
		}
	}
	return nil
}

// makeFingerprint hashes everything that an agent can plan against, without
// what differs between tenants or deployments.
func (s *Service) makeFingerprint() (string, error) {
	bare := Service{cfg: Config{Version: s.cfg.Version}, dialect: s.dialect}
	if s.cfg.Local != nil { // without this user's folders
		bare.cfg.Local = &Local{}
		bare.dialect = bare.cfg.Local.dialect()
	}
	d, doc := bare.dialect, bare.capabilities(mcptask.Caller{}, true)
	surface := map[string]any{
		"templates": d.Templates, "instructions": d.Instructions, "input_requests": []string{keyForm, keyURL},
	}
	if d.Complete {
		surface["completions"] = []string{templateVideo + " ext", templateAsset + " asset_id"}
	}
	for _, t := range d.Tools {
		surface["tool "+t.Name] = t.Tool
	}
	for _, r := range d.Resources {
		text, err := r.Read(doc)
		if err != nil {
			return "", fmt.Errorf("encode %s: %w", r.URI, err)
		}
		surface["resource "+r.URI] = []any{r.Resource, text}
	}
	raw, err := json.Marshal(surface)
	if err != nil {
		return "", fmt.Errorf("encode surface: %w", err)
	}
	// Through a generic value, so that members are sorted and the hash does
	// not depend on the order in which schemas are written.
	var canonical any
	if err := json.Unmarshal(raw, &canonical); err != nil {
		return "", fmt.Errorf("decode surface: %w", err)
	}
	if raw, err = json.Marshal(canonical); err != nil {
		return "", fmt.Errorf("encode surface: %w", err)
	}
	sum := sha256.Sum256(raw)
	return d.Name + "@" + s.cfg.Version + "+" + hex.EncodeToString(sum[:])[:7], nil
}
