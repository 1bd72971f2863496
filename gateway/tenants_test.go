package gateway

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/gateway/internal/videorender"
	"github.com/vidforge/vidforge/pkg/render"
)

// masked is what differs between two equal answers.
var masked = regexp.MustCompile(`req_[a-z0-9]+|"retry_after_ms":\d+`)

// TestOtherTenants: whatever another tenant's handle is sent to, the answer is
// that to a handle that nobody has.
func TestOtherTenants(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "other")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	asset := b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())
	pending := b.farm.AddAsset("acme", "b.mov", nil)
	paused, finished, live := b.submit(formCaps, renderArgs(asset.URI())), b.submit(tasks, plainArgs(asset.URI())), b.submit(tasks, plainArgs(asset.URI()))
	b.pause(paused)
	b.task(formCaps, paused) // mints the input request
	b.finish(finished, []byte("video"))
	theirSession := b.connect("2025-11-25", `{}`).headers[5]
	b.key = keys[1]
	mine := b.farm.AddAsset("other", "mine.mov", farmtest.VideoFacts()).URI()
	sessions := map[string]*olderSession{}
	for _, v := range versions()[1:] {
		sessions[v] = b.connect(v, `{"elicitation":{}}`)
	}
	older := b.at(videorender.Path)
	olderSession := older.connect("2025-11-25", `{}`)

	// probe is one way to use a handle; what it returns is the answer.
	type probe func(id string) string
	text := func(a answer) string { return fmt.Sprint(a.Status, " ", a.Raw) }
	call := func(ask requester, tool, args string) probe {
		return func(id string) string {
			return text(ask("tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, strings.ReplaceAll(args, "ID", id))))
		}
	}
	method := func(ask requester, method, params string) probe {
		return func(id string) string { return text(ask(method, strings.ReplaceAll(params, "ID", id))) }
	}
	url := func(verb, path, body string) probe {
		return func(id string) string {
			res, raw := b.do(verb, strings.ReplaceAll(path, "ID", id), strings.NewReader(body), "Content-Type", "application/x-www-form-urlencoded")
			return fmt.Sprint(res.StatusCode, " ", res.Header.Get("Content-Type"), " ", string(raw))
		}
	}
	full := func(method, params string) answer { return b.rpc(bothCaps, method, params) }
	plain := func(method, params string) answer { return b.rpc(noCaps, method, params) }
	video := func(method, params string) answer { return older.rpc(bothCaps, method, params) }

	renders := map[string]probe{}
	for version, ask := range map[string]requester{"tasks": full, "plain": plain, "2025-11-25": sessions["2025-11-25"].request, "2025-06-18": sessions["2025-06-18"].request, "2025-03-26": sessions["2025-03-26"].request} {
		renders[version+" status"] = call(ask, "vidforge_get_render_status", `{"render_id":"ID"}`)
		renders[version+" approve"] = call(ask, "vidforge_approve_watermark", `{"render_id":"ID","approved":true}`)
		renders[version+" reject"] = call(ask, "vidforge_approve_watermark", `{"render_id":"ID","approved":false}`)
		renders[version+" cancel"] = call(ask, "vidforge_cancel_render", `{"render_id":"ID"}`)
		for _, uri := range []string{"vidforge://videos/ID/final.mp4", "vidforge://renders/ID/watermark-preview.png", "vidforge://renders/ID/log"} {
			renders[version+" read "+uri] = method(ask, "resources/read", `{"uri":"`+uri+`"}`)
			if version[0] == '2' {
				renders[version+" subscribe "+uri] = method(ask, "resources/subscribe", `{"uri":"`+uri+`"}`)
				renders[version+" unsubscribe "+uri] = method(ask, "resources/unsubscribe", `{"uri":"`+uri+`"}`)
			} else {
				renders[version+" listen "+uri] = method(ask, "subscriptions/listen", `{"notifications":{"resourceSubscriptions":["`+uri+`"]}}`)
			}
		}
		renders[version+" complete"] = method(ask, "completion/complete", `{"ref":{"type":"ref/resource","uri":"vidforge://videos/{render_id}/final.{ext}"},"argument":{"name":"ext","value":""},"context":{"arguments":{"render_id":"ID"}}}`)
		for _, m := range []string{"tasks/get", "tasks/cancel", "tasks/result"} {
			renders[version+" "+m] = method(ask, m, `{"taskId":"ID"}`)
		}
		renders[version+" tasks/update"] = method(ask, "tasks/update", `{"taskId":"ID","inputResponses":{"watermark-approval-1":{"action":"accept","content":{"approved":true}}}}`)
	}
	renders["listen to a task"] = method(full, "subscriptions/listen", `{"notifications":{"taskIds":["ID"]}}`)
	for version, ask := range map[string]requester{"video, tasks": video, "video, 2025-11-25": olderSession.request} {
		renders[version+" status"] = call(ask, "video_get_render_status", `{"render_id":"ID"}`)
		renders[version+" approve"] = call(ask, "video_approve_watermark", `{"render_id":"ID","approved":true}`)
		renders[version+" cancel"] = call(ask, "video_cancel_render", `{"render_id":"ID"}`)
		renders[version+" output"] = method(ask, "resources/read", `{"uri":"video://renders/ID/output"}`)
		renders[version+" preview"] = method(ask, "resources/read", `{"uri":"video://renders/ID/watermark-preview.png"}`)
		for _, m := range []string{"tasks/get", "tasks/cancel", "tasks/result"} {
			renders[version+" "+m] = method(ask, m, `{"taskId":"ID"}`)
		}
	}
	for _, path := range []string{"", "/video", "/preview.png", "/log", "/approval"} {
		renders["GET "+path] = url("GET", "/v1/renders/ID"+path, "")
	}
	renders["POST /approval"] = url("POST", "/v1/renders/ID/approval", "approved=true&csrf=x")

	assets := map[string]probe{
		"finalize": url("POST", "/v1/assets/ID:finalize", ""), "GET": url("GET", "/v1/assets/ID", ""), "DELETE": url("DELETE", "/v1/assets/ID", ""),
	}
	for version, ask := range map[string]requester{"tasks": full, "plain": plain, "2025-11-25": sessions["2025-11-25"].request, "2025-03-26": sessions["2025-03-26"].request} {
		for _, tool := range []string{"vidforge_render_video", "vidforge_validate_render"} {
			assets[version+" source of "+tool] = call(ask, tool, `{"source_asset_uri":"vidforge://assets/ID","output_format":"mp4","resolution":"720p"}`)
			assets[version+" image of "+tool] = call(ask, tool, `{"source_asset_uri":"`+mine+`","output_format":"mp4","resolution":"720p","watermark":{"image_asset_uri":"vidforge://assets/ID"}}`)
		}
		assets[version+" probe"] = call(ask, "vidforge_probe_asset", `{"asset_uri":"vidforge://assets/ID"}`)
		assets[version+" read"] = method(ask, "resources/read", `{"uri":"vidforge://assets/ID"}`)
		assets[version+" complete"] = method(ask, "completion/complete", `{"ref":{"type":"ref/resource","uri":"vidforge://assets/{asset_id}"},"argument":{"name":"asset_id","value":"ID"}}`)
	}
	assets["video"] = func(id string) string {
		return call(video, "video_render", `{"source_asset_id":"ID"}`)("as_" + strings.TrimPrefix(id, "a_"))
	}

	before := map[render.ID]render.Record{paused: *b.farm.Record(paused), finished: *b.farm.Record(finished), live: *b.farm.Record(live)}
	compare := func(kind string, probes map[string]probe, unknown string, foreign ...string) {
		for name, try := range probes {
			want := try(unknown)
			for _, id := range foreign {
				hide := func(s, id string) string {
					s = strings.ReplaceAll(masked.ReplaceAllString(s, ""), id, "ID")
					return strings.ReplaceAll(s, "as_"+strings.TrimPrefix(id, "a_"), "ID")
				}
				if got := try(id); hide(got, id) != hide(want, unknown) {
					t.Errorf("%s, %s:\n  foreign %s\n  unknown %s", kind, name, got, want)
				}
			}
		}
	}
	compare("render", renders, string(render.NewID()), string(paused), string(finished), string(live))
	compare("asset", assets, string(render.NewAssetID()), string(asset), string(pending))
	for id, rec := range before {
		if now := b.farm.Record(id); now.State != rec.State || now.Decision != nil != (rec.Decision != nil) || len(now.OpenInputs()) != len(rec.OpenInputs()) {
			t.Errorf("%s changed: %+v", id, now)
		}
	}
	if _, err := b.farm.Asset(t.Context(), "acme", asset); err != nil {
		t.Errorf("the asset is gone: %v", err)
	}

	// The owner gets another answer, or the comparison would prove nothing.
	b.key, older.key = keys[0], keys[0]
	for name, try := range renders {
		if strings.HasPrefix(name, "20") || strings.Contains(name, "2025") || strings.HasSuffix(name, "tasks/result") || strings.HasPrefix(name, "plain tasks/") {
			continue // a session of somebody else, or a method that is refused to all
		}
		if strings.Contains(name, "listen") || name == "POST /approval" {
			continue // would go on; is refused for its form before the render is looked at
		}
		id := finished
		if strings.Contains(name, "preview") || strings.Contains(name, "pprov") || strings.Contains(name, "reject") || strings.Contains(name, "update") {
			id = paused
		}
		unknown := render.NewID()
		hide := func(s string, id render.ID) string {
			return strings.ReplaceAll(masked.ReplaceAllString(s, ""), string(id), "ID")
		}
		if got := try(string(id)); hide(got, id) == hide(try(string(unknown)), unknown) {
			t.Errorf("render, %s: the owner gets the answer of an unknown one: %s", name, got)
		}
	}
	b.key = keys[1]

	// Sessions, of this endpoint and of the other.
	for _, path := range []string{"/mcp", videorender.Path} {
		for _, verb := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			try := func(id string) string {
				var body io.Reader
				if verb == http.MethodPost {
					body = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
				}
				res, raw := b.do(verb, path, body, "Content-Type", "application/json", "Accept", "application/json, text/event-stream", "Mcp-Session-Id", id, "Mcp-Protocol-Version", "2025-11-25")
				return fmt.Sprint(res.StatusCode, " ", string(raw))
			}
			if got, want := try(theirSession), try("AAAAAAAAAAAAAAAAAAAAAAAAAA"); got != want || !strings.HasPrefix(got, "404") {
				t.Errorf("session, %s %s: foreign %s, unknown %s", verb, path, got, want)
			}
		}
	}
}
