package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// client is an agent that renders through whichever gateway answers, and sends
// again whatever got no answer.
type client struct {
	t    testing.TB
	site *site
	name string // that of its idempotency keys
	key  string // credential, "" for none
	// wait is how long it waits for an answer before it asks another gateway.
	wait time.Duration
	turn int
	http *http.Client
	// clip is what it uploads, of so many frames.
	clip   []byte
	frames int
	// statuses are those of its task, as they came, without repetitions.
	statuses []string
	updated  string
	// inputs are the bytes of the input request.
	inputs string
}

// stoppedWait is how long a client waits for a gateway that stands still.
const stoppedWait = 5 * time.Second

func (s *site) client() *client {
	s.clients++
	return &client{t: s.t, name: fmt.Sprintf("%s, %d", s.t.Name(), s.clients), site: s, wait: time.Minute, clip: built.clip, frames: clipFrames, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}}
}

// send sends a request to one gateway after the other until one answers.
func (c *client) send(method, path string, header map[string]string, body []byte) (status int, answer []byte) {
	c.t.Helper()
	var failed error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		urls := c.site.gateways()
		if len(urls) > 0 {
			url := urls[c.turn%len(urls)]
			if strings.HasPrefix(path, "http") {
				url = ""
			}
			status, answer, failed = c.try(method, url+path, header, body)
			if failed == nil && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable {
				return status, answer
			}
			c.turn++
		}
		time.Sleep(50 * time.Millisecond) // a gateway may be starting
	}
	c.t.Fatalf("%s %s: no answer; the last: %d %s, %v", method, path, status, answer, failed)
	return 0, nil
}

func (c *client) try(method, url string, header map[string]string, body []byte) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), c.wait)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	return res.StatusCode, raw, err
}

// upload uploads the clip, again until it has an answer, and waits until the
// asset can be used.
func (c *client) upload() (uri string) {
	c.t.Helper()
	status, raw := c.send(http.MethodPost, "/v1/assets?name=clip.mp4", map[string]string{"Content-Type": "video/mp4"}, c.clip)
	var asset struct {
		URI        string `json:"asset_uri"`
		Renderable bool   `json:"renderable"`
	}
	if err := json.Unmarshal(raw, &asset); err != nil || status != http.StatusCreated {
		c.t.Fatalf("upload: %d %s", status, raw)
	}
	if !asset.Renderable {
		c.ready(asset.URI)
	}
	return asset.URI
}

// ready waits until an asset can be used.
func (c *client) ready(uri string) {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) { // a worker in another process
		status, raw := c.send(http.MethodGet, "/v1/assets/"+strings.TrimPrefix(uri, "vidforge://assets/"), nil, nil)
		var asset struct {
			Renderable bool `json:"renderable"`
		}
		if err := json.Unmarshal(raw, &asset); err != nil || time.Now().After(deadline) {
			c.t.Fatalf("the asset does not become ready: %d %s", status, raw)
		}
		if asset.Renderable {
			return
		}
	}
}

// answer is a JSON-RPC answer.
type answer struct {
	Result map[string]any `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (a answer) structured() map[string]any {
	s, _ := a.Result["structuredContent"].(map[string]any)
	return s
}

func (c *client) ask(method string, params map[string]any) answer {
	c.t.Helper()
	params = maps.Clone(params)
	params["_meta"] = map[string]any{
		"io.modelcontextprotocol/protocolVersion": "2026-07-28",
		"io.modelcontextprotocol/clientInfo":      map[string]any{"name": "faults", "version": "1"},
		"io.modelcontextprotocol/clientCapabilities": map[string]any{
			"extensions":  map[string]any{"io.modelcontextprotocol/tasks": map[string]any{}},
			"elicitation": map[string]any{"form": map[string]any{}},
		},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		c.t.Fatal(err)
	}
	header := map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method,
	}
	for _, name := range []string{"name", "taskId"} {
		if v, ok := params[name].(string); ok {
			header["Mcp-Name"] = v
		}
	}
	for deadline := time.Now().Add(patience); ; {
		status, raw := c.send(http.MethodPost, "/mcp", header, body)
		if _, event, ok := bytes.Cut(raw, []byte("data: ")); ok {
			raw = bytes.TrimSpace(event)
		}
		var a answer
		if err := json.Unmarshal(raw, &a); err != nil {
			c.t.Fatalf("%s: HTTP %d %s: %v", method, status, raw, err)
		}
		if a.Result["isError"] != true || a.structured()["temporary"] != true || time.Now().After(deadline) {
			return a
		}
		time.Sleep(100 * time.Millisecond) // as the error asks for, though sooner
	}
}

func (c *client) call(tool string, arguments map[string]any) answer {
	c.t.Helper()
	return c.ask("tools/call", map[string]any{"name": tool, "arguments": arguments})
}

// order is a render request with an idempotency key; a nil in more leaves the
// argument out.
func order(source, key string, more map[string]any) map[string]any {
	m := map[string]any{
		"source_asset_uri": source, "output_format": "mp4", "resolution": "720p", "quality": "draft",
		"watermark": map[string]any{"text": "mark"}, "idempotency_key": key,
	}
	maps.Copy(m, more)
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	return m
}

func (c *client) submit(arguments map[string]any) (id string) {
	c.t.Helper()
	a := c.call("vidforge_render_video", arguments)
	id, _ = a.Result["taskId"].(string)
	if id == "" {
		c.t.Fatalf("the render tool answered %+v", a)
	}
	return id
}

// may lists what a status may be followed by.
var may = map[string][]string{
	"":               {"working", "input_required", "completed"},
	"working":        {"input_required", "completed", "cancelled"},
	"input_required": {"working", "completed", "cancelled"},
}

// look asks for the task once and checks that it came here from where it was.
func (c *client) look(id string) (status string, a answer) {
	c.t.Helper()
	a = c.ask("tasks/get", map[string]any{"taskId": id})
	status, _ = a.Result["status"].(string)
	last := ""
	if len(c.statuses) > 0 {
		last = c.statuses[len(c.statuses)-1]
	}
	if status != last {
		if !slices.Contains(may[last], status) {
			c.t.Errorf("task %s went from %q to %q: %+v", id, last, status, a)
		}
		c.statuses = append(c.statuses, status)
	}
	updated, _ := a.Result["lastUpdatedAt"].(string)
	if updated < c.updated {
		c.t.Errorf("task %s was updated at %s, and later at %s", id, c.updated, updated)
	}
	c.updated = updated
	if requests, _ := a.Result["inputRequests"].(map[string]any); len(requests) > 0 {
		b, err := json.Marshal(requests)
		if err != nil {
			c.t.Fatal(err)
		}
		if c.inputs == "" {
			c.inputs = string(b)
		}
		if c.inputs != string(b) {
			c.t.Errorf("two polls gave two requests:\n%s\n%s", c.inputs, b)
		}
	}
	return status, a
}

const (
	pollEvery = 150 * time.Millisecond
	approve   = "approve"
	reject    = "reject"
)

// follow polls the task to its end, answering what it asks for.
func (c *client) follow(id, decision string) answer {
	c.t.Helper()
	a := c.until(id, "completed", "cancelled", "input_required")
	if c.statuses[len(c.statuses)-1] == "input_required" && decision != "" {
		c.answer(id, map[string]any{"action": "accept", "content": map[string]any{"approved": decision == approve}})
		a = c.until(id, "completed", "cancelled")
	}
	return a
}

// until polls until the task has one of the statuses.
func (c *client) until(id string, wanted ...string) answer {
	c.t.Helper()
	for deadline := time.Now().Add(patience); ; {
		status, a := c.look(id)
		if slices.Contains(wanted, status) {
			return a
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("task %s is still %+v, not %v", id, a, wanted)
		}
		time.Sleep(pollEvery)
	}
}

func (c *client) answer(id string, response map[string]any) {
	c.t.Helper()
	a := c.ask("tasks/update", map[string]any{"taskId": id, "inputResponses": map[string]any{"watermark-approval-1": response}})
	if a.Error != nil {
		c.t.Errorf("tasks/update: %+v", a)
	}
}

// video checks that the task is completed with a video that is what the answer
// says, and that every gateway says the same.
func (c *client) video(id string, done answer) {
	c.t.Helper()
	result, _ := done.Result["result"].(map[string]any)
	said, _ := result["structuredContent"].(map[string]any)
	if said["status"] != "completed" || said["frame_count"] != float64(c.frames) || said["render_id"] != id {
		c.t.Fatalf("task %s ended with %+v", id, done)
	}
	url, _ := said["download_url"].(string)
	status, body := c.send(http.MethodGet, url, nil, nil)
	sum := sha256.Sum256(body)
	if status != http.StatusOK || hex.EncodeToString(sum[:]) != said["sha256"] || float64(len(body)) != said["size_bytes"] {
		c.t.Errorf("download of %s: %d, %d bytes, SHA-256 %x; announced %v", id, status, len(body), sum, said)
	}
	file := filepath.Join(c.t.TempDir(), "video.mp4")
	if err := os.WriteFile(file, body, 0o600); err != nil {
		c.t.Fatal(err)
	}
	out, err := exec.CommandContext(c.t.Context(), "ffprobe", "-v", "error", "-count_frames", "-select_streams", "v",
		"-show_entries", "stream=nb_read_frames,width", "-of", "csv=p=0", file).CombinedOutput()
	if want := fmt.Sprintf("%v,%d", said["width"], c.frames); err != nil || strings.TrimSpace(string(out)) != want {
		c.t.Errorf("ffprobe of %s: %s, %v; want %s", id, out, err, want)
	}
	for range 2 * max(1, len(c.site.gateways())) {
		c.turn++
		_, again := c.look(id)
		if result, _ := again.Result["result"].(map[string]any); !same(result["structuredContent"], said) {
			c.t.Errorf("the end of %s changed from %+v to %+v", id, said, result)
		}
	}
}

// same compares two results but for the download's URL, which is new each time.
func same(a any, b map[string]any) bool {
	m, ok := a.(map[string]any)
	if !ok {
		return false
	}
	m, b = maps.Clone(m), maps.Clone(b)
	for _, k := range []string{"download_url", "download_expires_at"} {
		delete(m, k)
		delete(b, k)
	}
	return fmt.Sprint(m) == fmt.Sprint(b)
}
