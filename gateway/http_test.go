package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/render"
)

func (b *bench) wantHTTPError(res *http.Response, body []byte, code render.Code) envelope {
	b.Helper()
	if want := render.Describe(code).HTTPStatus; res.StatusCode != want || res.Header.Get("Content-Type") != "application/json" {
		b.Errorf("%s: status %d, want %d; %s", code, res.StatusCode, want, res.Header.Get("Content-Type"))
	}
	if id := res.Header.Get("X-Request-ID"); id == "" || !strings.Contains(string(body), id) {
		b.Errorf("%s: X-Request-Id %q is not in %s", code, id, body)
	}
	return b.wantEnvelope(body, code, true)
}

func TestUpload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	const name = "Фильм 電影 فيلم é.mov"
	body := []byte("the film")
	sum := sha256.Sum256(body)
	res, got := b.do("POST", "/v1/assets?name="+url.QueryEscape(name), bytes.NewReader(body), "Content-Type", "video/quicktime; x=1", "X-Content-Sha256", strings.ToUpper(hex.EncodeToString(sum[:])))
	v := object(t, got)
	uri, _ := v["asset_uri"].(string)
	if res.StatusCode != 201 || v["name"] != name || v["mime_type"] != "video/quicktime" || v["sha256"] != hex.EncodeToString(sum[:]) || v["size_bytes"] != 8.0 || v["state"] != "ready" || v["renderable"] != true {
		t.Fatalf("%d %s", res.StatusCode, got)
	}
	id := strings.TrimPrefix(uri, "vidforge://assets/")
	if loc := res.Header.Get("Location"); loc != "/v1/assets/"+id {
		t.Errorf("Location %q", loc)
	}
	if res, one := b.do("GET", "/v1/assets/"+id, nil); res.StatusCode != 200 || !jsonEqual(string(one), got) {
		t.Errorf("get: %d %s", res.StatusCode, one)
	}
	// In chunks, without a length.
	if res, got = b.do("POST", "/v1/assets", io.MultiReader(strings.NewReader("the "), strings.NewReader("film"))); res.StatusCode != 201 || object(t, got)["mime_type"] != "application/octet-stream" {
		t.Errorf("chunked: %d %s", res.StatusCode, got)
	}
	b.farm.AddAsset(render.LocalTenant, "later.mov", nil)
	b.farm.AddAsset("somebody", "theirs.mov", farmtest.VideoFacts())
	var seen []any
	cursor := ""
	for range 3 {
		_, got := b.do("GET", "/v1/assets?limit=1&cursor="+cursor, nil)
		page := object(t, got)
		seen = append(seen, page["assets"].([]any)...)
		cursor, _ = page["next_cursor"].(string)
	}
	if len(seen) != 3 || cursor != "" || !strings.Contains(fmt.Sprint(seen), "state:probing") || strings.Contains(fmt.Sprint(seen), "theirs") {
		t.Errorf("listed %v, then %q", seen, cursor)
	}
	for _, q := range []string{"limit=0", "limit=1001", "limit=x"} {
		res, got := b.do("GET", "/v1/assets?"+q, nil)
		b.wantHTTPError(res, got, render.CodeInvalidField)
	}
	if res, got := b.do("DELETE", "/v1/assets/"+id, nil); res.StatusCode != 204 || len(got) != 0 {
		t.Errorf("delete: %d %s", res.StatusCode, got)
	}
	for _, gone := range []string{id, string(render.NewAssetID()), "a_*", "a_.%3E", "..%2Fx%20y"} {
		for _, method := range []string{"GET", "DELETE"} {
			res, got := b.do(method, "/v1/assets/"+gone, nil)
			b.wantHTTPError(res, got, render.CodeSourceNotFound)
		}
	}
}

func TestUploadRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.farm.MaxUpload = 10
	for name, c := range map[string]struct {
		body, header string
		code         render.Code
		field        string
	}{
		"empty":          {"", "", render.CodeInvalidField, "body"},
		"too large":      {strings.Repeat("x", 11), "", render.CodeSourceTooLarge, ""},
		"another hash":   {"film", strings.Repeat("ab", 32), render.CodeInvalidField, "body"},
		"no hash at all": {"film", "xyz", render.CodeInvalidField, "X-Content-Sha256"},
	} {
		res, got := b.do("POST", "/v1/assets", strings.NewReader(c.body), "X-Content-Sha256", c.header)
		e := b.wantHTTPError(res, got, c.code)
		if field, _ := e.Details["field"].(string); field != c.field {
			t.Errorf("%s: details %v", name, e.Details)
		}
	}
	b.farm.Fail("Upload", render.Errorf(render.CodeUnavailable, render.BlameFarm, "The store is away."))
	res, got := b.do("POST", "/v1/assets", strings.NewReader("film"))
	b.wantHTTPError(res, got, render.CodeUnavailable)
	if res.Header.Get("Retry-After") != "5" {
		t.Errorf("Retry-After %q", res.Header.Get("Retry-After"))
	}
}

// raw sends bytes over a connection of its own.
func (b *bench) raw(request string) net.Conn {
	b.Helper()
	c, err := (&net.Dialer{}).DialContext(b.Context(), "tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Log(err)
		}
	})
	if _, err := io.WriteString(c, request); err != nil {
		b.Fatal(err)
	}
	return c
}

// TestUploadCutOff: a body that ends before its length, and one that stands
// still, are told so; nothing is kept.
func TestUploadCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *Config) { c.StallTimeout = 50 * time.Millisecond })
	const head = "POST /v1/assets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nthe film"
	for name, closeWrite := range map[string]bool{"cut off": true, "stalled": false} {
		c := b.raw(head)
		if tcp, ok := c.(*net.TCPConn); ok && closeWrite {
			if err := tcp.CloseWrite(); err != nil {
				t.Fatal(err)
			}
		}
		got, err := io.ReadAll(c)
		if err != nil || !strings.Contains(string(got), "400 Bad Request") || !strings.Contains(string(got), "invalid_field") {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	if _, got := b.do("GET", "/v1/assets", nil); !jsonEqual(`{"assets":[]}`, got) {
		t.Errorf("kept %s", got)
	}
}

// TestUnreadBodyStalls: a body that no handler reads does not hold its
// connection either.
func TestUnreadBodyStalls(t *testing.T) {
	t.Parallel()
	file, _ := withKeys(t)
	b := newBench(t, func(c *Config) { c.StallTimeout, c.KeysFile = 50*time.Millisecond, file })
	c := b.raw("POST /v1/assets HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nthe film")
	if got, err := io.ReadAll(c); err != nil || !strings.Contains(string(got), "401 Unauthorized") {
		t.Errorf("%s, %v", got, err)
	}
}

// TestUploadOutlastsTheStall: a slow body is no stalled one, and the wait for
// the answer is not on its clock.
func TestUploadOutlastsTheStall(t *testing.T) {
	t.Parallel()
	const stall = 200 * time.Millisecond
	b := newBench(t, func(c *Config) { c.StallTimeout = stall })
	slow, in := io.Pipe()
	go func() {
		ticker := time.NewTicker(stall / 4)
		defer ticker.Stop()
		for range 8 {
			<-ticker.C
			if _, err := in.Write([]byte("x")); err != nil {
				break
			}
		}
		in.CloseWithError(io.EOF)
	}()
	if res, got := b.do("POST", "/v1/assets", slow); res.StatusCode != 201 || object(t, got)["size_bytes"] != 8.0 {
		t.Errorf("%d %s", res.StatusCode, got)
	}
}

// finished is a finished render with this video.
func (b *bench) finished(video []byte) render.ID {
	b.Helper()
	id := b.submit(tasks, plainArgs(b.source()))
	b.finish(id, video)
	return id
}

func TestDownload(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	video := make([]byte, 3<<20) // more than one window of the store
	for i := range video {
		video[i] = byte(i * 7)
	}
	path := "/v1/renders/" + string(b.finished(video)) + "/video"
	sum := sha256.Sum256(video)
	tag := `"` + hex.EncodeToString(sum[:]) + `"`

	res, got := b.do("GET", path, nil)
	if res.StatusCode != 200 || !bytes.Equal(got, video) || res.Header.Get("ETag") != tag || res.Header.Get("Content-Type") != "video/mp4" || res.Header.Get("Accept-Ranges") != "bytes" {
		t.Fatalf("%d, %d bytes, %v", res.StatusCode, len(got), res.Header)
	}
	kind, params, err := mime.ParseMediaType(res.Header.Get("Content-Disposition"))
	if err != nil || kind != "attachment" || params["filename"] != "Ferien äöü.mp4" {
		t.Errorf("Content-Disposition %q: %s %v, %v", res.Header.Get("Content-Disposition"), kind, params, err)
	}
	if res, got := b.do("HEAD", path, nil); res.StatusCode != 200 || len(got) != 0 || res.ContentLength != int64(len(video)) || res.Header.Get("ETag") != tag {
		t.Errorf("HEAD: %d %d %v", res.StatusCode, res.ContentLength, res.Header)
	}
	for rng, want := range map[string][]byte{
		"bytes=0-0": video[:1], "bytes=5-9": video[5:10], "bytes=1048570-1048590": video[1048570:1048591], "bytes=-3": video[len(video)-3:], "bytes=3145000-": video[3145000:],
		"bytes=100-99999999": video[100:],
	} {
		res, got := b.do("GET", path, nil, "Range", rng)
		if res.StatusCode != 206 || !bytes.Equal(got, want) || !strings.HasSuffix(res.Header.Get("Content-Range"), "/3145728") {
			t.Errorf("%s: %d, %d bytes, %q", rng, res.StatusCode, len(got), res.Header.Get("Content-Range"))
		}
	}
	res, got = b.do("GET", path, nil, "Range", "bytes=0-1,2000000-2000001")
	kind, params, err = mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/byteranges" {
		t.Fatalf("two ranges: %s, %v", kind, err)
	}
	parts := multipart.NewReader(bytes.NewReader(got), params["boundary"])
	for _, want := range [][]byte{video[:2], video[2000000:2000002]} {
		part, err := parts.NextPart()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(part); err != nil || !bytes.Equal(got, want) {
			t.Errorf("part %v, want %v, %v", got, want, err)
		}
	}
	for _, c := range []struct {
		headers []string
		status  int
		length  int
	}{
		{[]string{"If-None-Match", tag}, 304, 0},
		{[]string{"If-None-Match", `"x"`}, 200, len(video)},
		{[]string{"If-Match", `"x"`}, 412, 0},
		{[]string{"Range", "bytes=5-9", "If-Range", tag}, 206, 5},
		{[]string{"Range", "bytes=5-9", "If-Range", `"x"`}, 200, len(video)},
		{[]string{"Range", "bytes=99999999-"}, 416, -1},
	} {
		if res, got := b.do("GET", path, nil, c.headers...); res.StatusCode != c.status || c.length >= 0 && len(got) != c.length {
			t.Errorf("%v: %d, %d bytes", c.headers, res.StatusCode, len(got))
		}
	}
	b.farm.Fail("Open", render.Errorf(render.CodeUnavailable, render.BlameFarm, "The store is away."))
	res, got = b.do("GET", path, nil)
	b.wantHTTPError(res, got, render.CodeUnavailable)
	if res.Header.Get("ETag") != "" {
		t.Error("an error has an ETag")
	}
}

// TestDownloadBreaksOff: when the store fails in mid-body the client sees a
// broken connection, not the end of a short video.
func TestDownloadBreaksOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.finished(make([]byte, 3<<20))
	b.farm.FailOpenAfter(1, render.Errorf(render.CodeUnavailable, render.BlameFarm, "The store is away."))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, b.url+"/v1/renders/"+string(id)+"/video", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil || n >= 3<<20 {
		t.Errorf("read %d bytes without an error", n)
	}
	if err := res.Body.Close(); err != nil {
		t.Log(err)
	}
}

func TestRenderOverHTTP(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	id := b.submit(tasks, renderArgs(b.source()))
	path := "/v1/renders/" + string(id)
	for _, part := range []string{"/video", "/preview.png"} {
		res, got := b.do("GET", path+part, nil)
		b.wantHTTPError(res, got, render.CodeResourceNotReady)
	}
	b.pause(id)
	res, got := b.do("GET", path, nil)
	want := b.call(noCaps, "vidforge_get_render_status", fmt.Sprintf(`{"render_id":%q}`, id)).Structured
	if res.StatusCode != 200 || !jsonEqual(string(want), got) || res.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("status %d %s, want %s", res.StatusCode, got, want)
	}
	if res, got := b.do("GET", path+"/preview.png", nil); res.StatusCode != 200 || res.Header.Get("Content-Type") != "image/png" || !bytes.Equal(got, testPNG(t, 1280, 720)) || !strings.HasPrefix(res.Header.Get("Content-Disposition"), "inline") {
		t.Errorf("preview: %d %v", res.StatusCode, res.Header)
	}
	b.farm.SetLog(id, "<b>log</b>")
	if res, got := b.do("GET", path+"/log", nil); string(got) != "<b>log</b>" || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain") || res.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("log: %v %s", res.Header, got)
	}
	b.apply(id, render.Cancelled{})
	res, got = b.do("GET", path+"/video", nil)
	b.wantHTTPError(res, got, render.CodeResourceNotFound)
	for _, unknown := range []string{string(render.NewID()), "task_*", "task_a.%3E", "..%2Fx%20y"} {
		for _, part := range []string{"", "/video", "/preview.png", "/log", "/approval"} {
			res, got := b.do("GET", "/v1/renders/"+unknown+part, nil)
			b.wantHTTPError(res, got, render.CodeRenderNotFound)
		}
	}
	res, got = b.do("GET", "/v1/coffee", nil)
	b.wantHTTPError(res, got, render.CodeResourceNotFound)
	if res, _ := b.do("PUT", path, nil); res.StatusCode != 404 && res.StatusCode != 405 {
		t.Errorf("PUT: %d", res.StatusCode)
	}
	if res, got := b.do("GET", "/v1/openapi.json", nil); res.StatusCode != 200 || object(t, got)["openapi"] != "3.1.0" {
		t.Errorf("openapi: %d", res.StatusCode)
	}
}

var tokenPattern = regexp.MustCompile(`name="csrf_token" value="([^"]+)"`)

// page opens the approval page and returns its token, "" when there is no form.
func (b *bench) page(id render.ID) (*http.Response, string, string) {
	b.Helper()
	res, got := b.do("GET", "/v1/renders/"+string(id)+"/approval", nil)
	if m := tokenPattern.FindSubmatch(got); m != nil {
		return res, string(got), string(m[1])
	}
	return res, string(got), ""
}

func (b *bench) postForm(id render.ID, form url.Values, headers ...string) (*http.Response, []byte) {
	b.Helper()
	return b.do("POST", "/v1/renders/"+string(id)+"/approval", strings.NewReader(form.Encode()), append([]string{"Content-Type", "application/x-www-form-urlencoded"}, headers...)...)
}

func TestApprovalPage(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	args := strings.Replace(renderArgs(b.source()), `"Draft"`, `"<script>alert(1)</script>"`, 1)
	id := b.submit(tasks, args)
	if res, page, token := b.page(id); res.StatusCode != 200 || token != "" || !strings.Contains(page, "nothing to decide") {
		t.Errorf("before: %d %s", res.StatusCode, page)
	}
	b.pause(id)
	res, page, token := b.page(id)
	if token == "" || !strings.Contains(page, `src="data:image/png;base64,`) || strings.Contains(page, "<script>") || !strings.Contains(page, "&lt;script&gt;") {
		t.Fatalf("page: %s", page)
	}
	for k, want := range map[string]string{"Referrer-Policy": "no-referrer", "Cache-Control": "no-store", "X-Frame-Options": "DENY", "X-Content-Type-Options": "nosniff"} {
		if got := res.Header.Get(k); got != want {
			t.Errorf("%s: %q", k, got)
		}
	}
	if csp := res.Header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || !strings.Contains(csp, "frame-ancestors 'none'") {
		t.Errorf("CSP %q", csp)
	}
	if b.farm.Record(id).Decision != nil {
		t.Fatal("GET decided")
	}
	other := b.submit(tasks, args)
	b.pause(other)
	_, _, otherToken := b.page(other)
	for name, form := range map[string]url.Values{
		"no token":        {"decision": {"approve"}},
		"made up":         {"decision": {"approve"}, "csrf_token": {"99999999999.abc"}},
		"another's":       {"decision": {"approve"}, "csrf_token": {otherToken}},
		"changed time":    {"decision": {"approve"}, "csrf_token": {"9" + token}},
		"no decision":     {"csrf_token": {token}},
		"wrong decision":  {"csrf_token": {token}, "decision": {"maybe"}},
		"note is longer":  {"csrf_token": {token}, "decision": {"approve"}, "note": {strings.Repeat("n", 501)}},
		"much too large":  {"csrf_token": {token}, "decision": {"approve"}, "note": {strings.Repeat("n", 20<<10)}},
		"note with a NUL": {"csrf_token": {token}, "decision": {"approve"}, "note": {"a\x00b"}},
	} {
		res, got := b.postForm(id, form)
		b.wantHTTPError(res, got, render.CodeInvalidField)
		if b.farm.Record(id).Decision != nil {
			t.Fatalf("%s: decided", name)
		}
	}
	for _, h := range [][]string{
		{"Origin", "https://evil.example.org"}, {"Sec-Fetch-Site", "cross-site"},
		// A page under no-referrer sends its form with "Origin: null", as do
		// sandboxed pages of others.
		{"Origin", "null", "Sec-Fetch-Site", "cross-site"}, {"Origin", "null", "Sec-Fetch-Site", "same-site"}, {"Origin", "null", "Cookie", "a=b"},
	} {
		if res, _ := b.postForm(id, url.Values{"csrf_token": {token}, "decision": {"approve"}}, h...); res.StatusCode != 403 {
			t.Errorf("%v: %d", h, res.StatusCode)
		}
	}
	res, _ = b.postForm(id, url.Values{"csrf_token": {token}, "decision": {"approve"}, "note": {"gut\r\nso"}},
		"Origin", b.url, "Sec-Fetch-Site", "same-origin")
	loc, err := res.Location()
	if err != nil || res.StatusCode != 303 || loc.Path != "/v1/renders/"+string(id)+"/approval" {
		t.Fatalf("approve: %d %v, %v", res.StatusCode, loc, err)
	}
	if d := b.farm.Record(id).Decision; d == nil || !d.Approved || d.Note != "gut\nso" || d.Channel != render.ChannelPage || d.By != "local" {
		t.Fatalf("decision %+v", d)
	}
	if _, page, token := b.page(id); token != "" || !strings.Contains(page, "approved") {
		t.Errorf("afterwards: %s", page)
	}
	// The same again succeeds, the opposite is told.
	if res, _ := b.postForm(id, url.Values{"csrf_token": {token}, "decision": {"approve"}}); res.StatusCode != 303 {
		t.Errorf("again: %d", res.StatusCode)
	}
	res, got := b.postForm(id, url.Values{"csrf_token": {token}, "decision": {"reject"}})
	if res.StatusCode != 409 || !strings.Contains(string(got), `role="alert"`) || !strings.Contains(string(got), "approved before") {
		t.Errorf("opposite: %d %s", res.StatusCode, got)
	}
	if res, _ := b.postForm(other, url.Values{"csrf_token": {otherToken}, "decision": {"reject"}}); res.StatusCode != 303 {
		t.Errorf("reject: %d", res.StatusCode)
	}
	if rec := b.farm.Record(other); rec.State != render.StateFailed || rec.Failure.Code != render.CodeWatermarkRejected {
		t.Errorf("rejected: %+v", rec)
	}
	third := b.submit(tasks, args)
	b.pause(third)
	_, _, token = b.page(third)
	b.apply(third, render.Cancelled{})
	if res, got := b.postForm(third, url.Values{"csrf_token": {token}, "decision": {"approve"}}); res.StatusCode != 409 || !strings.Contains(string(got), "does not wait") {
		t.Errorf("after cancel: %d %s", res.StatusCode, got)
	}
}

// TestApprovalWithAKey: a browser sends the key as the password of Basic; the
// form is bound to the key.
func TestApprovalWithAKey(t *testing.T) {
	t.Parallel()
	file, keys := withKeys(t, "acme", "acme", "acme: asset:read")
	b := newBench(t, func(c *Config) { c.KeysFile = file })
	b.key = keys[0]
	id := b.submit(tasks, renderArgs(b.farm.AddAsset("acme", "a.mov", farmtest.VideoFacts()).URI()))
	b.pause(id)
	_, _, token := b.page(id)
	form := url.Values{"csrf_token": {token}, "decision": {"approve"}}
	b.key = keys[1]
	res, got := b.postForm(id, form)
	b.wantHTTPError(res, got, render.CodeInvalidField)
	b.key = ""
	res, got = b.do("GET", "/v1/renders/"+string(id)+"/approval", nil)
	b.wantHTTPError(res, got, render.CodeCredentialMissing)
	if !strings.Contains(strings.Join(res.Header.Values("WWW-Authenticate"), "\n"), "Basic ") {
		t.Errorf("WWW-Authenticate %v", res.Header.Values("WWW-Authenticate"))
	}
	basic := func(key string) string { return "Basic " + base64Std("anybody:"+key) }
	if res, _ := b.do("GET", "/v1/renders/"+string(id)+"/approval", nil, "Authorization", basic(keys[2])); res.StatusCode != 200 {
		t.Errorf("a reader's page: %d", res.StatusCode)
	}
	res, got = b.postForm(id, form, "Authorization", basic(keys[2]))
	b.wantHTTPError(res, got, render.CodeInsufficientScope)
	if res, got := b.postForm(id, form, "Authorization", basic(keys[0])); res.StatusCode != 303 {
		t.Errorf("approve: %d %s", res.StatusCode, got)
	}
	// Nowhere else: browsers send Basic by themselves.
	res, got = b.do("GET", "/v1/assets", nil, "Authorization", basic(keys[0]))
	b.wantHTTPError(res, got, render.CodeCredentialMissing)
}

// TestWhatIsNotForClients: health and metrics have a port of their own, and the
// log holds no names, and handles only where it says who got what.
func TestWhatIsNotForClients(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, path := range []string{"/healthz", "/metrics"} {
		if res, _ := b.do("GET", path, nil); res.StatusCode != 404 {
			t.Errorf("%s on the clients' port: %d", path, res.StatusCode)
		}
	}
	id := b.finished([]byte("video"))
	b.do("GET", "/v1/renders/"+string(id)+"/video?name=geheim", nil)
	b.do("POST", "/v1/assets?name=geheim", strings.NewReader("x"))
	logs := b.logs.String()
	if strings.Contains(logs, "geheim") || !strings.Contains(logs, `route="GET /v1/renders/{render_id}/video"`) {
		t.Errorf("logs:\n%s", logs)
	}
	for line := range strings.Lines(logs) {
		if strings.Contains(line, string(id)) && !strings.Contains(line, "msg=audit ") {
			t.Errorf("line %s", line)
		}
	}
}

// TestRequestIDs: an id that may be forged into a log is replaced.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for in, kept := range map[string]bool{"abc-1.2_X": true, "": false, "a b": false, strings.Repeat("a", 65): false, "a\"b": false} {
		res, body := b.do("GET", "/v1/renders/x", nil, "X-Request-ID", in)
		got := res.Header.Get("X-Request-ID")
		if (got == in) != kept || got == "" {
			t.Errorf("%q became %q", in, got)
		}
		if e := decode[envelope](t, body); e.RequestID != got {
			t.Errorf("envelope has %q, header %q", e.RequestID, got)
		}
	}
	// In tool errors too, also for sessions, whose requests share a context.
	r := b.rpc(noCaps, "tools/call", `{"name":"vidforge_get_render_status","arguments":{}}`, "X-Request-ID", "mine")
	if e := decode[envelope](t, decode[toolResult](t, r.Result).Structured); e.RequestID != "mine" {
		t.Errorf("tool error has %q", e.RequestID)
	}
}
