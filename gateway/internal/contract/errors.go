package contract

import (
	"encoding/json"
	"fmt"
	"maps"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/pkg/render"
)

// NextStep is the one next call that an error or an accepted call names. The
// arguments can be sent as they are.
type NextStep struct {
	// Step is a stable label.
	Step string `json:"next_step"`
	// Tool or ResourceURI is what to call or read.
	Tool        string         `json:"tool,omitempty"`
	ResourceURI string         `json:"resource_uri,omitempty"`
	Arguments   map[string]any `json:"arguments"`
	// Alternative is prose: what only the user can know.
	Alternative string `json:"alternative,omitempty"`
}

func (n *NextStep) String() string {
	if n == nil {
		return ""
	}
	args, err := json.Marshal(n.Arguments)
	if err != nil {
		return ""
	}
	s := fmt.Sprintf("Next: call %s with %s.", n.Tool, args)
	if n.ResourceURI != "" {
		s = fmt.Sprintf("Next: read %s.", n.ResourceURI)
	}
	if n.Alternative != "" {
		s += " Or: " + n.Alternative
	}
	return s
}

// Envelope is an error as clients see it, in a tool result and, with code and
// message renamed, in the data of a JSON-RPC error.
type Envelope struct {
	Code               render.Code    `json:"code,omitempty"`
	Message            string         `json:"message,omitempty"`
	MachineCode        render.Code    `json:"machine_code,omitempty"`
	HumanMessage       string         `json:"human_message,omitempty"`
	Temporary          bool           `json:"temporary"`
	RetryAfterMS       *int64         `json:"retry_after_ms"`
	RequestID          string         `json:"request_id"`
	Fingerprint        string         `json:"fingerprint"`
	Details            map[string]any `json:"details,omitempty"`
	Repair             *NextStep      `json:"repair,omitempty"`
	RateLimitRemaining *int           `json:"rate_limit_remaining,omitempty"`
	ResourceURI        string         `json:"resource_uri,omitempty"`
}

// waits are the delays of temporary errors whose cause names none. A code that
// is not here has no known delay.
func defaultWait(c render.Code) time.Duration {
	switch c {
	case render.CodeAssetNotReady, render.CodeResourceNotReady:
		return 2 * time.Second
	case render.CodeRateLimited:
		return time.Second
	case render.CodeRenderQuotaExceeded:
		return 10 * time.Second
	case render.CodeUnavailable:
		return 5 * time.Second
	default:
		return 0
	}
}

// NewEnvelope is the one way from an error to what a client sees.
func NewEnvelope(e *render.Error, requestID, fingerprint string, repair *NextStep) Envelope {
	env := Envelope{
		Code: e.Code, Message: e.Message, Temporary: e.Temporary,
		RequestID: requestID, Fingerprint: fingerprint, Repair: repair,
	}
	if wait := e.RetryAfter; e.Temporary {
		if wait <= 0 {
			wait = defaultWait(e.Code)
		}
		if wait > 0 {
			ms := max(1, wait.Milliseconds())
			env.RetryAfterMS = &ms
		}
	}
	if d := e.Details; d != nil {
		m := map[string]any{}
		maps.Copy(m, d.Extra)
		if len(d.Fields) > 0 {
			m["fields"] = d.Fields
		} else if d.Field != "" {
			m["field"] = d.Field
		}
		if d.Value != "" {
			m["value"] = d.Value
		}
		if d.Reason != "" {
			m["reason"] = d.Reason
		}
		if len(m) > 0 {
			env.Details = m
		}
	}
	if e.Code == render.CodeRateLimited {
		none := 0
		env.RateLimitRemaining = &none
	}
	return env
}

// text is what an agent reads that sees content only.
func (e Envelope) text() string {
	if e.Repair == nil {
		return e.Message
	}
	return e.Message + " " + e.Repair.String()
}

// result is the tool error.
func (e Envelope) result() *mcp.CallToolResult {
	return &mcp.CallToolResult{IsError: true, StructuredContent: e, Content: []mcp.Content{&mcp.TextContent{Text: e.text()}}}
}

// rpcCode is the JSON-RPC error code of an error outside tools/call.
func rpcCode(c render.Code) int64 {
	switch {
	case c == render.CodeRateLimited:
		return 42900
	case render.Describe(c).RPCCode != 0:
		return int64(render.Describe(c).RPCCode)
	case render.Describe(c).Temporary:
		return jsonrpc.CodeInternalError
	default:
		return jsonrpc.CodeInvalidParams
	}
}

// rpcError is the JSON-RPC error.
func (e Envelope) rpcError() *jsonrpc.Error {
	code, message := rpcCode(e.Code), e.text()
	e.MachineCode, e.HumanMessage, e.Code, e.Message = e.Code, e.Message, "", ""
	data, err := json.Marshal(e)
	if err != nil { // only values that came from JSON are in it
		data = nil
	}
	return &jsonrpc.Error{Code: code, Message: message, Data: data}
}
