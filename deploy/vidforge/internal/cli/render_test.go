package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vidforge/vidforge/pkg/render"
)

var testTime = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)

// output is a buffer that a command and a test may use at once.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// bench runs commands in a folder of its own.
type bench struct {
	dir            string
	in             io.Reader
	interactive    bool
	stdout, stderr output
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir(), in: strings.NewReader("")}
	for name, content := range map[string]string{"in.mov": "source", "logo.png": "logo", "there.mp4": "old"} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) run(ctx context.Context, args ...string) int {
	return Main(ctx, args, Streams{In: b.in, Out: &b.stdout, Err: &b.stderr, Interactive: b.interactive})
}

func (b *bench) render(ctx context.Context, f *fakeFarm, args ...string) int {
	return b.run(ctx, append([]string{"render", b.path("in.mov"), "-o", b.path("out.mp4"), "--server", f.url}, args...)...)
}

// noLeftovers fails if anything but the named files is in the folder.
func (b *bench) noLeftovers(t *testing.T, expected ...string) {
	t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	expected = append(expected, "in.mov", "logo.png", "there.mp4")
	for _, e := range entries {
		if !slices.Contains(expected, e.Name()) {
			t.Errorf("leftover %s", e.Name())
		}
	}
}

func TestRenderOutcomes(t *testing.T) {
	t.Parallel()
	watermark := []string{"--watermark-text", "© Ann", "--position", "top_left", "--opacity", "0.5"}
	tests := []struct {
		name     string
		script   func(f *fakeFarm) []map[string]any
		args     []string
		answers  string // what a person types; "" for no person
		want     int
		approved []bool // what the server was answered
		says     string // on the error stream
	}{
		{name: "plain", want: ExitOK, script: func(f *fakeFarm) []map[string]any { return []map[string]any{working(), f.completed()} }},
		{
			name: "approved by flag", args: append([]string{"--approve"}, watermark...), want: ExitOK, approved: []bool{true},
			script: func(f *fakeFarm) []map[string]any {
				return []map[string]any{working(), awaiting(), working(), f.completed()}
			},
		},
		{
			name: "approved by a person", args: watermark, answers: "what?\ny\n", want: ExitOK, approved: []bool{true}, says: "Is the watermark right?",
			script: func(f *fakeFarm) []map[string]any { return []map[string]any{awaiting(), working(), f.completed()} },
		},
		{
			name: "rejected by a person", args: watermark, answers: "n\n", want: ExitRejected, approved: []bool{false},
			script: func(*fakeFarm) []map[string]any {
				return []map[string]any{awaiting(), failedWith(render.CodeWatermarkRejected)}
			},
		},
		{
			name: "nobody decides in time", args: []string{"--watermark-text", "x", "--no-approval"}, want: ExitUnapproved,
			script: func(*fakeFarm) []map[string]any {
				return []map[string]any{working(), failedWith(render.CodeWatermarkApprovalTimeout)}
			},
		},
		{
			name: "end of input is no answer", args: watermark, answers: "\n", want: ExitUnapproved, says: "--approve",
			script: func(*fakeFarm) []map[string]any { return []map[string]any{awaiting()} },
		},
		{
			name: "somebody else decides", want: ExitOK, says: "Waiting for Bob.",
			script: func(f *fakeFarm) []map[string]any {
				elsewhere := map[string]any{"status": "input_required", "statusMessage": "Waiting for Bob.", "inputRequests": map[string]any{}}
				return []map[string]any{elsewhere, working(), f.completed()}
			},
		},
		{
			name: "failed", want: ExitFailed, says: "It went wrong. (render_failed)",
			script: func(*fakeFarm) []map[string]any {
				return []map[string]any{working(), failedWith(render.CodeRenderFailed)}
			},
		},
		{
			name: "a fault of the farm", want: ExitError, says: "A fault.",
			script: func(*fakeFarm) []map[string]any {
				return []map[string]any{{"status": "failed", "error": map[string]any{"code": -32603, "message": "x", "data": map[string]any{"machine_code": "internal_error", "human_message": "A fault."}}}}
			},
		},
		{
			name: "cancelled elsewhere", want: ExitCancelled, says: "The render was cancelled.",
			script: func(*fakeFarm) []map[string]any { return []map[string]any{working(), cancelled()} },
		},
		{
			name: "server away in between", want: ExitOK, says: "No answer from the server, trying again",
			script: func(f *fakeFarm) []map[string]any {
				return []map[string]any{working(), nil, nil, working(), f.completed()}
			},
		},
		{
			name: "server away for good", args: []string{"--give-up-after", "1ms"}, want: ExitUnreachable, says: "vidforge status " + fakeTask,
			script: func(*fakeFarm) []map[string]any { return []map[string]any{working(), nil} },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f, b := newFakeFarm(t), newBench(t)
			f.script = tt.script(f)
			b.in, b.interactive = strings.NewReader(tt.answers), tt.answers != ""
			if got := b.render(t.Context(), f, tt.args...); got != tt.want {
				t.Fatalf("exit code %d, want %d: %s", got, tt.want, b.stderr.String())
			}
			if !strings.Contains(b.stderr.String(), tt.says) {
				t.Errorf("said %q, want %q in it", b.stderr.String(), tt.says)
			}
			if strings.Contains(b.stderr.String(), "\x1b") {
				t.Error("the server's text reached the terminal with control characters")
			}
			calls, answers, _, _ := f.snapshot()
			if len(calls) != 1 {
				t.Errorf("the render tool was called %d times", len(calls))
			}
			var approved []bool
			for _, a := range answers {
				content, _ := a["content"].(map[string]any)
				yes, ok := content["approved"].(bool)
				if !ok || a["action"] != "accept" {
					t.Errorf("answer %v", a)
				}
				approved = append(approved, yes)
			}
			if !slices.Equal(approved, tt.approved) {
				t.Errorf("answered %v, want %v", approved, tt.approved)
			}
			got, err := os.ReadFile(b.path("out.mp4"))
			if tt.want != ExitOK {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("an output without a success: %v", err)
				}
				b.noLeftovers(t)
				return
			}
			if !bytes.Equal(got, f.video) {
				t.Errorf("output is %q, %v", got, err)
			}
			if b.stdout.String() != b.path("out.mp4")+"\n" {
				t.Errorf("printed %q", b.stdout.String())
			}
			b.noLeftovers(t, "out.mp4")
		})
	}
}

func TestRenderSendsWhatWasAsked(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	f.script = []map[string]any{awaiting(), f.completed()}
	f.events = true
	code := b.render(t.Context(), f, "--resolution", "720p", "--quality", "draft", "--watermark-image", b.path("logo.png"),
		"--position", "center", "--opacity", "0.25", "--approve", "--preview-out", b.path("preview.png"), "--idempotency-key", "k", "--json")
	if code != ExitOK {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
	calls, _, uploads, _ := f.snapshot()
	if want := []string{"in.mov video/quicktime", "logo.png image/png"}; !slices.Equal(uploads, want) {
		t.Errorf("uploads %q, want %q", uploads, want)
	}
	want := map[string]any{
		"source_asset_uri": "vidforge://assets/a_" + strings.Repeat("b", 26), "output_format": "mp4", "resolution": "720p", "quality": "draft",
		"idempotency_key": "k", "watermark": map[string]any{
			"image_asset_uri": "vidforge://assets/a_" + strings.Repeat("c", 26), "position": "center", "opacity": 0.25,
		},
	}
	got, wantJSON := mustJSON(t, calls[0]), mustJSON(t, want)
	if got != wantJSON {
		t.Errorf("arguments %s\nwant      %s", got, wantJSON)
	}
	preview, err := os.ReadFile(b.path("preview.png"))
	if err != nil || string(preview) != "png of vidforge://renders/"+fakeTask+"/watermark-preview.png" {
		t.Errorf("preview %q, %v", preview, err)
	}
	var report struct {
		RenderID string           `json:"render_id"`
		ExitCode int              `json:"exit_code"`
		Output   string           `json:"output"`
		Preview  string           `json:"preview"`
		Video    map[string]any   `json:"video"`
		Phases   map[string]int64 `json:"phases_ms"`
	}
	dec := json.NewDecoder(strings.NewReader(b.stdout.String()))
	if err := dec.Decode(&report); err != nil || dec.More() {
		t.Fatalf("standard output is not one JSON object: %v: %s", err, b.stdout.String())
	}
	if report.RenderID != fakeTask || report.ExitCode != 0 || report.Output != b.path("out.mp4") || report.Preview != b.path("preview.png") || report.Video["width"] != 1920.0 {
		t.Errorf("report %+v", report)
	}
	if _, ok := report.Video["download_url"]; ok {
		t.Error("the report holds a URL that is a credential")
	}
	for _, phase := range []string{"start", "upload", "preview", "encode", "download"} {
		if _, ok := report.Phases[phase]; !ok {
			t.Errorf("no phase %s in %v", phase, report.Phases)
		}
	}
	b.noLeftovers(t, "out.mp4", "preview.png")
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestRenderReportsFailuresInJSON(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	f.refuse = map[string]any{"code": "invalid_field", "message": "No.", "details": map[string]any{"field": "resolution"}}
	if code := b.render(t.Context(), f, "--json"); code != ExitUsage {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
	var report struct {
		ExitCode int `json:"exit_code"`
		Error    struct {
			Code    string         `json:"code"`
			Details map[string]any `json:"details"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(b.stdout.String()), &report); err != nil {
		t.Fatalf("%v: %s", err, b.stdout.String())
	}
	if report.ExitCode != ExitUsage || report.Error.Code != "invalid_field" || report.Error.Details["field"] != "resolution" {
		t.Errorf("report %s", b.stdout.String())
	}
}

// TestRenderCancelsOnInterrupt ends the context, as Ctrl-C does, while the
// render is followed, and while a person is asked.
func TestRenderCancelsOnInterrupt(t *testing.T) {
	t.Parallel()
	for name, script := range map[string][]map[string]any{"rendering": {working()}, "asking": {awaiting()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, b := newFakeFarm(t, script...), newBench(t)
			in, typed := io.Pipe()
			defer func() { _ = typed.Close() }()
			b.in, b.interactive = in, true
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-f.polled
				cancel()
			}()
			if code := b.render(ctx, f, "--watermark-text", "x"); code != ExitCancelled {
				t.Fatalf("exit code %d: %s", code, b.stderr.String())
			}
			if _, _, _, cancels := f.snapshot(); cancels != 1 {
				t.Errorf("cancelled %d times", cancels)
			}
			b.noLeftovers(t)
		})
	}
}

// TestRenderListens gives a poll interval that the test would not survive, and
// lets the server tell of each change.
func TestRenderListens(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	f.changed = make(chan struct{})
	slow := working()
	slow["pollIntervalMs"] = time.Hour.Milliseconds()
	f.script = []map[string]any{slow, f.completed()}
	f.firstPoll = time.Hour
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case f.changed <- struct{}{}:
			case <-done:
				return
			}
		}
	}()
	if code := b.render(t.Context(), f); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
}

func TestRenderResumesADownload(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	f.script, f.short = []map[string]any{f.completed()}, true
	if code := b.render(t.Context(), f); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
	if got, err := os.ReadFile(b.path("out.mp4")); !bytes.Equal(got, f.video) {
		t.Errorf("output %q, %v", got, err)
	}
	if f.served != 2 {
		t.Errorf("%d requests, want one and its continuation", f.served)
	}
}

func TestRenderRefusesWrongBytes(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	done := f.completed()
	f.script = []map[string]any{done}
	f.video = bytes.ToUpper(f.video)
	if code := b.render(t.Context(), f); code != ExitError || !strings.Contains(b.stderr.String(), "SHA-256") {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
	b.noLeftovers(t)
}

// TestRenderFallsBackToTheServersOwnDownload lets the named URL refuse, as an
// expired one does.
func TestRenderFallsBackToTheServersOwnDownload(t *testing.T) {
	t.Parallel()
	f, b := newFakeFarm(t), newBench(t)
	done := f.completed()
	result, _ := done["result"].(map[string]any)
	content, _ := result["structuredContent"].(map[string]any)
	content["download_url"] = f.url + "/gone"
	f.script = []map[string]any{done}
	if code := b.render(t.Context(), f); code != ExitOK {
		t.Fatalf("exit code %d: %s", code, b.stderr.String())
	}
}

func TestRenderSendsTheKeyAndKeepsItQuiet(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args func(b *bench) []string
		want int
	}{
		"flag": {func(*bench) []string { return []string{"--api-key", "s3cret"} }, ExitOK},
		"file": {func(b *bench) []string {
			if err := os.WriteFile(b.path("key"), []byte("s3cret\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			return []string{"--api-key-file", b.path("key")}
		}, ExitOK},
		"wrong": {func(*bench) []string { return []string{"--api-key", "other-s3cret"} }, ExitDenied},
		"none":  {func(*bench) []string { return nil }, ExitDenied},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, b := newFakeFarm(t), newBench(t)
			f.key, f.script = "s3cret", []map[string]any{f.completed()}
			if code := b.render(t.Context(), f, append(tt.args(b), "--log-level", "debug", "--json")...); code != tt.want {
				t.Fatalf("exit code %d, want %d: %s", code, tt.want, b.stderr.String())
			}
			if strings.Contains(b.stderr.String()+b.stdout.String(), "s3cret") {
				t.Error("the key was printed")
			}
		})
	}
}
