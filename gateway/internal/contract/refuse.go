package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"github.com/vidforge/vidforge/gateway/internal/auth"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// maxBodyBytes bounds the body of a request to an MCP endpoint.
const maxBodyBytes = 1 << 20

// TooMany is the error of one more than a credential may have at once. wait is
// when there may be room, by itself, at the latest.
func TooMany(what string, limit int, wait time.Duration) *render.Error {
	e := render.Errorf(render.CodeRateLimited, render.BlameCaller,
		"This credential has %d %s, which is all that it may have at once. End one, or wait, and send the request again.", limit, what)
	e.RetryAfter = wait
	e.Details = &render.Details{Reason: fmt.Sprintf("%d %s", limit, what), Extra: map[string]any{"limit": what, "max": limit}}
	return e
}

// CheckBody refuses a request to an MCP endpoint whose body is announced to be
// too long. One that announces nothing is cut off as it is read.
func CheckBody(r *http.Request) error {
	if r.ContentLength <= maxBodyBytes {
		return nil
	}
	e := render.Errorf(render.CodeSourceTooLarge, render.BlameCaller,
		"The request's body exceeds %d bytes. Send less; files are uploaded to POST /v1/assets.", maxBodyBytes)
	e.Details = &render.Details{Field: "body", Reason: fmt.Sprintf("more than %d bytes", maxBodyBytes), Extra: map[string]any{"limit_bytes": maxBodyBytes}}
	return e
}

// Refuse answers a request to an MCP endpoint that nobody will look at, such as
// one too many, with what its sender reads: a tool call gets the envelope as
// its result, any other request as a JSON-RPC error. It reports false, and has
// answered nothing, when the request is neither.
func (s *Service) Refuse(w http.ResponseWriter, r *http.Request, err error) bool {
	if r.Method != http.MethodPost {
		return false
	}
	body, rerr := io.ReadAll(io.LimitReader(r.Body, maxBodyBytes))
	var m struct {
		ID     json.RawMessage `json:"id"`
		Method string          `json:"method"`
		Params struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"params"`
	}
	if rerr != nil || json.Unmarshal(body, &m) != nil || m.Method == "" || !isRequestID(m.ID) {
		return false
	}
	req, _ := auth.RequestFrom(r.Context())
	f := failure{}
	if t, ok := s.dialect.tool(m.Params.Name); ok && m.Method == "tools/call" {
		if len(m.Params.Arguments) == 0 {
			m.Params.Arguments = json.RawMessage("{}")
		}
		if raw, err := t.Arguments(m.Params.Arguments); err == nil {
			f.tool, f.raw = t.As, raw
		}
	}
	env := s.envelopeFor(r.Context(), req.ID, render.AsError(err), f)
	answer := map[string]any{"jsonrpc": "2.0", "id": m.ID}
	if m.Method == "tools/call" {
		answer["result"] = refusedCall(env, r.Header.Get("Mcp-Protocol-Version"))
	} else {
		e := env.rpcError()
		answer["error"] = jsonrpc.Error{Code: e.Code, Message: e.Message, Data: e.Data}
	}
	out, err := encode(answer)
	if err != nil {
		return false
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	if env.RetryAfterMS != nil {
		h.Set("Retry-After", strconv.FormatInt((*env.RetryAfterMS+999)/1000, 10))
	}
	// Not 429: clients take any other status than 200 for a broken connection
	// and never show what is in the body.
	if _, err := w.Write(out); err != nil {
		s.cfg.Logger.DebugContext(r.Context(), "write refusal", "error", err)
	}
	return true
}

// isRequestID reports whether an id is one of a request.
func isRequestID(id json.RawMessage) bool {
	id = bytes.TrimSpace(id)
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// refusedCall is the tool error as the version of the request spells it. A
// request without a version is of MCP 2025-03-26, or of a client that says the
// version only once.
func refusedCall(env Envelope, version string) map[string]any {
	out := map[string]any{"isError": true, "content": []map[string]any{{"type": "text", "text": env.text()}}}
	if version > mcptask.Version20250326 {
		out["structuredContent"] = env
	}
	if version >= mcptask.Version20260728 {
		out["resultType"] = "complete"
	}
	return out
}
