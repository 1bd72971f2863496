package ffmpeg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vidforge/vidforge/worker/internal/sandbox"
)

// standIn makes tools whose ffmpeg is a shell script.
func standIn(t *testing.T, script string) *Tools {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ffmpeg")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &Tools{FFmpeg: path, FFprobe: path, Limits: sandbox.DefaultLimits(), Grace: 200 * time.Millisecond}
}

// pids reads the process ids that a stand-in wrote.
func pids(t *testing.T, path string) []int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all []int
	for f := range strings.FieldsSeq(string(b)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pid)
	}
	return all
}

// gone waits until the processes have ended: what SIGKILL reached may still
// have to be scheduled to die, and an orphan that init has not reaped yet has
// ended. What was not killed is there for minutes.
func gone(t *testing.T, pids []int) {
	t.Helper()
	if len(pids) < 2 {
		t.Fatalf("the stand-in wrote %d process ids", len(pids))
	}
	ended := func(pid int) bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(b), ") ")
		return err != nil || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
	}
	limit := time.Now().Add(2 * time.Minute)
	for _, pid := range pids {
		for !ended(pid) && time.Now().Before(limit) {
			time.Sleep(time.Millisecond)
		}
		if !ended(pid) {
			t.Errorf("process %d still runs", pid)
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Log(err)
			}
		}
	}
}

// stubborn ignores SIGTERM, as does its child, and tells its progress once.
const stubborn = `trap '' TERM
sh -c 'trap "" TERM; sleep 300' &
echo $$ $! > pids
printf 'frame=7\nout_time_us=1000\nprogress=continue\n'
wait
`

func TestRunStalled(t *testing.T) {
	t.Parallel()
	tools, dir := standIn(t, stubborn), t.TempDir()
	res, err := tools.Run(t.Context(), Cmd{Name: "segment", Dir: dir, Watch: WatchFrames, Stall: 3 * time.Second})
	if !errors.Is(err, ErrStalled) {
		t.Fatalf("got %v, want a stall", err)
	}
	if res.Frames() != 7 {
		t.Errorf("last progress: %+v", res.Last)
	}
	gone(t, pids(t, filepath.Join(dir, "pids")))
}

func TestRunCancelled(t *testing.T) {
	t.Parallel()
	tools, dir := standIn(t, stubborn), t.TempDir()
	why := errors.New("the render was cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	_, err := tools.Run(ctx, Cmd{Name: "segment", Dir: dir, OnProgress: func(Progress) { cancel(why) }})
	if !errors.Is(err, why) {
		t.Fatalf("got %v, want the cause", err)
	}
	gone(t, pids(t, filepath.Join(dir, "pids")))
	if _, err := tools.Run(ctx, Cmd{Name: "segment", Dir: dir}); !errors.Is(err, why) {
		t.Errorf("a run under an ended context: %v", err)
	}
}

// TestRunTerminates proves that SIGTERM comes first, so that ffmpeg can close
// its files.
func TestRunTerminates(t *testing.T) {
	t.Parallel()
	tools, dir := standIn(t, `trap 'echo > ended; exit 0' TERM
printf 'frame=1\nprogress=continue\n'
while :; do sleep 0.01; done
`), t.TempDir()
	tools.Grace = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := tools.Run(ctx, Cmd{Name: "segment", Dir: dir, OnProgress: func(Progress) { cancel() }}); !errors.Is(err, context.Canceled) {
		t.Fatalf("exit code 0 after a stop is no success: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "ended")); err != nil {
		t.Errorf("the process was not asked to end: %v", err)
	}
}

func TestRunAliveKeepsRunning(t *testing.T) {
	t.Parallel()
	tools := standIn(t, `for i in 1 2 3 4 5 6 7 8; do printf "frame=$i\nprogress=continue\n"; sleep 0.2; done
printf 'frame=8\nprogress=end\n'`)
	var seen []int64
	res, err := tools.Run(t.Context(), Cmd{Name: "segment", Dir: t.TempDir(), Watch: WatchFrames, Stall: 10 * time.Second,
		OnProgress: func(p Progress) { seen = append(seen, *p.Frame) }})
	if err != nil || res.Frames() != 8 || !res.Last.End || !slices.Equal(seen, []int64{1, 2, 3, 4, 5, 6, 7, 8, 8}) {
		t.Errorf("got %v, %v, %+v", seen, err, res.Last)
	}
	if res.CPU <= 0 || res.MaxRSS <= 0 || res.Wall <= 0 {
		t.Errorf("usage: %+v", res)
	}
}

func TestRunExit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, script string
		code         int
		signal       syscall.Signal
	}{
		{"code", "echo '[error] file:/tmp/secret/x.mp4: No such file' >&2; exit 3", 3, 0},
		{"signal", "kill -SEGV $$", -1, syscall.SIGSEGV},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			res, err := standIn(t, c.script).Run(t.Context(), Cmd{Name: "segment", Dir: t.TempDir()})
			var exit *ExitError
			if !errors.As(err, &exit) || exit.Code != c.code || exit.Signal != c.signal || res.ExitCode != c.code {
				t.Fatalf("got %v, %+v", err, exit)
			}
			if strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows a path: %v", err)
			}
		})
	}
	if _, err := (&Tools{FFmpeg: "/nonexistent/ffmpeg"}).Run(t.Context(), Cmd{Name: "segment"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no program: %v", err)
	}
}

// TestRunLimits proves that limits reach the child, with its own eyes.
func TestRunLimits(t *testing.T) {
	t.Parallel()
	tools := standIn(t, `until [ "$(ulimit -n)" = 77 ] && [ "$(ulimit -c)" = 0 ]; do sleep 0.01; done
echo "$(ulimit -v) $(ulimit -f) $(ulimit -t)" > limits; env > environment; cat > stdin`)
	tools.Limits = sandbox.Limits{AddressSpace: 1 << 30, FileSize: 1 << 20, CPUSeconds: 99, OpenFiles: 77}
	dir := t.TempDir()
	if _, err := tools.Run(t.Context(), Cmd{Name: "segment", Dir: dir}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	if got := read("limits"); got != "1048576 2048 99\n" { // KiB, blocks of 512, seconds
		t.Errorf("limits %q", got)
	}
	if got := read("environment"); strings.Contains(got, "GOPATH") || strings.Contains(got, "USER=") {
		t.Errorf("environment %q", got)
	}
	if read("stdin") != "" {
		t.Error("standard input is not empty")
	}
}

// TestProbeRefusedOutput proves that a reader of output ends the run.
func TestProbeRefusedOutput(t *testing.T) {
	t.Parallel()
	full := errors.New("full")
	_, err := standIn(t, "while echo line; do :; done").Probe(t.Context(), Cmd{Name: "probe", Dir: t.TempDir(), Stdout: refuse{full}})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

type refuse struct{ err error }

func (r refuse) Write([]byte) (int, error) { return 0, r.err }

func TestFind(t *testing.T) {
	t.Parallel()
	tools, err := Find(t.Context())
	if err != nil {
		t.Fatalf("these tests run the real ffmpeg: %v", err)
	}
	if tools.Version == "" || !tools.HasEncoder("libx264") || !tools.HasEncoder("aac") || tools.HasEncoder("="[:1]) ||
		!tools.HasFilter("overlay") || !tools.HasFilter("ass") || !tools.HasMuxer("mp4") || tools.HasFilter("libx264") {
		t.Errorf("found %+v", tools)
	}
	if _, err := Open(t.Context(), "/bin/true", "/bin/true"); err == nil {
		t.Error("something that is not ffmpeg was taken for it")
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"ffmpeg version 5.1.9-0+deb12u1 Copyright (c)": "5.1.9-0+deb12u1 5 1",
		"ffmpeg version n7.1 Copyright":                "n7.1 7 1",
		"ffmpeg version 8.0 Copyright":                 "8.0 8 0",
		"ffmpeg version N-109542-g1bf1d7f Copyright":   "N-109542-g1bf1d7f 0 0",
		"something else":                               "error",
	} {
		version, major, minor, err := parseVersion(out)
		got := fmt.Sprintf("%s %d %d", version, major, minor)
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %s, want %s", out, got, want)
		}
	}
}

func TestArgs(t *testing.T) {
	t.Parallel()
	c := Cmd{
		Inputs: []Input{
			{Path: "source", Options: []string{"-ss", "1"}},
			{Path: "color=black", Formats: CanvasFormats, Format: "lavfi"},
			{Path: "join.ffconcat", Formats: JoinFormats, Format: "concat"},
		},
		Args: []string{"-f", "mp4", "file:out.mp4"},
	}
	const want = "-nostdin -hide_banner -y -loglevel repeat+level+warning -max_alloc 536870912 -nostats -progress pipe:1 -stats_period 0.5" +
		" -protocol_whitelist file,pipe -format_whitelist mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv -max_streams 32 -max_pixels 40000000 -ss 1 -i file:source" +
		" -protocol_whitelist file,pipe -format_whitelist lavfi -max_streams 32 -f lavfi -i color=black" +
		" -protocol_whitelist file,pipe -format_whitelist concat,mov,mp4,m4a,3gp,3g2,mj2 -max_streams 32 -f concat -i file:join.ffconcat" +
		" -f mp4 file:out.mp4"
	if got := strings.Join(ffmpegArgs(c), " "); got != want {
		t.Errorf("ffmpeg\n got %s\nwant %s", got, want)
	}
	const probe = "-hide_banner -loglevel repeat+level+error -max_alloc 536870912 -show_format" +
		" -protocol_whitelist file,pipe -format_whitelist png_pipe -max_streams 32 -max_pixels 40000000 -f png_pipe -i file:logo"
	got := strings.Join(ffprobeArgs(Cmd{LogLevel: "error", Args: []string{"-show_format"}, Inputs: []Input{{Path: "logo", Formats: "png_pipe", Format: "png_pipe"}}}), " ")
	if got != probe {
		t.Errorf("ffprobe\n got %s\nwant %s", got, probe)
	}
}
