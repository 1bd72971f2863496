package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/embedded/embeddedtest"
	"github.com/vidforge/vidforge/gateway"
	"github.com/vidforge/vidforge/pkg/render"
	"github.com/vidforge/vidforge/worker"
)

// agent speaks MCP 2026-07-28 with tasks to one gateway, on the wire.
type agent struct {
	url string
	t   *testing.T
	// tasks and forms are what its requests declare.
	tasks, forms bool
	// traceparent goes into the _meta of every request.
	traceparent string
}

// startGateway runs a gateway in this process until the test ends or stop is
// called.
func startGateway(t *testing.T, share embeddedtest.Farm) (url string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready := make(chan gateway.Bound, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := gateway.Run(ctx, gateway.Config{
			Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", Endpoints: share.Endpoints, MaxAssetBytes: 1 << 20,
			Logger: quiet(), Ready: func(b gateway.Bound) { ready <- b },
		})
		if err != nil {
			t.Errorf("gateway: %v", err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	select {
	case b := <-ready:
		return "http://" + b.Listen, stop
	case <-done:
		t.Fatal("the gateway ended")
		return "", nil
	}
}

// answer is a JSON-RPC answer as received.
type answer struct {
	Status int            `json:"-"`
	Result map[string]any `json:"result"`
	Error  *struct {
		Code    int            `json:"code"`
		Message string         `json:"message"`
		Data    map[string]any `json:"data"`
	} `json:"error"`
}

func (a *agent) ask(method string, params map[string]any) answer {
	a.t.Helper()
	capabilities := map[string]any{}
	if a.tasks {
		capabilities["extensions"] = map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}}
	}
	if a.forms {
		capabilities["elicitation"] = map[string]any{"form": map[string]any{}}
	}
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion":    "2026-07-28",
		"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "e2e", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": capabilities,
	}
	if a.traceparent != "" {
		params["_meta"].(map[string]any)["traceparent"] = a.traceparent
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		a.t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.url+"/mcp", bytes.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	req.Header.Set("Mcp-Protocol-Version", "2026-07-28")
	req.Header.Set("Mcp-Method", method)
	for _, name := range []string{"name", "uri", "taskId"} {
		if v, ok := params[name].(string); ok {
			req.Header.Set("Mcp-Name", v)
		}
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatalf("%s: %v", method, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		a.t.Fatalf("%s: %v", method, err)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
		raw = []byte(strings.TrimPrefix(lines[len(lines)-1], "data: "))
	}
	got := answer{Status: res.StatusCode}
	if err := json.Unmarshal(raw, &got); err != nil {
		a.t.Fatalf("%s: HTTP %d %s: %v", method, res.StatusCode, raw, err)
	}
	return got
}

func (a *agent) call(tool string, arguments map[string]any) answer {
	a.t.Helper()
	return a.ask("tools/call", map[string]any{"name": tool, "arguments": arguments})
}

// structured is the structured content of a tool's answer.
func (g answer) structured() map[string]any {
	s, _ := g.Result["structuredContent"].(map[string]any)
	return s
}

// code is the error code of an answer of any kind, "" for a success.
func (g answer) code() string {
	if g.Error != nil {
		c, _ := g.Error.Data["machine_code"].(string)
		return c
	}
	if g.Result["isError"] == true {
		c, _ := g.structured()["code"].(string)
		return c
	}
	return ""
}

// post uploads and returns status and JSON answer.
func (a *agent) post(name string, body io.Reader) (int, map[string]any) {
	a.t.Helper()
	res, err := http.Post(a.url+"/v1/assets?name="+name, "video/mp4", body)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	var got map[string]any
	if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
		a.t.Fatal(err)
	}
	return res.StatusCode, got
}

func (a *agent) upload(file string) string {
	a.t.Helper()
	f, err := os.Open(file)
	if err != nil {
		a.t.Fatal(err)
	}
	defer f.Close()
	status, got := a.post("clip.mp4", f)
	uri, _ := got["asset_uri"].(string)
	if status != http.StatusCreated || uri == "" {
		a.t.Fatalf("upload: %d %v", status, got)
	}
	return uri
}

func args(source string, more map[string]any) map[string]any {
	m := map[string]any{"source_asset_uri": source, "output_format": "mp4", "resolution": "720p", "quality": "draft"}
	maps.Copy(m, more)
	return m
}

// poll asks for a task, at its own pace, until its status is one of those.
func (a *agent) poll(id string, statuses ...string) answer {
	a.t.Helper()
	deadline := time.Now().Add(3 * time.Minute)
	for {
		got := a.ask("tasks/get", map[string]any{"taskId": id})
		for _, s := range statuses {
			if got.Result["status"] == s {
				return got
			}
		}
		if got.Error != nil || time.Now().After(deadline) {
			a.t.Fatalf("task %s: %+v", id, got)
		}
		<-time.After(100 * time.Millisecond) // a real worker in another process
	}
}

func startWorker(t *testing.T, share embeddedtest.Farm, id string) *process {
	t.Helper()
	return spawn(t, role{Worker: &worker.Config{Endpoints: share.Endpoints, ID: id, ScratchDir: t.TempDir()}})
}

func TestAgentRendersWithApproval(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	startWorker(t, share, "w1")
	a := &agent{url: url, t: t, tasks: true, forms: true}
	source := a.upload(clip(t, 2, "320x240"))
	task := a.call("vidforge_render_video", args(source, map[string]any{"watermark": map[string]any{"text": "vidforge"}}))
	id, _ := task.Result["taskId"].(string)
	if task.Result["resultType"] != "task" || id == "" {
		t.Fatalf("the render tool answered %+v", task)
	}
	paused := a.poll(id, "input_required")
	requests, _ := paused.Result["inputRequests"].(map[string]any)
	if len(requests) != 1 {
		t.Fatalf("input requests %v", requests)
	}
	again := a.poll(id, "input_required")
	one, _ := json.Marshal(requests)
	two, _ := json.Marshal(again.Result["inputRequests"])
	if !bytes.Equal(one, two) {
		t.Errorf("two polls gave two requests:\n%s\n%s", one, two)
	}
	for key := range requests {
		ack := a.ask("tasks/update", map[string]any{"taskId": id, "inputResponses": map[string]any{
			key: map[string]any{"action": "accept", "content": map[string]any{"approved": true}}}})
		if ack.Result["resultType"] != "complete" {
			t.Errorf("update: %+v", ack)
		}
	}
	done := a.poll(id, "completed", "failed", "cancelled")
	result, _ := done.Result["result"].(map[string]any)
	content, _ := result["structuredContent"].(map[string]any)
	if result["resultType"] != "complete" || content["status"] != "completed" || content["frame_count"] != 60.0 || content["width"] != 960.0 {
		t.Fatalf("completed with %+v", done)
	}
	link := ""
	for _, block := range result["content"].([]any) {
		if b := block.(map[string]any); b["type"] == "resource_link" {
			link, _ = b["uri"].(string)
		}
	}
	if link != content["video_uri"] || !strings.HasPrefix(link, "vidforge://videos/"+id) {
		t.Errorf("resource link %q", link)
	}
	download, _ := content["download_url"].(string)
	res, err := http.Get(download)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if n, err := io.Copy(io.Discard, res.Body); err != nil || float64(n) != content["size_bytes"] {
		t.Errorf("downloaded %d of %v bytes, %v", n, content["size_bytes"], err)
	}
}

func TestSameKeyOnTwoGatewaysIsOneRender(t *testing.T) {
	share := embeddedtest.Servers(t)
	startWorker(t, share, "w1")
	var urls []string
	for range 2 {
		url, _ := startGateway(t, share)
		urls = append(urls, url)
	}
	a := &agent{url: urls[0], t: t, tasks: true}
	source := a.upload(clip(t, 1, "160x120"))
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		ids = map[string]int{}
	)
	for i := range 50 {
		b := &agent{url: urls[i%2], t: t, tasks: true}
		wg.Go(func() {
			got := b.call("vidforge_render_video", args(source, map[string]any{"idempotency_key": "one"}))
			id, _ := got.Result["taskId"].(string)
			mu.Lock()
			ids[id]++
			mu.Unlock()
		})
	}
	wg.Wait()
	if len(ids) != 1 || ids[""] != 0 {
		t.Fatalf("50 calls made %v", ids)
	}
	for id := range ids {
		(&agent{url: urls[1], t: t, tasks: true}).poll(id, "completed")
	}
}

func TestRenderSurvivesTheDeathOfItsGateway(t *testing.T) {
	share := embeddedtest.Servers(t)
	startWorker(t, share, "w1")
	bound := t.TempDir() + "/bound"
	first := spawn(t, role{Gateway: &gateway.Config{Listen: "127.0.0.1:0", OpsListen: "127.0.0.1:0", Endpoints: share.Endpoints}, Bound: bound})
	a := &agent{url: "http://" + awaitFile(t, bound), t: t, tasks: true}
	got := a.call("vidforge_render_video", args(a.upload(clip(t, 1, "160x120")), nil))
	id, _ := got.Result["taskId"].(string)
	first.kill()
	url, _ := startGateway(t, share)
	(&agent{url: url, t: t, tasks: true}).poll(id, "completed")
}

// awaitFile waits for a file that another process writes whole.
func awaitFile(t *testing.T, file string) string {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		if b, err := os.ReadFile(file); err == nil {
			return string(b)
		}
	}
	t.Fatalf("%s did not come", file)
	return ""
}

func TestBadInputGetsItsCode(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	startWorker(t, share, "w1")
	a := &agent{url: url, t: t, tasks: true}
	source := a.upload(clip(t, 1, "160x120"))
	text := a.uploadText()
	logo := map[string]any{"image_asset_uri": source, "text": "both"}
	other := render.NewAssetID().URI()
	render := func(more map[string]any) func() answer {
		return func() answer { return a.call("vidforge_render_video", args(source, more)) }
	}
	for name, tc := range map[string]struct {
		do    func() answer
		want  string
		field string
	}{
		"unknown asset":    {render(map[string]any{"source_asset_uri": other}), "source_not_found", "source_asset_uri"},
		"wildcard asset":   {render(map[string]any{"source_asset_uri": "vidforge://assets/a_*"}), "source_not_found", "source_asset_uri"},
		"all of them":      {render(map[string]any{"source_asset_uri": "vidforge://assets/>"}), "source_not_found", "source_asset_uri"},
		"dots and spaces":  {render(map[string]any{"source_asset_uri": "vidforge://assets/a_. ./x"}), "source_not_found", "source_asset_uri"},
		"a path":           {render(map[string]any{"source_asset_uri": "file:///etc/passwd"}), "invalid_field", "source_asset_uri"},
		"text named mp4":   {render(map[string]any{"source_asset_uri": text}), "unsupported_codec", "source_asset_uri"},
		"wrong enum":       {render(map[string]any{"resolution": "8k"}), "invalid_field", "resolution"},
		"unknown format":   {render(map[string]any{"output_format": "avi"}), "invalid_field", "output_format"},
		"unknown argument": {render(map[string]any{"codec": "av1"}), "invalid_field", "codec"},
		"wrong type":       {render(map[string]any{"resolution": 720}), "invalid_field", "resolution"},
		"both watermarks":  {render(map[string]any{"watermark": logo}), "invalid_field", ""},
		"NUL in text":      {render(map[string]any{"watermark": map[string]any{"text": "a\x00b"}}), "invalid_field", "watermark.text"},
		"logo is a video":  {render(map[string]any{"watermark": map[string]any{"image_asset_uri": source}}), "unsupported_codec", "watermark.image_asset_uri"},
		"status, wildcard": {func() answer { return a.call("vidforge_get_render_status", map[string]any{"render_id": "task_*"}) }, "render_not_found", ""},
		"approve, unknown": {func() answer {
			return a.call("vidforge_approve_watermark", map[string]any{"render_id": "> .", "approved": true})
		}, "render_not_found", ""},
		"task, wildcard":    {func() answer { return a.ask("tasks/get", map[string]any{"taskId": "task_*"}) }, "task_not_found", ""},
		"task, all":         {func() answer { return a.ask("tasks/cancel", map[string]any{"taskId": ">"}) }, "task_not_found", ""},
		"resource, unknown": {func() answer { return a.ask("resources/read", map[string]any{"uri": "vidforge://videos/*/final.mp4"}) }, "resource_not_found", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := tc.do()
			if got.code() != tc.want {
				t.Fatalf("code %q, want %q: %+v", got.code(), tc.want, got)
			}
			content := got.structured()
			if got.Error != nil {
				content = got.Error.Data
			}
			details, _ := content["details"].(map[string]any)
			if tc.field != "" && details["field"] != tc.field {
				t.Errorf("details %v, want field %s", details, tc.field)
			}
			if repair, ok := content["repair"].(map[string]any); ok {
				callable(t, a, repair)
			}
		})
	}
}

// callable sends a repair's call as it is: whatever it answers, its arguments
// must not be at fault.
func callable(t *testing.T, a *agent, repair map[string]any) {
	t.Helper()
	tool, ok := repair["tool"].(string)
	if !ok {
		return
	}
	arguments, _ := repair["arguments"].(map[string]any)
	if got := a.call(tool, arguments); got.code() == "invalid_field" {
		t.Errorf("the repair cannot be sent as it is: %v gave %+v", repair, got)
	}
}

func (a *agent) uploadText() string {
	a.t.Helper()
	status, got := a.post("film.mp4", strings.NewReader(strings.Repeat("not a film at all\n", 500)))
	uri, _ := got["asset_uri"].(string)
	if status != http.StatusCreated || uri == "" || got["renderable"] != false {
		a.t.Fatalf("upload of a text: %d %v", status, got)
	}
	return uri
}

func TestBadUploadsOverHTTP(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	a := &agent{url: url, t: t}
	for name, tc := range map[string]struct {
		body   io.Reader
		status int
		code   string
	}{
		"empty":     {strings.NewReader(""), http.StatusBadRequest, "invalid_field"},
		"too large": {io.LimitReader(zeros{}, 1<<20+1), http.StatusRequestEntityTooLarge, "source_too_large"},
	} {
		if status, got := a.post("x.mp4", tc.body); status != tc.status || got["code"] != tc.code {
			t.Errorf("%s: %d %v", name, status, got)
		}
	}
	cut := fmt.Sprintf("POST /v1/assets?name=x HTTP/1.1\r\nHost: %s\r\nContent-Length: 1000\r\n\r\nonly this", strings.TrimPrefix(url, "http://"))
	hangUp(t, strings.TrimPrefix(url, "http://"), cut)
	for info, err := range share.Dial(t).Blobs.List(t.Context(), "") {
		t.Errorf("left behind: %+v, %v", info, err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestDecisionsOverAndOver(t *testing.T) {
	share := embeddedtest.Servers(t)
	url, _ := startGateway(t, share)
	startWorker(t, share, "w1")
	a := &agent{url: url, t: t, tasks: true}
	source := a.upload(clip(t, 1, "160x120"))
	paused := func() string {
		got := a.call("vidforge_render_video", args(source, map[string]any{"watermark": map[string]any{"text": "x"}}))
		id, _ := got.Result["taskId"].(string)
		a.poll(id, "input_required")
		return id
	}
	approve := func(id string, yes bool) string {
		return a.call("vidforge_approve_watermark", map[string]any{"render_id": id, "approved": yes}).code()
	}
	cancel := func(id string) answer { return a.call("vidforge_cancel_render", map[string]any{"render_id": id}) }

	id := paused()
	for i, want := range []string{"", "", "approval_already_recorded"} {
		if got := approve(id, i < 2); got != want {
			t.Errorf("decision %d: %q, want %q", i+1, got, want)
		}
	}
	a.poll(id, "completed")
	if got := cancel(id); got.code() != "" || got.structured()["state"] != "succeeded" {
		t.Errorf("cancel after completion: %+v", got)
	}

	id = paused()
	for range 2 {
		if got := cancel(id); got.code() != "" {
			t.Errorf("cancel: %+v", got)
		}
	}
	if got := approve(id, true); got != "approval_not_pending" {
		t.Errorf("approve after cancel: %q", got)
	}

	id = paused()
	if got := approve(id, false); got != "" {
		t.Errorf("reject: %q", got)
	}
	done := a.poll(id, "completed")
	result, _ := done.Result["result"].(map[string]any)
	if content, _ := result["structuredContent"].(map[string]any); result["isError"] != true || content["code"] != "watermark_rejected" {
		t.Errorf("a rejected render: %+v", done)
	}
}
