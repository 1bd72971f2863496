package gateway

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/mcptask"
	"github.com/vidforge/vidforge/pkg/render"
)

// local is the client of a gateway's standard streams.
type local struct {
	*bench
	in, out string
}

func newLocal(t *testing.T, change func(*Stdio)) *local {
	t.Helper()
	l := &local{in: t.TempDir(), out: filepath.Join(t.TempDir(), "out")}
	o := &Stdio{InputDir: l.in, OutputDir: l.out}
	change(o)
	l.bench = newBench(t, func(c *Config) { c.Stdio = o })
	t.Cleanup(func() {
		if err := l.srv.stdio.close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// ask sends lines and returns what the last of them is answered.
func (l *local) ask(method, params, caps string) json.RawMessage {
	l.Helper()
	if params != "" {
		params += ","
	}
	line := `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":` + caps + `}}}`
	var out bytes.Buffer
	if err := mcptask.ServeStdio(l.Context(), l.srv.stdio.handler(l.srv), strings.NewReader(line), &out, mcptask.StdioOptions{DrainTimeout: time.Minute}); err != nil {
		l.Fatal(err)
	}
	var m struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal(out.Bytes(), &m); err != nil || m.Result == nil {
		l.Fatalf("%s: %s", line, out.String())
	}
	return m.Result
}

type localResult struct {
	IsError           bool
	StructuredContent json.RawMessage
	Content           []struct {
		Type, URI string
		Resource  struct {
			URI, MIMEType string
			Blob          []byte
		}
	}
}

func (l *local) tool(name, args string) localResult {
	l.Helper()
	return decode[localResult](l.T, l.ask("tools/call", `"name":"`+name+`","arguments":`+args, "{}"))
}

func (l *local) source(name string) string {
	l.Helper()
	path := filepath.Join(l.in, name)
	if err := os.WriteFile(path, []byte("a video"), 0o600); err != nil {
		l.Fatal(err)
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

func fileArgs(uri, more string) string {
	return `{"source_asset_uri":"` + uri + `","output_format":"mp4","resolution":"720p"` + more + `}`
}

// The tools are described for this transport, within the same budget, and every
// word that is replaced is still there to be replaced.
func TestStdioSurface(t *testing.T) {
	t.Parallel()
	l := newLocal(t, func(*Stdio) {})
	raw := l.ask("tools/list", "", "{}")
	if len(raw) > 20<<10 {
		t.Errorf("tools/list has %d bytes", len(raw))
	}
	for text, want := range map[string]int{
		"POST /v1/assets": 0, "download_url": 0, "Name the source by its file:/// URI": 1, "The video, file:///…": 1,
		"A PNG, JPEG or WebP, file:///…": 1, `"description":"file:///… or vidforge://assets/…"`: 1, `"file_path"`: 2, `"preview_path"`: 2,
		"file:///home/ann/clip.mov": 3,
	} {
		if got := bytes.Count(raw, []byte(text)); got != want {
			t.Errorf("%q is there %d times, not %d", text, got, want)
		}
	}
	if got := l.ask("server/discover", "", "{}"); !bytes.Contains(got, []byte(l.in)) || bytes.Contains(got, []byte("POST /v1/assets")) {
		t.Errorf("instructions: %s", got)
	}
	caps := l.tool("vidforge_get_capabilities", `{"detail":"full"}`).StructuredContent
	doc := decode[struct {
		Server struct{ Transport, Fingerprint string }
	}](t, caps)
	if doc.Server.Transport != "stdio" || !bytes.Contains(caps, []byte("nor read files outside of "+l.in)) {
		t.Errorf("capabilities: %s", caps)
	}
	// The fingerprint is that of the surface, not of this user's folders.
	if other := newLocal(t, func(*Stdio) {}).srv.stdio.contract.Fingerprint(); other != doc.Server.Fingerprint {
		t.Errorf("fingerprints %s and %s", doc.Server.Fingerprint, other)
	}
	if http := l.srv.contract.Fingerprint(); http == doc.Server.Fingerprint {
		t.Error("both transports have one fingerprint")
	}
}

// Each output mode as the client sees it, and a file that cannot be written.
func TestStdioResults(t *testing.T) {
	t.Parallel()
	small, large := []byte("video"), bytes.Repeat([]byte("v"), 8<<20+1)
	for name, tt := range map[string]struct {
		change func(l *Stdio)
		video  []byte
		file   bool
		types  string
		link   string
	}{
		"files":            {func(*Stdio) {}, small, true, "text resource_link", "vidforge://videos/"},
		"resources":        {func(s *Stdio) { s.OutputDir, s.Embed = "", true }, small, false, "text resource_link resource", "vidforge://videos/"},
		"both":             {func(s *Stdio) { s.Embed = true }, small, true, "text resource_link resource", "vidforge://videos/"},
		"large resources":  {func(s *Stdio) { s.OutputDir, s.Embed = "", true }, large, false, "text resource_link", "http://127.0.0.1:"},
		"large files":      {func(*Stdio) {}, large, true, "text resource_link", "vidforge://videos/"},
		"unwritable files": {func(s *Stdio) { s.OutputDir = "/proc/none" }, small, false, "text resource_link resource", "vidforge://videos/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLocal(t, tt.change)
			res := l.tool("vidforge_render_video", fileArgs(l.source("Büro.mov"), ""))
			id := decode[struct {
				RenderID render.ID `json:"render_id"`
			}](t, res.StructuredContent).RenderID
			l.finish(id, tt.video)
			res = l.tool("vidforge_get_render_status", `{"render_id":"`+string(id)+`"}`)
			var types []string
			for _, c := range res.Content {
				types = append(types, c.Type)
			}
			if got := strings.Join(types, " "); got != tt.types {
				t.Fatalf("content %s, want %s", got, tt.types)
			}
			if !strings.HasPrefix(res.Content[1].URI, tt.link) {
				t.Errorf("link %s", res.Content[1].URI)
			}
			if strings.HasPrefix(tt.link, "http") {
				got, err := http.Get(res.Content[1].URI)
				if err != nil {
					t.Fatal(err)
				}
				defer got.Body.Close()
				if b, err := io.ReadAll(got.Body); err != nil || !bytes.Equal(b, tt.video) {
					t.Errorf("the link gives %d bytes, %v", len(b), err)
				}
			}
			if len(types) == 3 && (!bytes.Equal(res.Content[2].Resource.Blob, tt.video) || res.Content[2].Resource.MIMEType != "video/mp4") {
				t.Errorf("embedded %+v", res.Content[2])
			}
			out := decode[map[string]any](t, res.StructuredContent)
			path, _ := out["file_path"].(string)
			if (path != "") != tt.file || out["download_url"] != nil {
				t.Errorf("%s", res.StructuredContent)
			}
			if b, err := os.ReadFile(path); tt.file && (err != nil || !bytes.Equal(b, tt.video) || path != filepath.Join(l.out, "Büro.mp4")) {
				t.Errorf("%s has %d bytes, %v", path, len(b), err)
			}
		})
	}
}

// An error keeps the file in the call that repairs it, and nothing is taken in
// for a call that is wrong in another place.
func TestStdioErrors(t *testing.T) {
	t.Parallel()
	l := newLocal(t, func(*Stdio) {})
	uploads := 0
	l.farm.OnUpload = func() { uploads++ }
	uri := l.source("a.mov")
	for _, tt := range []struct{ tool, args, field, repaired string }{
		{"vidforge_render_video", fileArgs(uri, `,"quality":"High"`), "quality", `"quality":"high"`},
		{"vidforge_render_video", `{"source_asset_uri":"` + uri + `","output_format":"mp4","resolution":"8k"}`, "resolution", `"resolution":"1080p"`},
		{"vidforge_validate_render", fileArgs(uri, `,"watermark":{"image_asset_uri":"`+uri+`","opacity":7}`), "watermark.opacity", `"opacity":1`},
		{"vidforge_probe_asset", `{"asset_uri":"` + uri + `","x":1}`, "x", uri},
		{"vidforge_render_video", fileArgs("https://example.com/a.mp4", ""), "source_asset_uri", ""},
		{"vidforge_render_video", fileArgs("", ""), "source_asset_uri", ""},
		{"vidforge_render_video", fileArgs(uri, `,"watermark":{"image_asset_uri":"file:///etc/passwd"}`), "watermark.image_asset_uri", ""},
		{"vidforge_probe_asset", `{"asset_uri":"file:///etc/passwd"}`, "asset_uri", ""},
	} {
		before := uploads
		res := l.tool(tt.tool, tt.args)
		e := decode[struct {
			Details struct{ Field string }
			Repair  struct{ Arguments json.RawMessage }
		}](t, res.StructuredContent)
		if !res.IsError || e.Details.Field != tt.field || !strings.Contains(string(e.Repair.Arguments), tt.repaired) {
			t.Errorf("%s: %s", tt.args, res.StructuredContent)
		}
		if uploads != before && !strings.Contains(tt.args, "passwd") {
			t.Errorf("%s: the file was taken in", tt.args)
		}
		if tt.repaired != "" {
			if res := l.tool(tt.tool, string(e.Repair.Arguments)); res.IsError {
				t.Errorf("repaired: %s", res.StructuredContent)
			}
		}
	}
	// A gateway that may read nothing says how that is changed.
	none := newLocal(t, func(s *Stdio) { s.InputDir = "" })
	if res := none.tool("vidforge_probe_asset", `{"asset_uri":"`+uri+`"}`); !res.IsError || !bytes.Contains(res.StructuredContent, []byte("--input-dir")) {
		t.Errorf("%s", res.StructuredContent)
	}
	// Over HTTP a file is no source, also where the standard streams may name it.
	res := l.call(noCaps, "vidforge_probe_asset", `{"asset_uri":"`+uri+`"}`)
	if !res.IsError || !strings.Contains(string(res.Structured), "vidforge://assets/") {
		t.Errorf("over HTTP: %s", res.Structured)
	}
}

// The handler is not on the listener.
func TestStdioIsNotOnTheNetwork(t *testing.T) {
	t.Parallel()
	l := newLocal(t, func(*Stdio) {})
	for _, path := range []string{"/", "/stdio", "/mcp/stdio"} {
		resp, _ := l.do(http.MethodPost, path, strings.NewReader("{}"))
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %d", path, resp.StatusCode)
		}
	}
}
