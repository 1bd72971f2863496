package mcptask

import (
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"net/http"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/segmentio/encoding/json"
)

// message is a JSON-RPC request as far as this package needs it. It is parsed
// by the SDK's library under the SDK's rules, so that both read the same.
type message struct {
	id     jsonrpc.ID
	method string
	params stdjson.RawMessage
}

// params are those of tasks/* and subscriptions/listen that matter here.
type params struct {
	TaskID        string         `json:"taskId"`
	Meta          map[string]any `json:"_meta"`
	Notifications *struct {
		TaskIDs *[]string `json:"taskIds"`
	} `json:"notifications"`
}

// maxDepth bounds recursion. It is the SDK's.
const maxDepth = 1000

// parseMessage parses one request. Batches and responses are errors.
func parseMessage(body []byte) (message, error) {
	if tooDeep(body) {
		return message{}, errors.New("nested too deeply")
	}
	var wire struct {
		Version string             `json:"jsonrpc"`
		ID      any                `json:"id"`
		Method  string             `json:"method"`
		Params  stdjson.RawMessage `json:"params"`
	}
	rest, err := json.Parse(body, &wire, json.DontMatchCaseInsensitiveStructFields)
	if err != nil || len(strings.TrimSpace(string(rest))) > 0 {
		return message{}, errors.New("not one JSON object")
	}
	id, err := jsonrpc.MakeID(wire.ID)
	if err != nil || wire.Version != "2.0" || wire.Method == "" {
		return message{}, errors.New("not a JSON-RPC 2.0 request")
	}
	return message{id, wire.Method, wire.Params}, nil
}

func tooDeep(b []byte) bool {
	depth, inString, escaped := 0, false, false
	for _, c := range b {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped, inString = c == '\\', c != '"'
		case c == '"':
			inString = true
		case c == '{', c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return false
}

func (m message) parseParams() (params, error) {
	var p params
	if len(m.params) == 0 {
		return p, nil
	}
	if _, err := json.Parse(m.params, &p, json.DontMatchCaseInsensitiveStructFields); err != nil {
		return params{}, errors.New("invalid params")
	}
	return p, nil
}

// metaVersion is the version that the request names in _meta, or "".
func (m message) metaVersion() string {
	var p struct {
		Meta map[string]any `json:"_meta"`
	}
	if len(m.params) == 0 {
		return ""
	}
	if _, err := json.Parse(m.params, &p, json.DontMatchCaseInsensitiveStructFields); err != nil {
		return ""
	}
	v, _ := p.Meta[mcp.MetaKeyProtocolVersion].(string)
	return v
}

// caller reads the request's own declarations. ok is false for what the SDK
// refuses: it then shall.
func (m message) caller(r *http.Request, p params) (c Caller, ok bool) {
	v, _ := p.Meta[mcp.MetaKeyProtocolVersion].(string)
	if !m.id.IsValid() || m.method != r.Header.Get(methodHeader) || v != Version20260728 || v != r.Header.Get(versionHeader) {
		return c, false
	}
	if info, ok := p.Meta[mcp.MetaKeyClientInfo]; ok {
		var impl *mcp.Implementation
		if info == nil || remarshal(info, &impl) != nil {
			return c, false
		}
	}
	caps, ok := metaCapabilities(p.Meta)
	return Caller{Principal: r.Context().Value(principalKey{}), ProtocolVersion: v, Capabilities: caps, Meta: p.Meta}, ok
}

// metaCapabilities reads the client's capabilities as the SDK does, with roots
// as a pointer, which mcp.ClientCapabilities got wrong and keeps in RootsV2.
func metaCapabilities(meta map[string]any) (*mcp.ClientCapabilities, bool) {
	raw, ok := meta[mcp.MetaKeyClientCapabilities]
	if !ok || raw == nil {
		return nil, false
	}
	var v *struct {
		mcp.ClientCapabilities
		Roots *mcp.RootCapabilities `json:"roots,omitempty"` //nolint:staticcheck // deprecated, but clients still declare it
	}
	if err := remarshal(raw, &v); err != nil || v == nil {
		return nil, false
	}
	caps := v.ClientCapabilities
	if v.Roots != nil {
		caps.RootsV2, caps.Roots = v.Roots, *v.Roots //nolint:staticcheck // as above
	}
	return &caps, true
}

func remarshal(from, to any) error {
	b, err := stdjson.Marshal(from)
	if err != nil {
		return err //nolint:wrapcheck // only its presence matters
	}
	_, err = json.Parse(b, to, json.DontMatchCaseInsensitiveStructFields)
	return err //nolint:wrapcheck // as above
}

// normaliseHeaders checks the headers that mirror the body for what no body can
// heal, and decodes Mcp-Name, which the SDK compares as it stands. It returns
// what is wrong, or "".
// https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http#server-validation
func normaliseHeaders(hd http.Header) string {
	for _, k := range []string{versionHeader, methodHeader, nameHeader} {
		if len(hd[k]) > 1 {
			// Whoever routes by the one must not be told the other.
			return k + " is sent more than once"
		}
	}
	if len(hd[nameHeader]) == 0 {
		return ""
	}
	name, ok := decodeHeader(hd[nameHeader][0])
	if !ok {
		return "Mcp-Name contains invalid characters or invalid Base64"
	}
	hd[nameHeader][0] = name
	return ""
}

// decodeHeader decodes =?base64?…?=. Anything else must be printable ASCII.
func decodeHeader(v string) (string, bool) {
	if s, ok := strings.CutPrefix(v, "=?base64?"); ok {
		if s, ok = strings.CutSuffix(s, "?="); ok {
			b, err := base64.StdEncoding.DecodeString(s)
			return string(b), err == nil
		}
	}
	for i := range len(v) {
		if c := v[i]; c != '\t' && (c < 0x20 || c > 0x7e) {
			return "", false
		}
	}
	return v, true
}
