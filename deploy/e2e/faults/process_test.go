package faults

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// process is a running program.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	log  *log
	done chan struct{} // closed when it has ended
	// ending says that the test ends it.
	ending atomic.Bool
}

// launch starts a program that obeys points and has the environment's settings.
func launch(t testing.TB, program, name string, points, env []string) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: exec.Command(filepath.Join(built.dir, program)), log: &log{grown: make(chan struct{})}, done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Env = append(p.cmd.Env, "FAILPOINTS="+strings.Join(points, ","))
	p.cmd.Stderr = p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in the ProcessState
		p.log.end()
		close(p.done)
	}()
	t.Cleanup(func() {
		p.ending.Store(true)
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			t.Logf("%s, pid %d, %v:\n%s", name, p.cmd.Process.Pid, p.cmd.ProcessState, strings.Join(p.log.lines(), "\n"))
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	select {
	case <-p.done:
	default:
		if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
			p.t.Errorf("%s: signal %s: %v", p.name, s, err)
		}
	}
}

// quit asks the program to stop and waits for its end.
func (p *process) quit() {
	p.t.Helper()
	p.ending.Store(true)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Errorf("%s does not stop", p.name)
		return
	}
	if state := p.cmd.ProcessState; !state.Success() {
		p.t.Errorf("%s, asked to stop: %s", p.name, state)
	}
}

// stopped waits until the process stands still, at the point that it names.
func (p *process) stopped() (point string) {
	p.t.Helper()
	line := p.await("a stop", func(line string) bool { return strings.HasPrefix(line, firedPrefix) })
	deadline := time.Now().Add(patience)
	for !strings.Contains(p.status(), "State:\tT") {
		if time.Now().After(deadline) {
			p.t.Errorf("%s did not stop", p.name)
			return ""
		}
		time.Sleep(5 * time.Millisecond) // the kernel tells nobody but a parent that waits
	}
	return strings.TrimPrefix(line, firedPrefix)
}

func (p *process) status() string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		p.t.Errorf("%s: %v", p.name, err)
	}
	return string(b)
}

// firedPrefix begins the line in which a program says which point it obeys.
const firedPrefix = "failpoint: "

// fired is the last point that the process obeyed.
func (p *process) fired() string {
	lines := p.log.lines()
	for _, line := range slices.Backward(lines) {
		if name, ok := strings.CutPrefix(line, firedPrefix); ok {
			return name
		}
	}
	return ""
}

// await waits for a line of the log that was not awaited before, and returns ""
// when the process ends without it.
func (p *process) await(what string, match func(string) bool) string {
	p.t.Helper()
	line, ok := p.log.await(match)
	if !ok {
		select {
		case <-p.done:
		default:
			p.t.Errorf("%s: %s did not come", p.name, what)
		}
	}
	return line
}

// logged waits for a record of the log with this message.
func (p *process) logged(msg string) map[string]any {
	p.t.Helper()
	line := p.await(msg, func(line string) bool { return strings.Contains(line, `"msg":"`+msg+`"`) })
	var record map[string]any
	if line != "" {
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			p.t.Errorf("%s: %q: %v", p.name, line, err)
		}
	}
	return record
}

// log keeps what a process writes, by line.
type log struct {
	mu     sync.Mutex
	text   strings.Builder
	seen   int           // bytes that await has looked at
	grown  chan struct{} // closed and renewed at every change
	closed bool
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(b)
	close(l.grown)
	l.grown = make(chan struct{})
	return len(b), nil
}

func (l *log) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	close(l.grown)
	l.grown = make(chan struct{})
}

// lines are those of interest: not each poll of a client.
func (l *log) lines() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(strings.Split(l.text.String(), "\n"), func(line string) bool {
		return strings.Contains(line, `"msg":"request"`)
	})
}

// await returns the next line that matches, and false when there will be none.
func (l *log) await(match func(string) bool) (string, bool) {
	for timeout := time.After(patience); ; {
		l.mu.Lock()
		for {
			line, _, whole := strings.Cut(l.text.String()[l.seen:], "\n")
			if !whole {
				break
			}
			l.seen += len(line) + 1
			if match(line) {
				l.mu.Unlock()
				return line, true
			}
		}
		grown, closed := l.grown, l.closed
		l.mu.Unlock()
		if closed {
			return "", false
		}
		select {
		case <-grown:
		case <-timeout:
			return "", false
		}
	}
}
