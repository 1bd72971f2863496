package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

type readResult struct {
	Contents []struct {
		URI      string `json:"uri"`
		MIMEType string `json:"mimeType"`
		Text     string `json:"text"`
		Blob     []byte `json:"blob"`
	} `json:"contents"`
	TTLMs      int    `json:"ttlMs"`
	CacheScope string `json:"cacheScope"`
	ResultType string `json:"resultType"`
}

func (b *bench) read(uri string) readResult {
	b.Helper()
	a := b.rpc(noCaps, "resources/read", fmt.Sprintf(`{"uri":%q}`, uri))
	if a.Error != nil {
		b.Fatalf("read %s: %s", uri, a.Raw)
	}
	r := decode[readResult](b, a.Result)
	if len(r.Contents) != 1 || r.Contents[0].URI != uri || r.CacheScope != "private" || r.ResultType != "complete" {
		b.Fatalf("read %s: %s", uri, a.Raw)
	}
	return r
}

func (b *bench) wantReadError(uri string, code render.Code) envelope {
	b.Helper()
	quoted, err := json.Marshal(uri)
	if err != nil {
		b.Fatal(err)
	}
	a := b.rpc(noCaps, "resources/read", fmt.Sprintf(`{"uri":%s}`, quoted))
	if a.Error == nil || a.Error.Code != -32602 {
		b.Fatalf("read %s: %s", uri, a.Raw)
	}
	e := b.wantEnvelope(a.Error.Data, code, false)
	if e.ResourceURI != uri {
		b.Errorf("resource_uri %q, want %q", e.ResourceURI, uri)
	}
	return e
}

func TestStaticResources(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	list := decode[struct {
		Resources []struct{ URI, Name, Title, Description, MIMEType string }
	}](t, b.rpc(noCaps, "resources/list", "").Result).Resources
	var uris []string
	for _, r := range list {
		uris = append(uris, r.URI)
		if r.Name == "" || r.Title == "" || r.Description == "" {
			t.Errorf("%+v", r)
		}
		if got := b.read(r.URI).Contents[0]; got.MIMEType != r.MIMEType || got.Text == "" {
			t.Errorf("%s: %+v", r.URI, got)
		}
	}
	if fmt.Sprint(uris) != "[vidforge://capabilities vidforge://guide vidforge://schema/render]" {
		t.Errorf("resources %v", uris)
	}
	// The list never varies, whatever there is.
	before := b.rpc(noCaps, "resources/list", "").Raw
	b.finish(b.submit(tasks, plainArgs(b.source())), []byte("video"))
	if after := b.rpc(noCaps, "resources/list", "").Raw; after != before {
		t.Errorf("the list changed:\n%s\n%s", before, after)
	}
	if !jsonEqual(b.read("vidforge://schema/render").Contents[0].Text, b.listTools()[0].InputSchema) {
		t.Error("the schema resource is not the tool's input schema")
	}
	full := b.call(noCaps, "vidforge_get_capabilities", `{"detail":"full"}`)
	if !jsonEqual(b.read("vidforge://capabilities").Contents[0].Text, full.Structured) {
		t.Error("the capabilities resource is not the tool's full answer")
	}
	templates := decode[struct {
		ResourceTemplates []struct{ URITemplate, Name, Title, Description, MIMEType string }
	}](t, b.rpc(noCaps, "resources/templates/list", "").Result).ResourceTemplates
	var patterns []string
	for _, r := range templates {
		patterns = append(patterns, r.URITemplate)
		if r.Name == "" || r.Title == "" || r.Description == "" {
			t.Errorf("%+v", r)
		}
	}
	want := []string{"vidforge://assets/{asset_id}", "vidforge://renders/{render_id}/log", "vidforge://renders/{render_id}/watermark-preview.png", "vidforge://videos/{render_id}/final.{ext}"}
	if slices.Sort(patterns); !slices.Equal(patterns, want) {
		t.Errorf("templates %v", patterns)
	}
}

func TestReadRender(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, renderArgs(b.source()))
	video := id.VideoURI(render.FormatMP4)
	status := fmt.Sprintf(`{"render_id":%q}`, id)
	for _, uri := range []string{video, id.PreviewURI()} {
		wantRepair(t, b.wantReadError(uri, render.CodeResourceNotReady), "vidforge_get_render_status", status)
	}
	b.farm.SetLog(id, "== plan\nok\n")
	if r := b.read(id.LogURI()); r.Contents[0].Text != "== plan\nok\n" || r.Contents[0].MIMEType != "text/plain" || r.TTLMs != 0 {
		t.Errorf("log %+v", r)
	}
	b.pause(id)
	r := b.read(id.PreviewURI())
	cfg, err := png.DecodeConfig(bytes.NewReader(r.Contents[0].Blob))
	if err != nil || cfg.Width != 1280 || r.Contents[0].MIMEType != "image/png" || r.TTLMs <= 0 {
		t.Errorf("preview %v %+v, %v", cfg, r.Contents[0].MIMEType, err)
	}
	b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
	b.finish(id, []byte("video"))
	if r := b.read(video); string(r.Contents[0].Blob) != "video" || r.Contents[0].MIMEType != "video/mp4" {
		t.Errorf("video %+v", r)
	}
	e := b.wantReadError(id.VideoURI(render.FormatWebM), render.CodeResourceNotFound)
	if e.Repair == nil || e.Repair.ResourceURI != video || e.Repair.Tool != "" {
		t.Errorf("repair %+v", e.Repair)
	}
	// Without a watermark there will never be a preview.
	plain := b.submit(tasks, plainArgs(b.source()))
	b.finish(plain, []byte("video"))
	if e := b.wantReadError(plain.PreviewURI(), render.CodeResourceNotFound); e.Repair != nil {
		t.Errorf("repair %+v", e.Repair)
	}
}

// TestReadLargePreview: a preview beyond 1 MiB is sent smaller, not refused.
func TestReadLargePreview(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, renderArgs(b.source()))
	noise := noisePNG(t, 1000, 800)
	if len(noise) < 1<<20 {
		t.Fatalf("the noise compresses to %d bytes", len(noise))
	}
	b.apply(id, render.Claimed{}, render.PreviewReady{Result: render.StageResult{Work: render.Work{Generation: 1}, Object: b.farm.Put("p", noise), Width: 1000, Height: 800}})
	got := b.read(id.PreviewURI()).Contents[0].Blob
	if cfg, err := png.DecodeConfig(bytes.NewReader(got)); err != nil || len(got) > 1<<20 || cfg.Width*4 != cfg.Height*5 {
		t.Errorf("preview of %d bytes, %d×%d, %v", len(got), cfg.Width, cfg.Height, err)
	}
}

// TestReadLargeVideo: beyond 8 MiB a video is one URL that lives longer than
// the cache hint.
func TestReadLargeVideo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, plainArgs(b.source()))
	b.finish(id, make([]byte, 8<<20+1))
	uri := id.VideoURI(render.FormatMP4)
	want := b.url + "/v1/renders/" + string(id) + "/video"
	if r := b.read(uri); r.Contents[0].MIMEType != "text/uri-list" || r.Contents[0].Text != want+"\r\n" {
		t.Errorf("without a store URL: %+v", r)
	}
	b.farm.Presign = func(render.Object) string { return "https://store.example.org/v?X-Amz-Signature=1" }
	r := b.read(uri)
	if r.Contents[0].Text != "https://store.example.org/v?X-Amz-Signature=1\r\n" || r.TTLMs <= 0 || time.Duration(r.TTLMs)*time.Millisecond >= time.Hour {
		t.Errorf("with one: %+v", r)
	}
	// http is handed out for this machine only.
	b.farm.Presign = func(render.Object) string { return "http://store.internal:9000/v?X-Amz-Signature=1" }
	if r := b.read(uri); r.Contents[0].Text != want+"\r\n" {
		t.Errorf("with an unsafe one: %+v", r)
	}
	// A store on the gateway's loopback means nothing to clients elsewhere.
	remote := newBench(t, func(c *Config) { c.PublicURL = "https://render.example.org" })
	remote.farm.Presign = func(render.Object) string { return "http://127.0.0.1:9000/v?X-Amz-Signature=1" }
	id = remote.submit(tasks, plainArgs(remote.source()))
	remote.finish(id, make([]byte, 8<<20+1))
	if r := remote.read(id.VideoURI(render.FormatMP4)); r.Contents[0].Text != "https://render.example.org/v1/renders/"+string(id)+"/video\r\n" {
		t.Errorf("a loopback URL left the machine: %+v", r)
	}
	public := newBench(t, func(c *Config) { c.PublicURL = "http://render.example.org" })
	id = public.submit(tasks, plainArgs(public.source()))
	public.finish(id, make([]byte, 8<<20+1))
	if v := object(t, public.call(noCaps, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured); v["download_url"] != nil || v["video_uri"] == nil {
		t.Errorf("plain http was handed out: %v", v["download_url"])
	}
}

func TestUnknownResources(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "other")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	asset := b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts())
	id := b.submit(tasks, renderArgs(asset.URI()))
	b.pause(id)
	if r := b.read(asset.URI()); !strings.Contains(r.Contents[0].Text, `"renderable":true`) {
		t.Errorf("asset %+v", r)
	}
	probing := b.farm.AddAsset("acme", "b.mov", nil)
	b.wantReadError(probing.URI(), render.CodeResourceNotReady)
	b.key = keys[1]
	var first string
	for _, uri := range []string{
		id.VideoURI(render.FormatMP4), id.PreviewURI(), id.LogURI(), asset.URI(), // foreign
		render.NewID().LogURI(), render.NewAssetID().URI(), // unknown
		"vidforge://renders/task_*/log", "vidforge://renders/task_a.>/log", "vidforge://renders/../log", "vidforge://assets/a b", "vidforge://coffee", "file:///etc/passwd", "наше",
	} {
		e := b.wantReadError(uri, render.CodeResourceNotFound)
		got := fmt.Sprint(e.HumanMessage, e.Details, e.Repair)
		if first == "" {
			first = got
		}
		if got != first {
			t.Errorf("%s: %s, want %s", uri, got, first)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	ids := []string{string(render.AssetID(strings.TrimPrefix(b.source(), "vidforge://assets/"))), strings.TrimPrefix(b.source(), "vidforge://assets/")}
	slices.Sort(ids)
	b.farm.AddAsset("somebody", "theirs.mov", farmtest.VideoFacts())
	id := b.submit(tasks, plainArgs(b.source()))
	all := []string{"mp4", "webm", "mov"}
	for _, c := range []struct {
		template, arg, value, context string
		want                          []string
	}{
		{"vidforge://videos/{render_id}/final.{ext}", "ext", "", "", all},
		{"vidforge://videos/{render_id}/final.{ext}", "ext", "m", "", []string{"mp4", "mov"}},
		{"vidforge://videos/{render_id}/final.{ext}", "ext", "", fmt.Sprintf(`,"context":{"arguments":{"render_id":%q}}`, id), []string{"mp4"}},
		{"vidforge://videos/{render_id}/final.{ext}", "render_id", "", "", []string{}},
		{"vidforge://renders/{render_id}/log", "render_id", "task_", "", []string{}},
		{"vidforge://assets/{asset_id}", "asset_id", ids[0], "", ids[:1]},
		{"vidforge://assets/{asset_id}", "asset_id", "a_*", "", []string{}},
		{"vidforge://coffee/{asset_id}", "asset_id", "", "", []string{}},
	} {
		a := b.rpc(noCaps, "completion/complete", fmt.Sprintf(`{"ref":{"type":"ref/resource","uri":%q},"argument":{"name":%q,"value":%q}%s}`, c.template, c.arg, c.value, c.context))
		got := decode[struct {
			Completion struct {
				Values  []string
				HasMore bool
			}
		}](t, a.Result).Completion
		if got.Values == nil || !slices.Equal(got.Values, c.want) || got.HasMore {
			t.Errorf("%s %s %q: %s, want %v", c.template, c.arg, c.value, a.Raw, c.want)
		}
	}
	a := b.rpc(noCaps, "completion/complete", `{"ref":{"type":"ref/resource","uri":"vidforge://assets/{asset_id}"},"argument":{"name":"asset_id","value":"a_"}}`)
	if got := decode[struct{ Completion struct{ Values []string } }](t, a.Result).Completion.Values; len(got) != 3 || slices.ContainsFunc(got, func(id string) bool { return !strings.HasPrefix(id, "a_") }) {
		t.Errorf("own assets %v", got)
	}
	for range 105 {
		b.source()
	}
	a = b.rpc(noCaps, "completion/complete", `{"ref":{"type":"ref/resource","uri":"vidforge://assets/{asset_id}"},"argument":{"name":"asset_id","value":""}}`)
	if got := decode[struct {
		Completion struct {
			Values  []string
			HasMore bool
		}
	}](t, a.Result).Completion; len(got.Values) != 100 || !got.HasMore {
		t.Errorf("%d values, more %t", len(got.Values), got.HasMore)
	}
}

// sdkClient connects the official client of MCP 2026-07-28.
func (b *bench) sdkClient(o *mcp.ClientOptions) *mcp.ClientSession {
	b.Helper()
	c := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, o)
	s, err := c.Connect(b.Context(), &mcp.StreamableClientTransport{Endpoint: b.url + "/mcp"}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

// TestResourceSubscription: a change of a subscribed preview and video is
// announced, once each.
func TestResourceSubscription(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, renderArgs(b.source()))
	updates := make(chan string, 10)
	s := b.sdkClient(&mcp.ClientOptions{ResourceUpdatedHandler: func(_ context.Context, r *mcp.ResourceUpdatedNotificationRequest) { updates <- r.Params.URI }})
	for _, uri := range []string{id.PreviewURI(), id.VideoURI(render.FormatMP4)} {
		if err := s.Subscribe(b.Context(), &mcp.SubscribeParams{URI: uri}); err != nil {
			t.Fatal(err)
		}
	}
	want := func(uri string) {
		t.Helper()
		select {
		case got := <-updates:
			if got != uri {
				t.Errorf("update of %s, want %s", got, uri)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no update of %s", uri)
		}
	}
	b.waitWatched(2)
	b.pause(id)
	want(id.PreviewURI())
	b.apply(id, render.Decided{Decision: render.Decision{Approved: true}})
	b.finish(id, []byte("video"))
	want(id.VideoURI(render.FormatMP4))
}

// TestSDKClient drives the whole contract as an agent would, with the official
// Go client.
func TestSDKClient(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	s := b.sdkClient(nil)
	tools, err := s.ListTools(b.Context(), nil)
	if err != nil || len(tools.Tools) != 7 {
		t.Fatalf("%d tools, %v", len(tools.Tools), err)
	}
	res, err := s.CallTool(b.Context(), &mcp.CallToolParams{Name: "vidforge_render_video", Arguments: json.RawMessage(plainArgs(b.source()))})
	if err != nil || res.IsError {
		t.Fatalf("render: %+v, %v", res, err)
	}
	v, _ := res.StructuredContent.(map[string]any)
	id := render.ID(v["render_id"].(string))
	b.finish(id, []byte("video"))
	res, err = s.CallTool(b.Context(), &mcp.CallToolParams{Name: "vidforge_get_render_status", Arguments: map[string]any{"render_id": id}})
	if err != nil {
		t.Fatal(err)
	}
	v, _ = res.StructuredContent.(map[string]any)
	link, err := url.Parse(v["download_url"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if _, got := b.do("GET", link.Path, nil); string(got) != "video" {
		t.Errorf("downloaded %q", got)
	}
	read, err := s.ReadResource(b.Context(), &mcp.ReadResourceParams{URI: v["video_uri"].(string)})
	if err != nil || string(read.Contents[0].Blob) != "video" {
		t.Errorf("read %+v, %v", read, err)
	}
	bad, err := s.CallTool(b.Context(), &mcp.CallToolParams{Name: "vidforge_get_render_status", Arguments: map[string]any{"render_id": "x"}})
	if err != nil || !bad.IsError {
		t.Errorf("unknown render: %+v, %v", bad, err)
	}
}

// TestOlderClients are plain tool callers: a session, no tasks, and for
// 2025-03-26 neither structured content nor links.
func TestOlderClients(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2025-06-18", "2025-03-26"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			c := b.connect(version, `{}`)
			if strings.Contains(string(c.init), `"tasks"`) != (version == "2025-11-25") || strings.Contains(string(c.init), mcptask.ExtensionID) {
				t.Errorf("initialize: %s", c.init)
			}
			r := c.call("vidforge_render_video", plainArgs(b.source()))
			text := object(t, []byte(r.Content[0]["text"].(string)))
			if (r.Structured == nil) != (version == "2025-03-26") || text["status"] != "accepted" || r.TaskID != "" {
				t.Errorf("accepted: %+v", r)
			}
			id := render.ID(text["render_id"].(string))
			b.finish(id, []byte("video"))
			r = c.call("vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id))
			links := slices.ContainsFunc(r.Content, func(c map[string]any) bool { return c["type"] == "resource_link" })
			if links == (version == "2025-03-26") {
				t.Errorf("links %t: %+v", links, r.Content)
			}
			a := c.request("resources/read", fmt.Sprintf(`{"uri":%q}`, render.NewID().LogURI()))
			if a.Error == nil || a.Error.Code != -32002 {
				t.Fatalf("unknown resource: %s", a.Raw)
			}
			b.wantEnvelope(a.Error.Data, render.CodeResourceNotFound, false)
			a = c.request("tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
			if version != "2025-11-25" && (a.Error == nil || a.Error.Code != -32601) {
				t.Errorf("tasks/get: %s", a.Raw)
			}
		})
	}
	b := newBench(t)
	for _, method := range []string{"GET", "DELETE"} {
		if res, _ := b.do(method, "/mcp", nil, "Accept", "text/event-stream"); res.StatusCode != 405 || res.Header.Get("Allow") == "" {
			t.Errorf("%s without a session: %d", method, res.StatusCode)
		}
	}
}
