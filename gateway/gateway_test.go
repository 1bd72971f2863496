package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/gateway/internal/farmtest"
	"github.com/vidforge/vidforge/pkg/apikey"
	"github.com/vidforge/vidforge/pkg/farm"
	"github.com/vidforge/vidforge/pkg/render"
)

// clock is a clock that tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func newClock() *clock { return &clock{t: time.Now().UTC().Truncate(time.Second)} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.t
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// bench is a gateway over a farm in memory, on a real listener.
type bench struct {
	*testing.T
	farm  *farmtest.Farm
	clock *clock
	url   string
	path  string // of the MCP endpoint
	srv   *server
	http  *httptest.Server
	key   string // API key of requests, "" for none
	logs  *bytes.Buffer
}

// newBench starts a gateway without authentication.
func newBench(t *testing.T, change ...func(*Config)) *bench {
	t.Helper()
	b := &bench{T: t, clock: newClock(), path: "/mcp", logs: &bytes.Buffer{}}
	b.farm = farmtest.New(b.clock.now)
	cfg := Config{Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(&lockedWriter{w: b.logs}, nil))}
	for _, fn := range change {
		fn(&cfg)
	}
	var h http.Handler
	b.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(w, r) }))
	b.url = b.http.URL
	var err error
	b.srv, err = newServer(cfg.withDefaults(), b.farm, shared{formKey: []byte("test secret"), sessionKey: []byte("session secret")}, strings.TrimPrefix(b.http.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	h = b.srv.handler
	t.Cleanup(func() {
		if err := b.srv.closeEndpoints(); err != nil {
			t.Error(err)
		}
		b.http.Close()
	})
	return b
}

type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// withKeys writes a keys file and returns the secrets, one for each tenant and
// its scopes ("tenant: scope scope", no scopes for all).
func withKeys(t *testing.T, specs ...string) (file string, secrets []string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "keys.yaml")
	for _, s := range specs {
		tenant, scopes, _ := strings.Cut(s, ":")
		secret, e, err := apikey.New(tenant, "test", strings.Fields(scopes), time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := apikey.Add(file, e); err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, secret)
	}
	if len(specs) == 0 {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return file, secrets
}

// at is the bench with another MCP endpoint.
func (b *bench) at(path string) *bench {
	c := *b
	c.path = path
	return &c
}

// fingerprint is that of the endpoint.
func (b *bench) fingerprint() string {
	for _, e := range b.srv.endpoints() {
		if e.Path() == b.path {
			return e.Fingerprint()
		}
	}
	b.Fatalf("no endpoint at %s", b.path)
	return ""
}

// do sends an HTTP request and returns status, headers and body.
func (b *bench) do(method, path string, body io.Reader, headers ...string) (*http.Response, []byte) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, body)
	if err != nil {
		b.Fatal(err)
	}
	if b.key != "" {
		req.Header.Set("Authorization", "Bearer "+b.key)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		b.Fatalf("%s %s: %v", method, path, err)
	}
	defer func() {
		if err := res.Body.Close(); err != nil {
			b.Error(err)
		}
	}()
	got, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatalf("%s %s: read: %v", method, path, err)
	}
	return res, got
}

// Capabilities of a request.
const (
	noCaps   = `{}`
	tasks    = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	formCaps = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{"form":{}}}`
	urlCaps  = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{"url":{}}}`
	bothCaps = `{"extensions":{"io.modelcontextprotocol/tasks":{}},"elicitation":{"form":{},"url":{}}}`
)

// answer is a JSON-RPC answer as it was on the wire.
type answer struct {
	Status int             `json:"-"`
	Raw    string          `json:"-"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	} `json:"error"`
}

// rpc sends a request of MCP 2026-07-28 with these capabilities. params is an
// object without _meta.
func (b *bench) rpc(caps, method, params string, headers ...string) answer {
	b.Helper()
	meta := fmt.Sprintf(`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s,"io.modelcontextprotocol/clientInfo":{"name":"test","version":"1"}}`, caps)
	params = strings.TrimSpace(params)
	if params == "" || params == "{}" {
		params = "{" + meta + "}"
	} else {
		params = strings.TrimSuffix(params, "}") + "," + meta + "}"
	}
	var p struct{ Name, URI, TaskID string }
	if err := json.Unmarshal([]byte(params), &p); err != nil {
		p.Name = ""
	}
	h := []string{"Content-Type", "application/json", "Accept", "application/json, text/event-stream",
		"Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", method}
	for _, n := range []string{p.Name, p.URI, p.TaskID} {
		if n != "" {
			h = append(h, "Mcp-Name", mcpName(n))
		}
	}
	return b.post(fmt.Sprintf(`{"jsonrpc":"2.0","id":7,"method":%q,"params":%s}`, method, params), append(h, headers...)...)
}

// mcpName encodes a header value that is not plain ASCII.
func mcpName(s string) string {
	for _, r := range s {
		if r < 0x20 || r > 0x7e {
			return "=?base64?" + base64Std(s) + "?="
		}
	}
	if strings.TrimSpace(s) != s {
		return "=?base64?" + base64Std(s) + "?="
	}
	return s
}

// post sends a JSON-RPC body to the endpoint and reads the answer from JSON or SSE.
func (b *bench) post(body string, headers ...string) answer {
	b.Helper()
	res, got := b.do("POST", b.path, strings.NewReader(body), headers...)
	a := answer{Status: res.StatusCode, Raw: string(got)}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		for line := range strings.SplitSeq(string(got), "\n") {
			if data, ok := strings.CutPrefix(line, "data: "); ok {
				got = []byte(data)
			}
		}
	}
	if err := json.Unmarshal(got, &a); err != nil && res.StatusCode == http.StatusOK {
		b.Fatalf("answer %q: %v", got, err)
	}
	return a
}

// toolResult is a tools/call result.
type toolResult struct {
	ResultType string           `json:"resultType"`
	Content    []map[string]any `json:"content"`
	Structured json.RawMessage  `json:"structuredContent"`
	IsError    bool             `json:"isError"`
	TaskID     string           `json:"taskId"`
	Status     string           `json:"status"`
}

// call calls a tool.
func (b *bench) call(caps, tool, args string) toolResult {
	b.Helper()
	a := b.rpc(caps, "tools/call", fmt.Sprintf(`{"name":%q,"arguments":%s}`, tool, args))
	if a.Error != nil {
		b.Fatalf("%s: %d %s %s", tool, a.Error.Code, a.Error.Message, a.Error.Data)
	}
	return decode[toolResult](b, a.Result)
}

func decode[T any](t testing.TB, raw []byte) T {
	t.Helper()
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		t.Fatalf("decode %s: %v", raw, err)
	}
	return v
}

// object decodes a JSON object.
func object(t testing.TB, raw []byte) map[string]any {
	t.Helper()
	return decode[map[string]any](t, raw)
}

// source adds a source of the local tenant.
func (b *bench) source() string {
	return b.farm.AddAsset(render.LocalTenant, "Ferien äöü.mov", farmtest.VideoFacts()).URI()
}

// renderArgs are the arguments of a render with a text watermark.
func renderArgs(source string) string {
	return fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p","watermark":{"text":"Draft","position":"top_left","opacity":0.5}}`, source)
}

// plainArgs are those of one without.
func plainArgs(source string) string {
	return fmt.Sprintf(`{"source_asset_uri":%q,"output_format":"mp4","resolution":"720p"}`, source)
}

// submit submits a render as a task.
func (b *bench) submit(caps, args string) render.ID {
	b.Helper()
	r := b.call(caps, "vidforge_render_video", args)
	id, ok := render.ParseID(r.TaskID)
	if !ok {
		b.Fatalf("no task: %+v %s", r, r.Structured)
	}
	return id
}

func (b *bench) apply(id render.ID, evs ...render.Event) {
	b.Helper()
	for _, ev := range evs {
		if err := b.farm.Apply(id, ev); err != nil {
			b.Fatal(err)
		}
	}
}

// pause brings a watermarked render to its approval.
func (b *bench) pause(id render.ID) {
	b.Helper()
	o := b.farm.Put("preview/"+string(id), testPNG(b, 1280, 720))
	b.apply(id, render.Claimed{}, render.PreviewReady{Result: render.StageResult{
		Work: render.Work{Generation: 1}, Object: o, Width: 1280, Height: 720}})
}

// encode brings a render that need not wait to its encode step.
func (b *bench) encode(id render.ID) {
	b.Helper()
	b.apply(id, render.Claimed{}, render.Planned{Result: render.StageResult{Work: render.Work{Generation: 1}, Plan: &render.Plan{Generation: 1, Segments: []render.Segment{{To: 300}}}}})
}

// finish brings a render from its plan step to its end.
func (b *bench) finish(id render.ID, video []byte) {
	b.Helper()
	b.encode(id)
	o := b.farm.Put("video/"+string(id), video)
	b.apply(id, render.Encoded{Generation: 1}, render.Assembled{Result: render.StageResult{Work: render.Work{Generation: 1}, Output: &render.Output{
		Object: o, Duration: 10 * time.Second, Width: 1280, Height: 720, Frames: 300, VideoCodec: "h264", AudioCodec: "aac",
		WatermarkApplied: true, Encoder: "libx264", FallbackReason: "the hardware encoder failed", SegmentsTotal: 1}}})
}

// failWith ends a render with a failure.
func (b *bench) failWith(id render.ID, code render.Code, message string) {
	b.Helper()
	b.apply(id, render.Failed{Failure: render.Failure{Code: code, Message: message, Temporary: render.Describe(code).Temporary, Stage: render.StageSegment, LogTail: []string{"x264: \x1b[31mfailed"}}})
}

// task gets a task.
func (b *bench) task(caps string, id render.ID) map[string]any {
	b.Helper()
	a := b.rpc(caps, "tasks/get", fmt.Sprintf(`{"taskId":%q}`, id))
	if a.Error != nil {
		b.Fatalf("tasks/get: %s", a.Raw)
	}
	return object(b, a.Result)
}

// waitWatched waits until the farm has n watchers.
func (b *bench) waitWatched(n int) {
	b.Helper()
	if err := b.farm.WaitWatched(b.Context(), n); err != nil {
		b.Fatal(err)
	}
}

// submission is a plain request for a render.
func submission(src render.AssetID) farm.Submission {
	return farm.Submission{Request: render.Request{SourceAssetURI: src.URI(), OutputFormat: "mp4", Resolution: "720p"}}
}
