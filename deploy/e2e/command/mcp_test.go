package command

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// host is an MCP host with a running 'vidforge mcp', which speaks MCP 2026-07-28
// line by line.
type host struct {
	*process
	u     *user
	in    io.WriteCloser
	lines chan string
	next  int
}

// mcp starts 'vidforge mcp'. Whatever is no message on its output fails the test.
func (u *user) mcp(args ...string) *host {
	u.t.Helper()
	h := &host{u: u, lines: make(chan string, 100)}
	h.process = &process{t: u.t, cmd: exec.Command(binary, append([]string{"mcp"}, args...)...), done: make(chan struct{})}
	h.cmd.Dir, h.cmd.Stderr = u.dir, &h.err
	h.cmd.Env = append(os.Environ(), "XDG_DATA_HOME="+u.path("data"), "TMPDIR="+u.tmp)
	in, err := h.cmd.StdinPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		u.t.Fatal(err)
	}
	h.in = in
	if err := h.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	go func() {
		defer close(h.lines)
		r := bufio.NewReader(out)
		for {
			l, err := r.ReadString('\n')
			if l != "" {
				var m struct {
					JSONRPC string `json:"jsonrpc"`
				}
				if json.Unmarshal([]byte(l), &m) != nil || m.JSONRPC != "2.0" || !strings.HasSuffix(l, "\n") {
					u.t.Errorf("on standard output: %q", l)
				}
				h.lines <- l
			}
			if err != nil {
				break
			}
		}
		_ = h.cmd.Wait() // the exit code is in ProcessState
		close(h.done)
	}()
	u.t.Cleanup(func() {
		h.signal(syscall.SIGKILL)
		go func() {
			for range h.lines { // so that its reader ends
			}
		}()
		<-h.done
		if u.t.Failed() {
			u.t.Logf("vidforge mcp:\n%s", h.err.String())
		}
	})
	return h
}

const declaresTasks = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`

// rpc sends a request and returns the result.
func (h *host) rpc(method, params string) json.RawMessage {
	h.t.Helper()
	h.next++
	if params != "" {
		params += ","
	}
	_, err := fmt.Fprintf(h.in, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":%s}}}`+"\n",
		h.next, method, params, declaresTasks)
	if err != nil {
		h.t.Fatal(err)
	}
	select {
	case l, ok := <-h.lines:
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if !ok || json.Unmarshal([]byte(l), &m) != nil || m.ID != h.next || m.Error != nil {
			h.t.Fatalf("%s: %s", method, l)
		}
		return m.Result
	case <-time.After(patience):
		h.t.Fatalf("%s is not answered", method)
		return nil
	}
}

// toolResult is what a tool answers.
type toolResult struct {
	IsError bool            `json:"isError"`
	Result  json.RawMessage `json:"structuredContent"`
	Content []struct {
		Type, URI string
		Resource  struct{ URI, MIMEType, Blob string }
	} `json:"content"`
	TaskID string `json:"taskId"`
}

func (h *host) call(tool string, args any) toolResult {
	h.t.Helper()
	raw, err := json.Marshal(args)
	if err != nil {
		h.t.Fatal(err)
	}
	var res toolResult
	if err := json.Unmarshal(h.rpc("tools/call", fmt.Sprintf(`"name":%q,"arguments":%s`, tool, raw)), &res); err != nil {
		h.t.Fatal(err)
	}
	return res
}

type arguments map[string]any

func fileURI(path string) string { return (&url.URL{Scheme: "file", Path: path}).String() }

// submit submits a render and returns its id.
func (h *host) submit(args arguments) string {
	h.t.Helper()
	res := h.call("vidforge_render_video", args)
	if res.IsError || res.TaskID == "" {
		h.t.Fatalf("%s", res.Result)
	}
	return res.TaskID
}

// status is a render as the status tool shows it.
type status struct {
	State       string `json:"state"`
	Terminal    bool   `json:"terminal"`
	FramesDone  int    `json:"frames_done"`
	FilePath    string `json:"file_path"`
	PreviewPath string `json:"preview_path"`
	DownloadURL string `json:"download_url"`
	FrameCount  int    `json:"frame_count"`
	SizeBytes   int    `json:"size_bytes"`
}

func (h *host) status(id string) (s status, res toolResult) {
	h.t.Helper()
	res = h.call("vidforge_get_render_status", arguments{"render_id": id})
	if err := json.Unmarshal(res.Result, &s); err != nil || res.IsError {
		h.t.Fatalf("%s: %v", res.Result, err)
	}
	return s, res
}

// until polls until the render is as wanted, and fails if it ended otherwise.
func (h *host) until(id, what string, as func(status) bool) (s status, res toolResult) {
	h.t.Helper()
	until(h.t, what, func() bool {
		s, res = h.status(id)
		if s.Terminal && !as(s) {
			h.t.Fatalf("the render ended: %s", res.Result)
		}
		return as(s)
	})
	return s, res
}

func succeeded(s status) bool { return s.State == "succeeded" }
func encoding(s status) bool  { return s.FramesDone > 0 }

// end closes the input and expects an end in order.
func (h *host) end() {
	h.t.Helper()
	if err := h.in.Close(); err != nil {
		h.t.Error(err)
	}
	if code := h.exit(); code != 0 {
		h.t.Errorf("exit code %d: %s", code, h.err.String())
	}
}

// named makes a clip of so many seconds under a name.
func (u *user) named(name string, seconds int) string {
	u.t.Helper()
	clip := u.clip(seconds)
	path := u.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		u.t.Fatal(err)
	}
	if err := os.Rename(clip, path); err != nil {
		u.t.Fatal(err)
	}
	return path
}

// draft are the arguments of a small render.
func draft(path string, more arguments) arguments {
	a := arguments{"source_asset_uri": fileURI(path), "output_format": "mp4", "resolution": "720p", "quality": "draft"}
	maps.Copy(a, more)
	return a
}

// slow are the arguments of a render that takes a while.
func slow(path string) arguments {
	return draft(path, arguments{"resolution": "1080p", "quality": "high", "idempotency_key": "slow"})
}

// TestMCPHost renders a file with a watermark as a host does: the video and the
// preview are files, and nothing of the user's is overwritten.
func TestMCPHost(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip := u.named("影片 50%.mp4", 2)
	mine := u.path("vidforge-output/影片 50%.mp4")
	if err := os.Mkdir(u.path("vidforge-output"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(mine, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := u.mcp("--log-level", "debug")
	var caps struct {
		Server struct {
			Transport string `json:"transport"`
		} `json:"server"`
	}
	if err := json.Unmarshal(h.call("vidforge_get_capabilities", arguments{}).Result, &caps); err != nil || caps.Server.Transport != "stdio" {
		t.Errorf("capabilities %+v, %v", caps, err)
	}
	if res := h.call("vidforge_validate_render", draft(clip, nil)); res.IsError {
		t.Errorf("validate: %s", res.Result)
	}
	id := h.submit(draft(clip, arguments{"watermark": arguments{"text": "© Ann"}, "idempotency_key": "k"}))
	paused, _ := h.until(id, "preview", func(s status) bool { return s.State == "awaiting_watermark_approval" })
	b, err := os.ReadFile(paused.PreviewPath)
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.DecodeConfig(bytes.NewReader(b)); err != nil || img.Width != 960 || img.Height != 720 {
		t.Errorf("preview %+v, %v", img, err)
	}
	if res := h.call("vidforge_approve_watermark", arguments{"render_id": id, "approved": true}); res.IsError {
		t.Errorf("approve: %s", res.Result)
	}
	done, res := h.until(id, "video", succeeded)
	if want := u.path("vidforge-output/影片 50% (2).mp4"); done.FilePath != want || done.PreviewPath != paused.PreviewPath || done.DownloadURL != "" {
		t.Errorf("%+v", done)
	}
	if got := frames(t, done.FilePath); got != "960,720,60" {
		t.Errorf("the video is %s", got)
	}
	if len(res.Content) != 2 || res.Content[1].Type != "resource_link" || !strings.HasPrefix(res.Content[1].URI, "vidforge://videos/") {
		t.Errorf("content %+v", res.Content)
	}
	if b, err := os.ReadFile(mine); err != nil || string(b) != "mine" {
		t.Errorf("the user's file is %q, %v", b, err)
	}
	h.end()

	// The same key and file after a restart: the same render, the same file.
	h = u.mcp()
	if again := h.submit(draft(clip, arguments{"watermark": arguments{"text": "© Ann"}, "idempotency_key": "k"})); again != id {
		t.Errorf("the same call after a restart: %s, not %s", again, id)
	}
	if s, _ := h.status(id); s.FilePath != done.FilePath || s.PreviewPath != done.PreviewPath {
		t.Errorf("%+v", s)
	}
	h.end()
	if got := listing(t, u.path("vidforge-output")); len(got) != 3 {
		t.Errorf("files %q", got)
	}
}

func listing(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestMCPWithTheSDKsClient connects as programs of the SDK do, in both
// generations.
func TestMCPWithTheSDKsClient(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip := u.clip(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, version := range []string{"2026-07-28", "2025-11-25", "2025-03-26"} {
		cmd := exec.Command(binary, "mcp")
		var logs buffer
		cmd.Dir, cmd.Stderr, cmd.Env = u.dir, &logs, append(os.Environ(), "XDG_DATA_HOME="+u.dir, "TMPDIR="+u.tmp)
		cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).
			Connect(ctx, &mcp.CommandTransport{Command: cmd, TerminateDuration: patience}, &mcp.ClientSessionOptions{ProtocolVersion: version})
		if err != nil {
			t.Fatalf("%s: %v: %s", version, err, logs.String())
		}
		if got := cs.InitializeResult().ProtocolVersion; got != version {
			t.Errorf("negotiated %s, not %s", got, version)
		}
		tools, err := cs.ListTools(ctx, nil)
		if err != nil || len(tools.Tools) != 7 {
			t.Fatalf("%s: %+v, %v", version, tools, err)
		}
		res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: "vidforge_probe_asset", Arguments: arguments{"asset_uri": fileURI(clip)}})
		if err != nil || res.IsError {
			t.Fatalf("%s: %+v, %v", version, res, err)
		}
		var asset struct {
			Name string `json:"name"`
		}
		if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &asset); err != nil || asset.Name != "clip.mp4" {
			t.Errorf("%s: %+v, %v", version, asset, err)
		}
		if read, err := cs.ReadResource(ctx, &mcp.ReadResourceParams{URI: "vidforge://guide"}); err != nil || !strings.Contains(read.Contents[0].Text, u.dir) {
			t.Errorf("%s: %+v, %v", version, read, err)
		}
		if err := cs.Close(); err != nil {
			t.Errorf("%s: close: %v: %s", version, err, logs.String())
		}
	}
	if got := listing(t, filepath.Join(u.dir, "vidforge-mcp")); len(got) != 1 {
		t.Errorf("one after the other used %q", got)
	}
}

// TestMCPGoesOn ends a process in the middle of an encode: in order by the end
// of its input, by SIGTERM, and by SIGKILL. The next one finishes the work.
func TestMCPGoesOn(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip := u.clip(3)
	for name, stop := range map[string]func(h *host){
		"end of input": (*host).end,
		"SIGTERM": func(h *host) {
			h.signal(syscall.SIGTERM)
			if code := h.exit(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		},
		"SIGKILL": func(h *host) { h.signal(syscall.SIGKILL); h.exit() },
	} {
		data := u.path(name)
		h := u.mcp("--data-dir", data)
		id := h.submit(slow(clip))
		h.until(id, "encoded frames", encoding)
		stop(h)
		until(t, "end of the ffmpeg of "+name, func() bool { return len(ffmpegs(t, data)) == 0 })
		h = u.mcp("--data-dir", data)
		if again := h.submit(slow(clip)); again != id {
			t.Errorf("after %s the same call is %s, not %s", name, again, id)
		}
		done, _ := h.until(id, "video after "+name, succeeded)
		if got := frames(t, done.FilePath); got != "1440,1080,90" {
			t.Errorf("after %s the video is %s", name, got)
		}
		h.end()
		if got := listing(t, data); len(got) != 1 {
			t.Errorf("data directories %q", got)
		}
	}
}

// TestTwoMCPHosts lets two hosts use the same settings at once. Each finds its
// own render again after a restart, also when the other one ended meanwhile.
func TestTwoMCPHosts(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip := u.clip(3)
	first, second := u.mcp(), u.mcp()
	a, b := first.submit(draft(clip, nil)), second.submit(slow(clip))
	if res := first.call("vidforge_get_render_status", arguments{"render_id": b}); !res.IsError {
		t.Error("one host sees the other's render")
	}
	one, _ := first.until(a, "video of the first", succeeded)
	second.until(b, "encoded frames of the second", encoding)
	first.end()
	second.signal(syscall.SIGKILL)
	second.exit()
	second = u.mcp()
	two, _ := second.until(b, "video of the second", succeeded)
	second.end()
	if one.FilePath == two.FilePath || frames(t, one.FilePath) != "960,720,90" || frames(t, two.FilePath) != "1440,1080,90" {
		t.Errorf("%+v %+v", one, two)
	}
	if got := listing(t, u.path("data/vidforge-mcp")); len(got) != 2 {
		t.Errorf("data directories %q", got)
	}
}

// TestMCPOutputModes: videos come inside the result, and in files as well only
// when both are asked for.
func TestMCPOutputModes(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip := u.clip(1)
	t.Run("unknown", func(t *testing.T) {
		if code, stdout, stderr := u.run("mcp", "--output-mode", "paper"); code != 2 || stdout != "" || !strings.Contains(stderr, "resources") {
			t.Errorf("exit code %d, %q, %s", code, stdout, stderr)
		}
	})
	for mode, wantFile := range map[string]bool{"resources": false, "both": true} {
		h := u.mcp("--output-mode", mode, "--output-dir", "out-"+mode)
		id := h.submit(draft(clip, nil))
		done, res := h.until(id, "video", succeeded)
		if len(res.Content) != 3 || res.Content[2].Type != "resource" || res.Content[2].Resource.MIMEType != "video/mp4" {
			t.Fatalf("%s: content %+v", mode, res.Content)
		}
		b, err := base64.StdEncoding.DecodeString(res.Content[2].Resource.Blob)
		if err != nil || len(b) != done.SizeBytes {
			t.Errorf("%s: %d bytes of %d, %v", mode, len(b), done.SizeBytes, err)
		}
		if (done.FilePath != "") != wantFile {
			t.Errorf("%s: file_path %q", mode, done.FilePath)
		}
		if wantFile {
			if onDisk, err := os.ReadFile(done.FilePath); err != nil || !bytes.Equal(onDisk, b) {
				t.Errorf("the file has %d bytes, %v", len(onDisk), err)
			}
		} else if _, err := os.Stat(u.path("out-" + mode)); err == nil {
			t.Error("a directory was made")
		}
		h.end()
	}
}

// TestMCPFilesOutOfReach: nothing outside of the input directory can be named.
func TestMCPFilesOutOfReach(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	secret := u.named("secret.mp4", 1)
	in := u.path("in")
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link.mp4": secret, "up": u.dir, "relative.mp4": "../secret.mp4"} {
		if err := os.Symlink(target, filepath.Join(in, name)); err != nil {
			t.Fatal(err)
		}
	}
	h := u.mcp("--input-dir", "in")
	for _, uri := range []string{
		fileURI(secret), fileURI(in + "/link.mp4"), fileURI(in + "/up/secret.mp4"), fileURI(in + "/relative.mp4"), "file://" + in + "/../secret.mp4",
		"file://" + in + "/%2e%2e/secret.mp4", "file://" + in + "/..%2Fsecret.mp4", "file:///proc/self/cwd", secret, "https://example.com/a.mp4",
	} {
		for _, tool := range []string{"vidforge_render_video", "vidforge_validate_render", "vidforge_probe_asset"} {
			args := draft("", arguments{"source_asset_uri": uri})
			if tool == "vidforge_probe_asset" {
				args = arguments{"asset_uri": uri}
			}
			if res := h.call(tool, args); !res.IsError || !bytes.Contains(res.Result, []byte(`"field":`)) {
				t.Errorf("%s of %s: %s", tool, uri, res.Result)
			}
		}
	}
	h.end()
	if _, err := os.Stat(filepath.Join(in, "vidforge-output")); err == nil {
		t.Error("something was written")
	}
}

// TestMCPPipe: what is asked by a pipe that ends at once is answered.
func TestMCPPipe(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	cmd := exec.CommandContext(t.Context(), binary, "mcp")
	cmd.Dir, cmd.Env = u.dir, append(os.Environ(), "XDG_DATA_HOME="+u.dir)
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"pipe","version":"1"}}}` + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n" + `{"jsonrpc":"2.0","id":2,"method":"ping"}`)
	out, err := cmd.Output()
	if lines := strings.Split(strings.TrimSpace(string(out)), "\n"); err != nil || len(lines) != 2 || !strings.Contains(lines[0], `"2025-11-25"`) || !strings.Contains(lines[1], `"id":2`) {
		t.Errorf("%s, %v", out, err)
	}
}
