package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image/png"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
)

// binary is the path of the command under test, built by TestMain.
var binary string

func TestMain(m *testing.M) {
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "vidforge-command-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary = filepath.Join(dir, "vidforge")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", binary, "github.com/vidforge/vidforge/deploy/vidforge")
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("go build: %w: %s", err, out)
	}
	return m.Run(), nil
}

// patience bounds each wait of these tests; what they wait for takes seconds on
// an idle machine.
const patience = 3 * time.Minute

// buffer collects a process's output while the test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *buffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *buffer) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// process is a running command.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, err buffer
	done     chan struct{}
}

// user is a person with a folder of their own.
type user struct {
	t   *testing.T
	dir string   // their working directory
	tmp string   // their temporary directory
	env []string // beside the test's own
}

func newUser(t *testing.T) *user {
	t.Helper()
	return &user{t: t, dir: t.TempDir(), tmp: t.TempDir()}
}

func (u *user) path(name string) string { return filepath.Join(u.dir, name) }

// start starts the command; the test's end kills it.
func (u *user) start(args ...string) *process {
	u.t.Helper()
	p := &process{t: u.t, cmd: exec.Command(binary, args...), done: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = u.dir, &p.out, &p.err
	p.cmd.Env = slices.Concat(os.Environ(), []string{"XDG_DATA_HOME=" + u.dir, "TMPDIR=" + u.tmp}, u.env)
	if err := p.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // the exit code is in ProcessState
	}()
	u.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if u.t.Failed() {
			u.t.Logf("vidforge %s:\n%s%s", strings.Join(args, " "), p.out.String(), p.err.String())
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("signal: %v", err)
	}
}

// exit waits for the process's end and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("vidforge %s does not end", p.cmd.Args[1])
		return 0
	}
}

// run runs the command to its end.
func (u *user) run(args ...string) (code int, stdout, stderr string) {
	u.t.Helper()
	p := u.start(args...)
	code = p.exit()
	return code, p.out.String(), p.err.String()
}

// ok runs the command and expects success.
func (u *user) ok(args ...string) (stdout string) {
	u.t.Helper()
	code, stdout, stderr := u.run(args...)
	if code != 0 {
		u.t.Fatalf("vidforge %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// match waits until output has what the pattern's group catches.
func (p *process) match(b *buffer, pattern string) string {
	p.t.Helper()
	re := regexp.MustCompile(pattern)
	var got string
	until(p.t, "output like "+pattern, func() bool {
		m := re.FindStringSubmatch(b.String())
		if m != nil {
			got = m[1]
			return true
		}
		select {
		case <-p.done:
			p.t.Fatalf("vidforge %s ended without %s: %s", p.cmd.Args[1], pattern, p.err.String())
		default:
		}
		return false
	})
	return got
}

// until polls what no signal tells.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); {
		if time.Now().After(deadline) {
			t.Fatalf("no %s in %s", what, patience)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// farm is a running 'vidforge up'.
type farm struct {
	*process
	url, ops string
}

func (u *user) up(listen, dataDir string, args ...string) *farm {
	u.t.Helper()
	p := u.start(append([]string{"up", "--listen", listen, "--ops-listen", "127.0.0.1:0", "--data-dir", dataDir}, args...)...)
	return &farm{process: p, url: p.match(&p.out, `MCP endpoint\s+(\S+)/mcp`), ops: p.match(&p.out, `Health\s+(\S+)/readyz`)}
}

// clip makes a small source with sound.
func (u *user) clip(seconds int) string {
	u.t.Helper()
	file := u.path("clip.mp4")
	cmd := exec.CommandContext(u.t.Context(), "ffmpeg", "-nostdin", "-v", "error", "-y",
		"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=320x240:rate=30:duration=%d", seconds),
		"-f", "lavfi", "-i", fmt.Sprintf("sine=frequency=440:duration=%d", seconds),
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", file)
	if out, err := cmd.CombinedOutput(); err != nil {
		u.t.Fatalf("ffmpeg: %v: %s", err, out)
	}
	return file
}

// frames counts the frames of a video by decoding it.
func frames(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "ffprobe", "-v", "error", "-count_frames", "-select_streams", "v",
		"-show_entries", "stream=nb_read_frames,width,height", "-of", "csv=p=0", file).Output()
	if err != nil {
		t.Fatalf("ffprobe: %v", err)
	}
	return strings.TrimSpace(string(out))
}

// untilEncoding waits until frames of the render are done, and fails if it is
// over by then.
func (u *user) untilEncoding(url, id string) {
	u.t.Helper()
	until(u.t, "encoded frames", func() bool {
		req, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, url+"/v1/renders/"+id, http.NoBody)
		if err != nil {
			u.t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			u.t.Fatal(err)
		}
		defer resp.Body.Close()
		var s struct {
			Terminal   bool  `json:"terminal"`
			FramesDone int64 `json:"frames_done"`
		}
		if err := json.NewDecoder(resp.Body).Decode(&s); err != nil {
			u.t.Fatal(err)
		}
		if s.Terminal {
			u.t.Fatal("the render is over already")
		}
		return s.FramesDone > 0
	})
}

// ffmpegs lists the ffmpeg processes that work below dir.
func ffmpegs(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range cmdlines {
		line, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		cwd, _ := os.Readlink(filepath.Join(filepath.Dir(file), "cwd"))
		if bytes.Contains(line, []byte("ffmpeg")) && (strings.HasPrefix(cwd, dir) || bytes.Contains(line, []byte(dir))) {
			found = append(found, file+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// TestFarmSurvivesSIGKILL kills the whole farm in the middle of an encode. The
// client stays, and gets its video from the farm that is started again.
func TestFarmSurvivesSIGKILL(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip, data := u.clip(3), u.path("data")
	hold := programs.NewHold(t)
	u.env = hold.Env
	first := u.up("127.0.0.1:0", data)
	hold.On()
	client := u.start("render", clip, "-o", "out.mp4", "--server", first.url, "--json", "--resolution", "1080p", "--quality", "high")
	id := client.match(&client.err, `Render (task_[a-z2-7]{26})`)
	u.untilEncoding(first.url, id)
	first.signal(syscall.SIGKILL)
	first.exit()
	until(t, "word of the client that the server is away", func() bool { return strings.Contains(client.err.String(), "trying again") })
	until(t, "end of the killed farm's ffmpeg", func() bool { return len(ffmpegs(t, data)) == 0 })

	hold.Release()
	second := u.up(strings.TrimPrefix(first.url, "http://"), data)
	if code := client.exit(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var report struct {
		RenderID string `json:"render_id"`
		Video    struct {
			FrameCount int `json:"frame_count"`
		} `json:"video"`
	}
	if err := json.Unmarshal([]byte(client.out.String()), &report); err != nil {
		t.Fatal(err)
	}
	if report.RenderID != id || report.Video.FrameCount != 90 {
		t.Errorf("report %+v", report)
	}
	if got := frames(t, u.path("out.mp4")); got != "1440,1080,90" {
		t.Errorf("the video is %s", got)
	}
	second.signal(syscall.SIGTERM)
	if code := second.exit(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if left := ffmpegs(t, data); len(left) > 0 {
		t.Errorf("still runs: %q", left)
	}
}

// TestFarmAndItsCommands runs one farm and all that is done with it.
func TestFarmAndItsCommands(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	clip, data, keys := u.clip(2), u.path("vidforge"), u.path("keys.yaml")
	secret := strings.TrimSpace(u.ok("keys", "new", "--file", keys, "--tenant", "acme"))
	farm := u.up("127.0.0.1:0", data, "--keys-file", keys)
	if err := os.WriteFile(u.path("key"), []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) []string { return append(args, "--api-key-file", "key") }

	t.Run("printed configuration is JSON", func(t *testing.T) {
		_, snippet, _ := strings.Cut(farm.out.String(), "MCP client:")
		var config struct {
			Servers map[string]struct {
				Type, URL string
				Headers   map[string]string
			} `json:"mcpServers"`
		}
		if err := json.Unmarshal([]byte(snippet), &config); err != nil {
			t.Fatalf("%v: %s", err, snippet)
		}
		if s := config.Servers["vidforge"]; s.Type != "http" || s.URL != farm.url+"/mcp" || s.Headers["Authorization"] == "" {
			t.Errorf("server %+v", s)
		}
		if strings.Contains(farm.out.String()+farm.err.String(), secret) {
			t.Error("the key was printed")
		}
	})
	t.Run("a second one names the first", func(t *testing.T) {
		code, _, stderr := u.run("up", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--data-dir", data)
		if code != 8 || !strings.Contains(stderr, fmt.Sprintf("process %d", farm.cmd.Process.Pid)) || !strings.Contains(stderr, farm.url) {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		if code, _, stderr := u.run("render", clip, "-o", "out.mp4", "--data-dir", data); code != 8 {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	t.Run("the farm of the data directory is found", func(t *testing.T) {
		if code, _, stderr := u.run("assets", "ls"); code != 9 {
			t.Errorf("exit code %d without a key: %s", code, stderr)
		}
		u.ok(as("assets", "ls")...)
	})
	t.Run("doctor", func(t *testing.T) {
		var report struct {
			Checks []struct {
				Name   string
				OK     bool
				Detail string
			}
		}
		if err := json.Unmarshal([]byte(u.ok(as("doctor", "--json")...)), &report); err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, c := range report.Checks {
			found[c.Name] = c.OK
		}
		for _, name := range []string{"ffmpeg", "encoder libx264", "fonts latin", "scratch space", "server", "stores"} {
			if !found[name] {
				t.Errorf("%s is not ok in %+v", name, report.Checks)
			}
		}
	})
	t.Run("assets", func(t *testing.T) {
		uri := strings.TrimSpace(u.ok(as("assets", "put", clip)...))
		if !strings.Contains(u.ok(as("assets", "ls")...), uri) {
			t.Error("the asset is not listed")
		}
		u.ok(as("assets", "rm", uri)...)
		if strings.Contains(u.ok(as("assets", "ls")...), uri) {
			t.Error("the deleted asset is listed")
		}
		if code, _, stderr := u.run(as("assets", "rm", uri)...); code != 10 {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	t.Run("render, look, cancel", func(t *testing.T) {
		var report struct {
			RenderID string `json:"render_id"`
		}
		out := u.ok(as("render", clip, "-o", "out.mp4", "--server", farm.url, "--resolution", "720p", "--quality", "draft", "--json")...)
		if err := json.Unmarshal([]byte(out), &report); err != nil {
			t.Fatal(err)
		}
		if out := u.ok(as("status", report.RenderID, "--watch")...); !strings.Contains(out, "succeeded") {
			t.Errorf("status %s", out)
		}
		if out := u.ok(as("cancel", report.RenderID)...); !strings.Contains(out, "succeeded") {
			t.Errorf("cancelling a finished render says %s", out)
		}
		if code, _, stderr := u.run(as("status", "task_"+strings.Repeat("a", 26))...); code != 10 {
			t.Errorf("exit code %d for an unknown render: %s", code, stderr)
		}
	})
	t.Run("refused", func(t *testing.T) {
		if err := os.WriteFile(u.path("text.mp4"), []byte("this is no video"), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := u.run(as("render", "text.mp4", "-o", "no.mp4", "--server", farm.url)...)
		if code != 5 || !strings.Contains(stderr, "unsupported_codec") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
		code, _, stderr = u.run(as("render", clip, "-o", "no.mp4", "--server", farm.url, "--resolution", "8k")...)
		if code != 2 || !strings.Contains(stderr, "resolution") {
			t.Errorf("exit code %d: %s", code, stderr)
		}
	})
	sweep := func(when string) {
		if out := u.ok("sweep", "--dry-run", "--data-dir", data); out != "" {
			t.Errorf("%s a sweep would delete %s", when, out)
		}
		var report struct {
			Seen  int
			Found map[string]any
		}
		if err := json.Unmarshal([]byte(u.ok("sweep", "--json", "--data-dir", data)), &report); err != nil || report.Seen == 0 || len(report.Found) > 0 {
			t.Errorf("%s a sweep said %+v, %v", when, report, err)
		}
	}
	sweep("while it runs")
	farm.signal(syscall.SIGTERM)
	if code := farm.exit(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	sweep("after it has ended")
	if code, _, stderr := u.run("assets", "ls"); code != 2 || !strings.Contains(stderr, "no farm runs") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// TestRenderOnAFarmOfItsOwn names files relative to a working directory that
// the embedded farm leaves.
func TestRenderOnAFarmOfItsOwn(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.clip(2)
	args := []string{
		"render", "clip.mp4", "-o", "out.mp4", "--resolution", "720p", "--quality", "draft", "--watermark-text", "© Ann", "--preview-out", "preview.png",
	}
	if code, _, stderr := u.run(args...); code != 7 || !strings.Contains(stderr, "--approve") {
		t.Errorf("exit code %d where nobody can be asked: %s", code, stderr)
	}
	if out := u.ok(append(args, "--approve")...); strings.TrimSpace(out) != u.path("out.mp4") {
		t.Errorf("printed %q", out)
	}
	if got := frames(t, u.path("out.mp4")); got != "960,720,60" {
		t.Errorf("the video is %s", got)
	}
	preview, err := os.ReadFile(u.path("preview.png"))
	if err != nil {
		t.Fatal(err)
	}
	if img, err := png.DecodeConfig(bytes.NewReader(preview)); err != nil || img.Width != 960 || img.Height != 720 {
		t.Errorf("the preview is %+v, %v", img, err)
	}
	u.tidy("clip.mp4", "out.mp4", "preview.png")
}

// tidy fails if anything but the named files is left.
func (u *user) tidy(expected ...string) {
	u.t.Helper()
	for _, dir := range []string{u.dir, u.tmp} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			u.t.Fatal(err)
		}
		for _, e := range entries {
			if dir == u.tmp || !slices.Contains(expected, e.Name()) {
				u.t.Errorf("leftover %s", filepath.Join(dir, e.Name()))
			}
		}
	}
}

// TestInterruptCancels sends what Ctrl-C sends.
func TestInterruptCancels(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.clip(4)
	p := u.start("render", "clip.mp4", "-o", "out.mp4", "--resolution", "1080p", "--quality", "high", "--log-level", "info")
	p.match(&p.err, `(task_[a-z2-7]{26})\.`)
	until(t, "an ffmpeg", func() bool { return len(ffmpegs(t, u.tmp)) > 0 })
	p.signal(syscall.SIGINT)
	if code := p.exit(); code != 4 {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(p.err.String(), "The render is cancelled.") {
		t.Error("it does not say that the render is cancelled")
	}
	if left := ffmpegs(t, u.tmp); len(left) > 0 {
		t.Errorf("still runs: %q", left)
	}
	u.tidy("clip.mp4")
}
