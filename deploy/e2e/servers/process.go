// Package servers starts, for tests, the servers that a farm stands on as
// processes of their own: nats-server (alone or as a cluster), redis-server
// and versitygw. They can be killed, stopped and started again on the same data
// and the same port. All end with the test that started them, and show their
// logs if it failed.
//
// nats-server and versitygw are tools of this module, built once into the go
// command's cache; redis-server is the host's.
package servers

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gofrs/flock"
)

// startTimeout is how long a server may take until it answers, on a machine
// with much else to do.
const startTimeout = time.Minute

// lockEvery is the time between two looks at a lock that another holds.
const lockEvery = 100 * time.Millisecond

// logShown is how many bytes of a server's log a failed test shows.
const logShown = 32 << 10

// startDir is the test's package: the go command finds this module from there,
// also after an embedded S3 moved the process elsewhere.
var startDir, _ = os.Getwd() // never changed; "" is where the process is

// Process is a server that runs as a process of its own. Its methods are not
// for several goroutines at once.
type Process struct {
	// Dir holds the server's data, configuration and log.
	Dir string

	name string
	path string
	args []string
	env  []string
	// ready asks the server for a sign of life.
	ready func(context.Context, *tls.Config) error
	tls   *TLS

	cmd  *exec.Cmd
	done chan struct{} // closed when cmd has ended
}

// tools are the paths of programs that were found, by name: asking the go
// command takes it a second.
var tools sync.Map

// tool is the path of a program that this module names as a tool. The go
// command builds it where needed. Only one is asked at a time, on the whole
// machine: of two that build the same program, the later one still writes the
// file whose path the earlier one has given, and nobody can run it then.
func tool(t testing.TB, name string) string {
	t.Helper()
	if path, ok := tools.Load(name); ok {
		return path.(string)
	}
	lock := flock.New(filepath.Join(os.TempDir(), fmt.Sprintf("vidforge-go-tool-%d.lock", os.Getuid())))
	if _, err := lock.TryLockContext(t.Context(), lockEvery); err != nil {
		t.Fatalf("wait for others that build %s: %v", name, err)
	}
	defer lock.Close()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "-n", name)
	cmd.Dir = startDir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build %s: %v\n%s", name, err, stderr.String())
	}
	path := strings.TrimSpace(string(out))
	tools.Store(name, path)
	return path
}

// start starts the server and waits until it answers. It ends with the test.
func (p *Process) start(t testing.TB) {
	t.Helper()
	t.Cleanup(func() {
		p.Kill(t)
		if t.Failed() {
			t.Logf("%s in %s:\n%s", p.name, p.Dir, p.Log())
		}
	})
	p.run(t)
}

func (p *Process) run(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(p.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Env = p.Dir, append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", p.name, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // the log says why it ended
	}()
	p.cmd, p.done = cmd, done
}

// wait waits until the server answers.
func (p *Process) wait(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var client *tls.Config
	if p.tls != nil {
		client = p.tls.CA.Config(t)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := p.ready(ctx, client)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-p.done:
			t.Fatalf("%s ended at its start:\n%s", p.name, p.Log())
		case <-ctx.Done():
			t.Fatalf("%s does not answer: %v", p.name, err)
		}
	}
}

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the present process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process as a crash would, and waits for its end. An ended one
// is left alone.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if p.cmd == nil {
		return
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill %s: %v", p.name, err)
		return
	}
	<-p.done
}

// Stop halts the process where it is (SIGSTOP): connections stay, answers do
// not come. It returns when the process stands still.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	for !p.stopped(t) {
		time.Sleep(time.Millisecond) // the kernel has no call that waits for it
	}
}

func (p *Process) stopped(t testing.TB) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(stat), ") ") // behind the program's name
	return strings.HasPrefix(after, "T")
}

// Continue lets a stopped process go on.
func (p *Process) Continue(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

// Reload makes a server read its configuration again (SIGHUP).
func (p *Process) Reload(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGHUP)
}

func (p *Process) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, p.name, err)
	}
}

// Restart starts the server anew with the same data on the same port, killing
// it before if it still runs, and waits until it answers.
func (p *Process) Restart(t testing.TB) {
	t.Helper()
	p.Kill(t)
	p.run(t)
	p.wait(t)
}

// Log is the end of what the server wrote.
func (p *Process) Log() string {
	b, err := os.ReadFile(p.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b[max(len(b)-logShown, 0):])
}

func (p *Process) logFile() string { return filepath.Join(p.Dir, "log") }

// write makes a file in the server's directory and returns its path.
func (p *Process) write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(p.Dir, name)
	if err := replaceFile(path, []byte(text)); err != nil {
		t.Fatal(err)
	}
	return path
}

// replaceFile gives readers the old or the new contents, nothing between.
func replaceFile(path string, b []byte) error {
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// holdPort takes a TCP port of 127.0.0.1 for as long as the test runs. The
// socket is bound with SO_REUSEADDR and never listens: the kernel then gives
// the port to nobody who asks for any free one, yet a server that names it can
// listen, and again after its restart.
func holdPort(t testing.TB) int {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Close(fd); err != nil {
			t.Errorf("let go of a port: %v", err)
		}
	})
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	addr, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatalf("hold a port: %v", err)
	}
	inet, ok := addr.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("hold a port: bound to %v", addr)
	}
	return inet.Port
}
