package processes

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/vidforge/vidforge/deploy/e2e/programs"
	"github.com/vidforge/vidforge/deploy/e2e/servers"
	"github.com/vidforge/vidforge/pkg/farm"
)

// built is the folder of the programs and of a clip, made by TestMain.
var built string

const (
	clipFrames = 90
	// patience bounds each wait; what is waited for takes seconds on an idle
	// machine.
	patience = 3 * time.Minute
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := buildAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func buildAndRun(m *testing.M) (code int, err error) {
	if built, err = os.MkdirTemp("", "vidforge-processes-"); err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(built)) }()
	const module = "github.com/vidforge/vidforge/"
	err = programs.Build(context.Background(), built, "", module+"gateway/cmd/vidforge-gateway", module+"worker/cmd/vidforge-worker", module+"deploy/vidforge")
	if err != nil {
		return 1, err
	}
	clip := exec.CommandContext(context.Background(), "ffmpeg", "-nostdin", "-v", "error",
		"-f", "lavfi", "-i", fmt.Sprintf("testsrc2=size=320x240:rate=30:duration=%d", clipFrames/30),
		"-f", "lavfi", "-i", fmt.Sprintf("sine=frequency=440:duration=%d", clipFrames/30),
		"-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-c:a", "aac", filepath.Join(built, "clip.mp4"))
	if out, err := clip.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("ffmpeg: %w: %s", err, out)
	}
	return m.Run(), nil
}

// program is a gateway or a worker.
type program struct {
	*programs.Program
	t   *testing.T
	ops string // URL of the operators' port
	url string // of a gateway that listens
}

func launch(t *testing.T, name string, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t, Program: programs.Start(t, filepath.Join(built, name), env, append([]string{"--ops-listen", "127.0.0.1:0"}, args...)...)}
	p.ops = "http://" + p.Logged("answers operators")["address"].(string)
	return p
}

func gateway(t *testing.T, e farm.Endpoints, args ...string) *program {
	t.Helper()
	return launch(t, "vidforge-gateway", programs.Endpoints(e), append([]string{"--listen", "127.0.0.1:0"}, args...)...)
}

// listens waits until a gateway takes requests.
func (p *program) listens() *program {
	p.t.Helper()
	p.url = "http://" + p.Logged("gateway listens")["address"].(string)
	return p
}

func worker(t *testing.T, e farm.Endpoints, args ...string) *program {
	t.Helper()
	return launch(t, "vidforge-worker", programs.Endpoints(e), append([]string{"--scratch-dir", t.TempDir()}, args...)...)
}

// held is a worker whose encodes are held from now on, until hold is released.
func held(t *testing.T, hold *programs.Hold, e farm.Endpoints, args ...string) *program {
	t.Helper()
	p := launch(t, "vidforge-worker", append(programs.Endpoints(e), hold.Env...), append([]string{"--scratch-dir", t.TempDir()}, args...)...)
	p.Logged("worker takes work")
	hold.On()
	return p
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body)
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

func (p *program) ready(code int, text string) func() bool {
	return func() bool {
		got, body := get(p.t, p.ops+"/readyz")
		return got == code && body == text+"\n"
	}
}

// client starts a render by the command line.
func client(t *testing.T, url string, args ...string) (p *programs.Program, out string) {
	t.Helper()
	out = filepath.Join(t.TempDir(), "out.mp4")
	args = append([]string{"render", filepath.Join(built, "clip.mp4"), "-o", out, "--server", url, "--json", "--resolution", "720p"}, args...)
	return programs.Start(t, filepath.Join(built, "vidforge"), []string{"HOME=" + t.TempDir()}, args...), out
}

// finished waits for a client's video and checks it.
func finished(t *testing.T, p *programs.Program, out string) (id string) {
	t.Helper()
	if code := p.Exit(); code != 0 {
		t.Fatalf("render: exit code %d", code)
	}
	var report struct {
		ID string `json:"render_id"`
	}
	if err := json.Unmarshal([]byte(p.Out.String()), &report); err != nil {
		t.Fatal(err)
	}
	got, err := exec.CommandContext(t.Context(), "ffprobe", "-v", "error", "-count_frames", "-select_streams", "v",
		"-show_entries", "stream=nb_read_frames,width,height", "-of", "csv=p=0", out).Output()
	if want := fmt.Sprintf("960,720,%d", clipFrames); err != nil || strings.TrimSpace(string(got)) != want {
		t.Errorf("the video is %q, %v, want %s", got, err, want)
	}
	return report.ID
}

// TestAnyOrder starts the programs before the servers that they need. They say
// what they wait for, to operators and in the log, without credentials, and
// begin when it is there; Redis is not needed at all.
func TestAnyOrder(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	e := s.Endpoints()
	s.NATS.Kill(t)
	s.S3.Kill(t)
	s.Redis.Kill(t)
	e.NATSURL = strings.Replace(e.NATSURL, "://", "://user:geheim@", 1)

	front, back := gateway(t, e), worker(t, e)
	for _, p := range []*program{front, back} {
		until(t, "word that it waits for NATS", p.ready(503, "waits for NATS"))
		if code, body := get(t, p.ops+"/healthz"); code != 200 {
			t.Errorf("/healthz while waiting: %d %s", code, body)
		}
		if line := p.Logged("waits for a store"); line["store"] != "NATS" || line["level"] != "WARN" || line["error"] == nil {
			t.Errorf("logged %v", line)
		}
	}
	s.NATS.Restart(t)
	until(t, "word that it waits for S3", front.ready(503, "waits for S3")) // where it is to make the bucket
	s.S3.Restart(t)
	front.listens()
	for _, p := range []*program{front, back} {
		until(t, "readiness", p.ready(200, "ok"))
	}
	s.S3.Kill(t)
	for _, p := range []*program{front, back} {
		until(t, "word that it is not ready without S3", p.ready(503, "not ready"))
	}
	s.S3.Restart(t)
	for _, p := range []*program{front, back} {
		until(t, "readiness", p.ready(200, "ok"))
	}
	p, out := client(t, front.url, "--watermark-text", "© Ann", "--approve")
	id := finished(t, p, out)

	for _, c := range []struct {
		p      *program
		metric string
		labels map[string]string
	}{
		{back, "vidforge_stage_duration_seconds", map[string]string{"stage": "segment", "outcome": "done"}},
		{back, "vidforge_stage_duration_seconds", map[string]string{"stage": "preview", "outcome": "done"}},
		{front, "vidforge_http_request_duration_seconds", map[string]string{"route": "POST /v1/assets", "status": "201"}},
		{front, "go_goroutines", nil},
		{back, "process_open_fds", nil},
	} {
		if !c.p.measures(c.metric, c.labels) {
			t.Errorf("%s %v is not measured", c.metric, c.labels)
		}
	}
	for _, p := range []*program{front, back} {
		p.Signal(syscall.SIGTERM)
		if code := p.Exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if strings.Contains(p.Err.String(), "geheim") {
			t.Error("the log tells a password")
		}
	}
	if !strings.Contains(back.Err.String(), id) {
		t.Error("the worker's log does not know the render")
	}
}

// measures reports whether the program's metrics have one with these labels.
func (p *program) measures(name string, labels map[string]string) bool {
	p.t.Helper()
	code, body := get(p.t, p.ops+"/metrics")
	if code != 200 {
		p.t.Fatalf("/metrics: %d", code)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		p.t.Fatalf("/metrics: %v\n%s", err, body)
	}
	for _, m := range families[name].GetMetric() {
		missing := len(labels)
		for _, l := range m.GetLabel() {
			if labels[l.GetName()] == l.GetValue() && l.GetValue() != "" {
				missing--
			}
		}
		if missing == 0 {
			return true
		}
	}
	return false
}

// TestStopBeforeServers: a program that still waits ends in order.
func TestStopBeforeServers(t *testing.T) {
	t.Parallel()
	e := farm.Endpoints{NATSURL: "nats://127.0.0.1:1", RedisURL: "redis://127.0.0.1:1"}
	e.S3.Endpoint, e.S3.Bucket, e.S3.AccessKey, e.S3.SecretKey = "http://127.0.0.1:1", "films", "a", "b"
	for _, p := range []*program{gateway(t, e), worker(t, e)} {
		until(t, "word that it waits for NATS", p.ready(503, "waits for NATS"))
		p.Signal(syscall.SIGTERM)
		if code := p.Exit(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// encoding waits until frames of the client's render are done.
func encoding(t *testing.T, url string, p *programs.Program) (id string) {
	t.Helper()
	line, ok := p.Err.Next(func(line string) bool { return strings.Contains(line, "Render task_") })
	if !ok {
		t.Fatal("the client does not tell its render")
	}
	id = regexp.MustCompile(`task_[a-z2-7]{26}`).FindString(line)
	until(t, "encoded frames", func() bool {
		var s struct {
			Terminal   bool  `json:"terminal"`
			FramesDone int64 `json:"frames_done"`
		}
		_, body := get(t, url+"/v1/renders/"+id)
		if err := json.Unmarshal([]byte(body), &s); err != nil {
			t.Fatal(err)
		}
		if s.Terminal {
			t.Fatal("the render is over already")
		}
		return s.FramesDone > 0
	})
	return id
}

// TestDrain stops workers in the midst of an encode: the first hands back at
// once, the second finishes what it has, and neither is a failure of the render.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	e := s.Endpoints()
	front := gateway(t, e).listens()
	hasty := held(t, programs.NewHold(t), e, "--grace", "0s", "--id", "hasty")
	p, out := client(t, front.url, "--quality", "high")
	encoding(t, front.url, p)
	hasty.Signal(syscall.SIGTERM)
	if code := hasty.Exit(); code != 0 {
		t.Errorf("a worker that hands back: exit code %d", code)
	}
	hold := programs.NewHold(t)
	patient := held(t, hold, e, "--grace", "5m", "--id", "patient")
	hold.Waits()
	// The stage is the patient worker's now, and its last: what comes after it
	// nobody takes before the next worker is there.
	patient.Signal(syscall.SIGTERM)
	patient.Logged("worker drains")
	hold.Release()
	if code := patient.Exit(); code != 0 {
		t.Errorf("a worker that finishes: exit code %d", code)
	}
	if !strings.Contains(patient.Err.String(), `"stage":"segment"`) || strings.Contains(patient.Err.String(), `"stage":"assemble"`) {
		t.Error("a worker that finishes did not finish just what it had")
	}
	worker(t, e, "--id", "third")
	finished(t, p, out)
}

// TestSecondSignal: the first asks, the second does not.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	e := s.Endpoints()
	front := gateway(t, e).listens()
	scratch := t.TempDir()
	stubborn := held(t, programs.NewHold(t), e, "--grace", "1h", "--scratch-dir", scratch)
	p, out := client(t, front.url, "--quality", "high")
	encoding(t, front.url, p)
	stubborn.Signal(syscall.SIGTERM)
	stubborn.Logged("worker drains")
	stubborn.Signal(syscall.SIGTERM)
	if code := stubborn.Exit(); code == 0 {
		t.Error("a second signal was obeyed in order")
	}
	until(t, "end of its ffmpeg", func() bool { return len(ffmpegs(t, scratch)) == 0 })
	worker(t, e, "--scratch-dir", scratch)
	finished(t, p, out)
}

// ffmpegs lists the ffmpeg processes that work below dir.
func ffmpegs(t *testing.T, dir string) (found []string) {
	t.Helper()
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
		if strings.Contains(string(line), "ffmpeg") && (strings.HasPrefix(cwd, dir) || strings.Contains(string(line), dir)) {
			found = append(found, string(line))
		}
	}
	return found
}

// TestGatewayDrains: an upload in flight is finished, and meanwhile operators
// are told.
func TestGatewayDrains(t *testing.T) {
	t.Parallel()
	s := servers.Start(t)
	e := s.Endpoints()
	front := gateway(t, e, "--shutdown-timeout", "10m").listens()
	worker(t, e)
	clip, err := os.ReadFile(filepath.Join(built, "clip.mp4"))
	if err != nil {
		t.Fatal(err)
	}
	body, in := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.url+"/v1/assets?name=clip.mp4", body)
	if err != nil {
		t.Fatal(err)
	}
	// Nothing of the body is taken before the gateway asks for it: a connection
	// that waits to be accepted would be reset, which is no fault of a drain.
	req.Header.Set("Expect", "100-continue")
	transport := &http.Transport{ExpectContinueTimeout: time.Hour}
	defer transport.CloseIdleConnections()
	status := make(chan int, 1)
	go func() {
		res, err := transport.RoundTrip(req)
		if err != nil {
			t.Error(err)
			_ = body.CloseWithError(err)
			status <- 0
			return
		}
		defer res.Body.Close()
		status <- res.StatusCode
	}()
	if _, err := in.Write(clip[:len(clip)/2]); err != nil { // it returns when the gateway reads
		t.Fatal(err)
	}
	front.Signal(syscall.SIGTERM)
	until(t, "word that it drains", front.ready(503, "draining"))
	if _, err := in.Write(clip[len(clip)/2:]); err != nil {
		t.Fatal(err)
	}
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := <-status; code != http.StatusCreated {
		t.Errorf("the upload in flight: %d", code)
	}
	if code := front.Exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSettings: what is printed is documented, and what is wrong is refused by
// its name.
func TestSettings(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := regexp.MustCompile("`([a-z0-9-]+)(-…)?`").FindAllStringSubmatch(string(doc), -1)
	key := regexp.MustCompile(`(?m)^(?:# )?([a-z0-9-]+):`)
	for _, name := range []string{"vidforge-gateway", "vidforge-worker"} {
		p := programs.Start(t, filepath.Join(built, name), nil, "config", "print")
		if code := p.Exit(); code != 0 {
			t.Fatalf("%s config print: %d", name, code)
		}
		keys := key.FindAllStringSubmatch(p.Out.String(), -1)
		if len(keys) < 10 {
			t.Fatalf("%s prints\n%s", name, p.Out)
		}
		for _, k := range keys {
			if !slices.ContainsFunc(documented, func(d []string) bool { return d[1] == k[1] || d[2] != "" && strings.HasPrefix(k[1], d[1]+"-") }) {
				t.Errorf("%s: %s is not in docs/configuration.md", name, k[1])
			}
		}
		for arg, want := range map[string]string{
			"--colour=red":      "colour",
			"--ack-wait=1ms":    "ack wait",
			"--replicas=2":      "replicas",
			"--s3-path-style=x": "s3-path-style",
		} {
			p := programs.Start(t, filepath.Join(built, name), nil, "--ops-listen", "127.0.0.1:0", arg)
			if code := p.Exit(); code == 0 || !strings.Contains(p.Err.String(), want) {
				t.Errorf("%s %s: exit code %d, %s", name, arg, code, p.Err)
			}
		}
	}
}
