package gateway

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/render"
)

const modern = "2026-07-28"

// versions that are served, the newest first.
func versions() []string { return []string{modern, "2025-11-25", "2025-06-18", "2025-03-26"} }

// requester is a client of one version.
type requester func(method, params string) answer

// client speaks a version at the bench's endpoint.
func (b *bench) client(version string) requester {
	b.Helper()
	if version == modern {
		return func(method, params string) answer { return b.rpc(formCaps, method, params) }
	}
	return b.connect(version, `{"elicitation":{}}`).request
}

// eachVersion runs a test for every version at every endpoint.
func eachVersion(t *testing.T, test func(t *testing.T, b *bench, version string)) {
	t.Helper()
	for _, path := range []string{"/mcp", videorender.Path} {
		for _, version := range versions() {
			t.Run(strings.TrimPrefix(path, "/")+" "+version, func(t *testing.T) {
				t.Parallel()
				test(t, newBench(t).at(path), version)
			})
		}
	}
}

// TestListsOfEveryVersion: catalogs, their order, lifecycle, fingerprint and
// cache hints; resources that are always there can be read.
func TestListsOfEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, b *bench, version string) {
		ask := b.client(version)
		namespace := map[string]string{"/mcp": "com.vidforge", videorender.Path: "com.video-render"}[b.path]
		for _, list := range []struct{ method, member, id string }{
			{"tools/list", "tools", "name"}, {"resources/list", "resources", "uri"}, {"resources/templates/list", "resourceTemplates", "uriTemplate"},
		} {
			a := ask(list.method, "")
			if a.Error != nil || len(a.Raw) > 20<<10 {
				t.Fatalf("%s: %d bytes, %s", list.method, len(a.Raw), a.Raw[:min(len(a.Raw), 300)])
			}
			v := object(t, a.Result)
			meta, _ := v["_meta"].(map[string]any)
			if meta[namespace+"/fingerprint"] != b.fingerprint() {
				t.Errorf("%s: _meta %v", list.method, meta)
			}
			if version == modern && (v["ttlMs"] != 3600000.0 || v["cacheScope"] != "private" || v["resultType"] != "complete") {
				t.Errorf("%s: hints %v %v %v", list.method, v["ttlMs"], v["cacheScope"], v["resultType"])
			}
			if v["nextCursor"] != nil {
				t.Errorf("%s goes on: %v", list.method, v["nextCursor"])
			}
			records, _ := v[list.member].([]any)
			if len(records) == 0 {
				t.Errorf("%s is empty", list.method)
			}
			for _, r := range records {
				record, _ := r.(map[string]any)
				own, _ := record["_meta"].(map[string]any)
				if l, _ := own[namespace+"/lifecycle"].(map[string]any); l["stability"] != "stable" || l["since"] == "" || l["deprecation"] != nil {
					t.Errorf("%s %v: lifecycle %v", list.method, record[list.id], own)
				}
				if record["title"] == "" || record["description"] == "" {
					t.Errorf("%s %v: %v", list.method, record[list.id], record)
				}
			}
			if again := ask(list.method, ""); string(again.Result) != string(a.Result) {
				t.Errorf("%s differs from itself", list.method)
			}
			bad := ask(list.method, `{"cursor":"no such"}`)
			if bad.Error == nil || bad.Error.Code != -32602 {
				t.Fatalf("%s with an unknown cursor: %s", list.method, bad.Raw)
			}
			if e := b.wantEnvelope(bad.Error.Data, render.CodeInvalidField, false); e.Details["field"] != "cursor" {
				t.Errorf("%s: details %v", list.method, e.Details)
			}
		}
		for _, r := range decode[struct {
			Resources []struct{ URI, MIMEType string }
		}](t, ask("resources/list", "").Result).Resources {
			got := decode[readResult](t, ask("resources/read", fmt.Sprintf(`{"uri":%q}`, r.URI)).Result)
			if len(got.Contents) != 1 || got.Contents[0].MIMEType != r.MIMEType || got.Contents[0].Text == "" || version == modern && (got.TTLMs <= 0 || got.CacheScope != "private") {
				t.Errorf("%s: %+v", r.URI, got)
			}
		}
	})
}

// TestCompletionOfEveryVersion: the same values for all.
func TestCompletionOfEveryVersion(t *testing.T) {
	t.Parallel()
	for _, version := range versions() {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			own := strings.TrimPrefix(b.source(), "vidforge://assets/")
			ask := b.client(version)
			for template, c := range map[string]struct {
				argument string
				want     []string
			}{
				"vidforge://videos/{render_id}/final.{ext}": {"ext", []string{"mp4", "webm", "mov"}},
				"vidforge://assets/{asset_id}":              {"asset_id", []string{own}},
				"vidforge://renders/{render_id}/log":        {"render_id", []string{}},
			} {
				a := ask("completion/complete", fmt.Sprintf(`{"ref":{"type":"ref/resource","uri":%q},"argument":{"name":%q,"value":""}}`, template, c.argument))
				if got := decode[struct{ Completion struct{ Values []string } }](t, a.Result).Completion.Values; !slices.Equal(got, c.want) {
					t.Errorf("%s: %s, want %v", template, a.Raw, c.want)
				}
			}
		})
	}
}

// stream sends a request whose answer is read as it comes.
func (b *bench) stream(method, body string, headers ...string) *bufio.Reader {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+b.path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		b.Fatalf("%s %s: %d", method, body, res.StatusCode)
	}
	return bufio.NewReader(res.Body)
}

// TestSubscriptionsOfEveryVersion: previews, videos and, where there are any,
// logs announce their changes, on the wire.
func TestSubscriptionsOfEveryVersion(t *testing.T) {
	t.Parallel()
	eachVersion(t, func(t *testing.T, b *bench, version string) {
		id := b.at("/mcp").submit(tasks, renderArgs(b.source()))
		watched := []string{id.PreviewURI(), id.VideoURI(render.FormatMP4), id.LogURI()}
		if b.path == videorender.Path {
			watched = []string{"video://renders/" + string(id) + "/watermark-preview.png", outputURI(id)}
		}
		uris, err := json.Marshal(watched)
		if err != nil {
			t.Fatal(err)
		}
		var events *bufio.Reader
		if version == modern {
			events = b.stream("POST", fmt.Sprintf(`{"jsonrpc":"2.0","id":9,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":%s},"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientCapabilities":{}}}}`, uris, modern),
				"Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Protocol-Version", modern, "Mcp-Method", "subscriptions/listen")
			until(t, events, "acknowledged")
		} else {
			s := b.connect(version, `{}`)
			events = b.stream("GET", "", s.headers...)
			for _, uri := range watched {
				if a := s.request("resources/subscribe", fmt.Sprintf(`{"uri":%q}`, uri)); a.Error != nil {
					t.Fatalf("subscribe: %s", a.Raw)
				}
			}
		}
		b.waitWatched(len(watched))
		b.pause(id)
		line := until(t, events, watched[0])
		if !strings.Contains(line, `"notifications/resources/updated"`) || strings.Contains(line, "subscriptionId") != (version == modern) {
			t.Errorf("update %s", line)
		}
		b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
		b.finish(id, []byte("video"))
		until(t, events, watched[1])
	})
}

// TestTraceOfOlderClients: the context in _meta is honoured in sessions too.
func TestTraceOfOlderClients(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const trace = "0af7651916cd43dd8448eb211c80319c"
	a := b.connect("2025-11-25", `{}`).request("tools/call", fmt.Sprintf(
		`{"name":"vidforge_render_video","arguments":%s,"_meta":{"traceparent":"00-%s-b7ad6b7169203331-01","tracestate":"a=b","baggage":"k=v"}}`, plainArgs(b.source()), trace))
	if a.Error != nil {
		t.Fatal(a.Raw)
	}
	if got := b.farm.Traces[0]; !strings.Contains(got.Traceparent, trace) || got.Tracestate != "a=b" || got.Baggage != "k=v" {
		t.Errorf("trace %+v", got)
	}
}
