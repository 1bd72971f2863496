package local

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
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

// The directory that was used last comes first, before it one whose process
// crashed; one in use never.
func TestFreeDir(t *testing.T) {
	t.Parallel()
	base := filepath.Join(t.TempDir(), "base")
	free := func() string {
		t.Helper()
		dir, err := FreeDir(base)
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	take := func(dir string) *lock {
		t.Helper()
		l, err := acquire(t.Context(), dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.announce(Holder{PID: os.Getpid()}); err != nil {
			t.Fatal(err)
		}
		return l
	}
	release := func(l *lock, at time.Time) {
		t.Helper()
		if err := errors.Join(l.release(), os.Chtimes(l.path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	first := free()
	one := take(first)
	second := free()
	two := take(second)
	if first == second {
		t.Fatal("a directory in use was free")
	}
	if err := os.Mkdir(filepath.Join(base, "farm-3"), 0o700); err != nil { // no farm's
		t.Fatal(err)
	}
	if third := free(); filepath.Base(third) != "farm-4" {
		t.Errorf("third: %s", third)
	}
	release(one, time.Unix(2, 0))
	if got := free(); got != first {
		t.Errorf("only the first is free: %s", got)
	}
	release(two, time.Unix(1, 0))
	if got := free(); got != first {
		t.Errorf("the first was used last: %s", got)
	}
	if err := errors.Join(os.WriteFile(two.path, []byte(`{"pid":1}`), 0o600), os.Chtimes(two.path, time.Unix(1, 0), time.Unix(1, 0))); err != nil {
		t.Fatal(err)
	}
	if got := free(); got != second {
		t.Errorf("the second crashed: %s", got)
	}
}
