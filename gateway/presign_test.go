package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

func (b *bench) presign(body string) (id string, answer map[string]any) {
	b.Helper()
	res, got := b.do("POST", "/v1/assets:presign", strings.NewReader(body), "Content-Type", "application/json")
	if res.StatusCode != 200 || res.Header.Get("Cache-Control") != "no-store" {
		b.Fatalf("presign: %d %v %s", res.StatusCode, res.Header, got)
	}
	answer = object(b, got)
	uri, _ := answer["asset_uri"].(string)
	return strings.TrimPrefix(uri, "vidforge://assets/"), answer
}

func TestPresign(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id, answer := b.presign(`{"name":"電影.mov","size_bytes":8,"mime_type":"video/quicktime"}`)
	headers, _ := answer["headers"].(map[string]any)
	upload, _ := answer["upload_url"].(string)
	if !strings.Contains(upload, id) || headers["Content-Type"] != "video/quicktime" || headers["Content-Length"] != "8" || answer["expires_at"] == nil || len(answer) != 4 {
		t.Fatalf("%v", answer)
	}
	if strings.Contains(b.logs.String(), "X-Amz-Signature") || strings.Contains(b.logs.String(), "電影") {
		t.Error("the URL or the name is in the log")
	}
	// Before it is finalised it is listed as pending, and nothing is known of it.
	if res, got := b.do("GET", "/v1/assets/"+id, nil); res.StatusCode != 200 || object(t, got)["state"] != "pending" || object(t, got)["size_bytes"] != 8.0 {
		t.Errorf("%d %s", res.StatusCode, got)
	}
	if e := b.wantToolError("{}", "vidforge_probe_asset", `{"asset_uri":"vidforge://assets/`+id+`"}`, render.CodeAssetNotReady); !strings.Contains(e.Message, "finalize") {
		t.Errorf("probe: %+v", e)
	}
	finalize := "/v1/assets/" + id + ":finalize"
	res, got := b.do("POST", finalize, nil)
	if b.wantHTTPError(res, got, render.CodeAssetNotReady); res.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	b.farm.PutIncoming(render.AssetID(id), []byte("the film"))
	for _, want := range []int{http.StatusCreated, http.StatusOK} {
		res, got := b.do("POST", finalize, nil)
		v := object(t, got)
		if res.StatusCode != want || v["state"] != "ready" || v["renderable"] != true || v["sha256"] == nil || res.Header.Get("Location") != "/v1/assets/"+id {
			t.Errorf("finalize: %d %v %s", res.StatusCode, res.Header, got)
		}
	}
	foreign := string(b.farm.AddAsset("somebody", "theirs.mov", farmtest.VideoFacts()))
	for _, other := range []string{foreign, string(render.NewAssetID()), "a_*", "%2e%2e%2fx"} {
		res, got := b.do("POST", "/v1/assets/"+other+":finalize", nil)
		b.wantHTTPError(res, got, render.CodeSourceNotFound)
	}
	for _, other := range []string{id, id + ":finalise", ":presign"} {
		res, got := b.do("POST", "/v1/assets/"+other, nil)
		b.wantHTTPError(res, got, render.CodeResourceNotFound)
	}
}

func TestPresignRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for body, field := range map[string]string{
		``: "body", `[]`: "body", `{`: "body", `"x"`: "body", `null`: "size_bytes",
		`{"name":"a"}`:                                         "size_bytes",
		`{"size_bytes":null}`:                                  "size_bytes",
		`{"size_bytes":1.5}`:                                   "size_bytes",
		`{"size_bytes":"1"}`:                                   "size_bytes",
		`{"size_bytes":1e30}`:                                  "size_bytes",
		`{"size_bytes":1,"name":2}`:                            "name",
		`{"size_bytes":1,"mime_type":[]}`:                      "mime_type",
		`{"size_bytes":1,"sha256":"x"}`:                        "sha256",
		strings.Repeat(" ", 9000) + `{}`:                       "body",
		`{"` + strings.Repeat("x", 70) + `":1,"size_bytes":1}`: "body",
	} {
		res, got := b.do("POST", "/v1/assets:presign", strings.NewReader(body))
		e := b.wantHTTPError(res, got, render.CodeInvalidField)
		if e.Details["field"] != field {
			t.Errorf("%.60s: details %v", body, e.Details)
		}
	}
}

// A deletion that is refused because of a render is a conflict, not a fault.
func TestDeleteInUse(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	e := render.Errorf(render.CodeAssetNotReady, render.BlameCaller, "A render that is not finished uses this asset.")
	b.farm.Fail("Asset", e.WithCause(farm.ErrInUse))
	res, got := b.do("DELETE", "/v1/assets/"+string(render.NewAssetID()), nil)
	if res.StatusCode != http.StatusConflict {
		t.Errorf("%d %s", res.StatusCode, got)
	}
	b.wantEnvelope(got, render.CodeAssetNotReady, true)
}

// Behind a proxy that takes a path away, what the gateway names carries it.
func TestPublicPath(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.PublicURL = "https://example.org/render/farm/" })
	res, got := b.do("POST", "/v1/assets", strings.NewReader("film"))
	if loc := res.Header.Get("Location"); !strings.HasPrefix(loc, "/render/farm/v1/assets/a_") {
		t.Errorf("upload: Location %q, %s", loc, got)
	}
	id, _ := b.presign(`{"size_bytes":4}`)
	b.farm.PutIncoming(render.AssetID(id), []byte("film"))
	if res, _ := b.do("POST", "/v1/assets/"+id+":finalize", nil); res.Header.Get("Location") != "/render/farm/v1/assets/"+id {
		t.Errorf("finalize: Location %q", res.Header.Get("Location"))
	}
	paused := b.submit(tasks, renderArgs(b.source()))
	b.pause(paused)
	_, _, token := b.page(paused)
	res, _ = b.postForm(paused, url.Values{"csrf_token": {token}, "decision": {"approve"}})
	if want := "/render/farm/v1/renders/" + string(paused) + "/approval"; res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != want {
		t.Errorf("approval: %d, Location %q", res.StatusCode, res.Header.Get("Location"))
	}
}
