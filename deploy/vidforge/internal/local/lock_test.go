package local

import (
	"errors"
	"os"
	"testing"
)

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, ok := Running(dir); ok {
		t.Error("a farm runs in an empty directory")
	}
	l, err := acquire(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := Running(dir); ok {
		t.Error("a farm runs before it said where")
	}
	me := Holder{PID: os.Getpid(), URL: "http://127.0.0.1:1", OpsURL: "http://127.0.0.1:2"}
	if err := l.announce(me); err != nil {
		t.Fatal(err)
	}
	if h, ok := Running(dir); !ok || h != me {
		t.Errorf("running: %+v, %v", h, ok)
	}
	_, err = acquire(t.Context(), dir)
	if inUse, ok := errors.AsType[*InUseError](err); !ok || inUse.Holder != me || inUse.Dir != dir {
		t.Errorf("second acquire: %v", err)
	}
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
	if _, ok := Running(dir); ok {
		t.Error("a farm runs after its end")
	}
	again, err := acquire(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.release(); err != nil {
		t.Fatal(err)
	}
}

// A crash leaves the file with its content, but not the lock.
func TestACrashedHolderIsGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(lockPath(dir), []byte(`{"pid":1,"url":"http://127.0.0.1:1"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if h, ok := Running(dir); ok {
		t.Errorf("running: %+v", h)
	}
	l, err := acquire(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.release(); err != nil {
		t.Fatal(err)
	}
}
