// Package programs runs the project's programs as processes for tests: they can
// be signalled and killed, end with the test that started them, and show what
// they wrote if it failed.
package programs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds each wait; what is waited for takes seconds on an idle
// machine.
const patience = 3 * time.Minute

// Build builds packages' programs into dir. tags are build tags, "" for none.
func Build(ctx context.Context, dir, tags string, packages ...string) error {
	args := append([]string{"build", "-tags", tags, "-o", dir + string(os.PathSeparator)}, packages...)
	if out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build %v: %w\n%s", packages, err, out)
	}
	return nil
}

// Program is a running program.
type Program struct {
	// Out and Err are what it writes.
	Out, Err *Output

	t    testing.TB
	name string
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts the program at path. env is added to the test's environment.
func Start(t testing.TB, path string, env []string, args ...string) *Program {
	t.Helper()
	p := &Program{Out: newOutput(), Err: newOutput(), t: t, name: path[strings.LastIndexByte(path, '/')+1:], cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = t.TempDir(), p.Out, p.Err
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		p.Out.end()
		p.Err.end()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.Signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%s, pid %d, %v:\n%s%s", p.name, p.cmd.Process.Pid, p.cmd.ProcessState, p.Out, p.Err)
		}
	})
	return p
}

// PID is the process's id.
func (p *Program) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal, unless the program has ended.
func (p *Program) Signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("%s: signal %s: %v", p.name, s, err)
	}
}

// Exit waits for the program's end and returns its exit code, -1 when a signal
// ended it.
func (p *Program) Exit() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("%s does not end", p.name)
		return 0
	}
}

// Logged waits for the next record of the log with this message.
func (p *Program) Logged(msg string) map[string]any {
	p.t.Helper()
	line, ok := p.Err.Next(func(line string) bool { return strings.Contains(line, `"msg":"`+msg+`"`) })
	if !ok {
		p.t.Fatalf("%s does not log %q", p.name, msg)
	}
	var record map[string]any
	if err := json.Unmarshal([]byte(line), &record); err != nil {
		p.t.Fatalf("%s logged %q: %v", p.name, line, err)
	}
	return record
}

// Output is what a program writes, by line.
type Output struct {
	mu    sync.Mutex
	text  strings.Builder
	seen  int           // bytes that Next has looked at
	grown chan struct{} // closed and renewed at every change
	ended bool
}

func newOutput() *Output { return &Output{grown: make(chan struct{})} }

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(b)
	close(o.grown)
	o.grown = make(chan struct{})
	return len(b), nil
}

func (o *Output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	close(o.grown)
	o.grown = make(chan struct{})
}

// String is all that was written.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Next waits for the next line that matches, after those that it has looked at,
// and reports false when the program ended without one, or takes too long.
func (o *Output) Next(match func(string) bool) (string, bool) {
	for timeout := time.After(patience); ; {
		line, found, grown, ended := o.look(match)
		if found || ended {
			return line, found
		}
		select {
		case <-grown:
		case <-timeout:
			return "", false
		}
	}
}

func (o *Output) look(match func(string) bool) (line string, found bool, grown <-chan struct{}, ended bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		line, _, whole := strings.Cut(o.text.String()[o.seen:], "\n")
		if !whole {
			return "", false, o.grown, o.ended
		}
		o.seen += len(line) + 1
		if match(line) {
			return line, true, nil, false
		}
	}
}
