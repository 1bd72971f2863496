package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/render"
)

// olderSession is an older client's session, on the wire.
type olderSession struct {
	*bench
	init    json.RawMessage // the answer to initialize
	headers []string
}

// connect opens a session of an older client with these capabilities.
func (b *bench) connect(version, caps string) *olderSession {
	b.Helper()
	s := &olderSession{bench: b, headers: []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream"}}
	res, raw := b.do("POST", b.path, strings.NewReader(fmt.Sprintf(
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":%s,"clientInfo":{"name":"old","version":"1"}}}`, version, caps)), s.headers...)
	if res.StatusCode != 200 || !strings.Contains(string(raw), fmt.Sprintf(`"protocolVersion":%q`, version)) {
		b.Fatalf("initialize: %d %s", res.StatusCode, raw)
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			raw = []byte(data)
		}
	}
	s.init = decode[answer](b, raw).Result
	s.headers = append(s.headers, "Mcp-Session-Id", res.Header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", version)
	b.do("POST", b.path, strings.NewReader(`{"jsonrpc":"2.0","method":"notifications/initialized"}`), s.headers...)
	return s
}

// request sends a request of the session. params is an object.
func (s *olderSession) request(method, params string) answer {
	s.Helper()
	if params == "" {
		params = "{}"
	}
	return s.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":2,"method":%q,"params":%s}`, method, params), s.headers...)
}

// TestOlderErrors: clients of MCP 2025-03-26 get the envelope as a second text.
func TestOlderErrors(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/mcp", videorender.Path} {
		b := newBench(t).at(path)
		tool := map[string]string{"/mcp": "vidforge_get_render_status", videorender.Path: "video_get_render_status"}[path]
		for _, version := range versions()[1:] {
			r := b.connect(version, `{}`).call(tool, fmt.Sprintf(`{"render_id":%q}`, render.NewID()))
			raw := r.Structured
			if version == "2025-03-26" {
				if raw != nil || len(r.Content) != 2 {
					t.Fatalf("%s: %+v", version, r)
				}
				text, _ := r.Content[1]["text"].(string)
				raw = json.RawMessage(text)
			} else if len(r.Content) != 1 {
				t.Errorf("%s: %+v", version, r.Content)
			}
			if !r.IsError {
				t.Errorf("%s: %+v", version, r)
			}
			b.wantEnvelope(raw, render.CodeRenderNotFound, true)
		}
	}
}

// call calls a tool in the session.
func (s *olderSession) call(tool, args string) toolResult {
	s.Helper()
	a := s.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))
	if a.Error != nil {
		s.Fatalf("%s: %s", tool, a.Raw)
	}
	return decode[toolResult](s, a.Result)
}
