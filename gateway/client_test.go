package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
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

// call calls a tool in the session.
func (s *olderSession) call(tool, args string) toolResult {
	s.Helper()
	a := s.request("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))
	if a.Error != nil {
		s.Fatalf("%s: %s", tool, a.Raw)
	}
	return decode[toolResult](s, a.Result)
}
