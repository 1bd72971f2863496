package process

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// childVariable makes the test's program the child of TestSecondSignal.
const childVariable = "PROCESS_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
	os.Exit(m.Run())
}

// child sends itself a signal, and a second one as soon as the first has had
// its effect.
func child() {
	ctx, stop := Interrupted(context.Background())
	defer stop()
	for range 2 {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			panic(err)
		}
		<-ctx.Done()
	}
	select {}
}

// A second signal counts also when it comes right after the first.
func TestSecondSignal(t *testing.T) {
	t.Parallel()
	for range 20 {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), childVariable+"=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
			t.Fatalf("the child ended with %v: %s", err, out)
		}
	}
}

func TestInterruptedGivesBack(t *testing.T) {
	t.Parallel()
	parent, cancel := context.WithCancel(t.Context())
	ctx, stop := Interrupted(parent)
	cancel()
	<-ctx.Done()
	stop()
	ctx, stop = Interrupted(t.Context())
	if ctx.Err() != nil {
		t.Error(ctx.Err())
	}
	stop()
	if ctx.Err() == nil {
		t.Error("the context goes on after stop")
	}
}
