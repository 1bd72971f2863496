package ffmpeg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/vidforge/vidforge/worker/internal/sandbox"
)

// Watch says what shows that a run is alive.
type Watch int

// Watches.
const (
	// WatchNothing leaves the run to its context.
	WatchNothing Watch = iota
	// WatchFrames is for video: frames must come out.
	WatchFrames
	// WatchOutput is for sound and copies, which have no frames: time or size
	// of the output must grow.
	WatchOutput
)

// DefaultStall is how long a watched run may show no sign of life.
const DefaultStall = 2 * time.Minute

// ErrStalled is returned when a run was stopped because it no longer moved.
var ErrStalled = errors.New("no progress")

// Cmd is one run of ffmpeg or ffprobe.
type Cmd struct {
	// Name says what the run is for, in errors and traces: "probe", "segment".
	Name string
	// Dir is the job's directory: the working directory of the process, and
	// the only place it writes to.
	Dir string
	// Inputs in order; ffprobe takes exactly one.
	Inputs []Input
	// Args follow the inputs (ffmpeg: maps, filters, codecs, output) or
	// precede the one input (ffprobe).
	Args []string
	// LogLevel is ffmpeg's; defaults to warning.
	LogLevel string
	// Device tells that the run opens a graphics device: drivers reserve more
	// addresses than there is memory, for which the limit makes room.
	Device bool

	// Watch and Stall (defaults to DefaultStall) set the watchdog; OnProgress
	// is called about twice a second, never concurrently. ffmpeg only.
	Watch      Watch
	Stall      time.Duration
	OnProgress func(Progress)

	// Stdout receives the output of ffprobe as it comes. An error from it
	// ends the run.
	Stdout io.Writer
}

// Result is what is known of a run that was started, failed or not.
type Result struct {
	ExitCode int
	// CPU is the user and system time, MaxRSS the largest resident set in
	// bytes, of the child.
	CPU    time.Duration
	MaxRSS int64
	Wall   time.Duration
	// Last is the last progress that ffmpeg told.
	Last Progress
	Log  *Log
}

// Frames is the last frame count that ffmpeg told, 0 when it told none.
func (r Result) Frames() int64 {
	if r.Last.Frame == nil {
		return 0
	}
	return *r.Last.Frame
}

// ExitError is a run that ended by itself and not well.
type ExitError struct {
	Program string
	Code    int // -1 if a signal ended it
	Signal  syscall.Signal
	// Tail is the log's end, fit for clients.
	Tail []string
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("%s exited with code %d", e.Program, e.Code)
	if e.Signal != 0 {
		s = fmt.Sprintf("%s was ended by signal %q", e.Program, e.Signal)
	}
	if n := len(e.Tail); n > 0 {
		s += ": " + e.Tail[n-1]
	}
	return s
}

// Run runs ffmpeg to its end. When ctx ends, or the watchdog finds the run
// stalled (ErrStalled), its process group gets SIGTERM, and SIGKILL after the
// grace; nothing is left running when Run returns. A bad exit is an
// *ExitError. The result is valid also beside an error.
func (t *Tools) Run(ctx context.Context, c Cmd) (Result, error) {
	var (
		last  Progress
		rate  meter
		alive = make(chan struct{}, 1)
		seen  int64
	)
	out := &progressWriter{emit: func(p Progress) {
		if p.Frame != nil {
			p.FPS = rate.update(time.Now(), *p.Frame)
		}
		if now := p.sign(c.Watch); now > seen {
			seen = now
			select {
			case alive <- struct{}{}:
			default:
			}
		}
		last = p
		if c.OnProgress != nil {
			c.OnProgress(p)
		}
	}}
	p := process{program: t.FFmpeg, name: c.Name, dir: c.Dir, args: ffmpegArgs(c), stdout: out, device: c.Device}
	if c.Watch != WatchNothing {
		p.alive, p.stall = alive, c.Stall
		if p.stall <= 0 {
			p.stall = DefaultStall
		}
	}
	return traced(ctx, t.FFmpeg, c.Name, func(ctx context.Context) (Result, error) {
		res, err := t.run(ctx, p)
		res.Last = last
		return res, err
	})
}

// Probe runs ffprobe to its end, under the same rules as Run.
func (t *Tools) Probe(ctx context.Context, c Cmd) (Result, error) {
	return traced(ctx, t.FFprobe, c.Name, func(ctx context.Context) (Result, error) {
		return t.run(ctx, process{program: t.FFprobe, name: c.Name, dir: c.Dir, args: ffprobeArgs(c), stdout: c.Stdout})
	})
}

// sign is the number whose growth shows life.
func (p Progress) sign(w Watch) int64 {
	var n int64
	if w == WatchFrames && p.Frame != nil {
		n = *p.Frame
	}
	if w == WatchOutput {
		if p.OutTime != nil {
			n = p.OutTime.Microseconds()
		}
		if p.TotalSize != nil {
			n += *p.TotalSize
		}
	}
	return n
}

// process is a child to be run.
type process struct {
	program, name, dir string
	args               []string
	stdout             io.Writer
	alive              <-chan struct{} // a value for each sign of life
	stall              time.Duration   // 0: no watchdog
	device             bool            // opens a graphics device
}

func (t *Tools) run(ctx context.Context, p process) (Result, error) {
	res := Result{ExitCode: -1, Log: &Log{}}
	if err := ctx.Err(); err != nil {
		return res, fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
	}
	// The child dies with the thread that started it (see sandbox.Attr).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	stdout := &failWriter{w: p.stdout, failed: make(chan struct{})}
	cmd := &exec.Cmd{
		Path:        p.program,
		Args:        append([]string{p.program}, p.args...),
		Dir:         p.dir,
		Env:         environment(p.dir),
		Stderr:      res.Log,
		SysProcAttr: sandbox.Attr(),
		WaitDelay:   t.Grace, // for pipes that a grandchild holds open
	}
	if p.stdout != nil {
		cmd.Stdout = stdout
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return res, fmt.Errorf("start %s: %w", filepath.Base(p.program), err)
	}
	limits := t.Limits
	if p.device {
		limits.AddressSpace = 0
	}
	if err := sandbox.Confine(cmd.Process.Pid, limits); err != nil {
		signalGroup(cmd.Process.Pid, syscall.SIGKILL)
		return res, errors.Join(fmt.Errorf("%s: %w", p.name, err), cmd.Wait())
	}

	ended := make(chan struct{})
	stopped := make(chan error, 1)
	go func() { stopped <- t.supervise(ctx, p, cmd.Process.Pid, stdout.failed, ended) }()
	err := cmd.Wait()
	close(ended)
	why := <-stopped

	res.Wall = time.Since(start)
	res.ExitCode = cmd.ProcessState.ExitCode()
	res.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	res.MaxRSS = sandbox.MaxRSS(cmd.ProcessState)
	switch {
	case why != nil:
		signalGroup(cmd.Process.Pid, syscall.SIGKILL) // what SIGTERM may have left of the group
		if stdout.err != nil {
			why = stdout.err
		}
		return res, fmt.Errorf("%s %s: %w", filepath.Base(p.program), p.name, why)
	case stdout.err != nil:
		return res, fmt.Errorf("%s %s: %w", filepath.Base(p.program), p.name, stdout.err)
	case err != nil:
		exit := &ExitError{Program: filepath.Base(p.program), Code: res.ExitCode, Tail: res.Log.Tail()}
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			exit.Signal = ws.Signal()
		}
		return res, fmt.Errorf("%s: %w", p.name, exit)
	}
	return res, nil
}

// supervise waits until the process has ended, and ends it when it must: then
// it returns why.
func (t *Tools) supervise(ctx context.Context, p process, pid int, failed, ended <-chan struct{}) error {
	var due <-chan time.Time
	var timer *time.Timer
	if p.stall > 0 {
		timer = time.NewTimer(p.stall)
		defer timer.Stop()
		due = timer.C
	}
	var why error
	for why == nil {
		select {
		case <-ended:
			return nil
		case <-p.alive:
			timer.Reset(p.stall)
		case <-due:
			why = fmt.Errorf("%w for %s", ErrStalled, p.stall)
		case <-failed:
			why = errors.New("output refused")
		case <-ctx.Done():
			why = context.Cause(ctx)
		}
	}
	signalGroup(pid, syscall.SIGTERM)
	grace := time.NewTimer(t.Grace)
	defer grace.Stop()
	select {
	case <-ended:
	case <-grace.C:
		signalGroup(pid, syscall.SIGKILL)
		<-ended
	}
	return fmt.Errorf("stopped: %w", why)
}

// signalGroup signals the process group that a child leads. That nobody is
// left is no error, and for anything else there is nothing more to do.
func signalGroup(pid int, s syscall.Signal) { _ = syscall.Kill(-pid, s) }

// environment of every child: nothing but what finding libraries, fonts and
// the drivers of graphics devices needs.
func environment(dir string) []string {
	env := []string{"LC_ALL=C.UTF-8", "AV_LOG_FORCE_NOCOLOR=1"}
	if dir != "" {
		env = append(env, "HOME="+dir, "TMPDIR="+dir)
	}
	for _, name := range []string{
		"LD_LIBRARY_PATH", "FONTCONFIG_FILE", "FONTCONFIG_PATH",
		"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LIBVA_DRIVER_NAME", "LIBVA_DRIVERS_PATH", "ONEVPL_SEARCH_PATH",
	} {
		if v, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+v)
		}
	}
	return env
}

// failWriter remembers the first error of a writer and says that there is one.
type failWriter struct {
	w      io.Writer
	err    error
	failed chan struct{}
}

func (f *failWriter) Write(p []byte) (int, error) {
	if f.err != nil {
		return 0, f.err
	}
	n, err := f.w.Write(p)
	if err != nil {
		f.err = fmt.Errorf("take output: %w", err)
		close(f.failed)
	}
	return n, f.err
}
