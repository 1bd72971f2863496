package scratch

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func TestOpenRemovesWhatTheDeadLeft(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dead := filepath.Join(root, "vidforge-worker-dead")
	unlocked := filepath.Join(root, "vidforge-worker-young")
	for _, dir := range []string{dead, unlocked} {
		if err := os.MkdirAll(filepath.Join(dir, "job-1"), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dead, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the dead process's directory is still there: %v", err)
	}
	for _, dir := range []string{first.Path(), second.Path(), unlocked} {
		if _, err := os.Stat(dir); err != nil {
			t.Errorf("a living process's directory is gone: %v", err)
		}
	}
	job, err := first.Job()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(job.Path, "x"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := job.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(job.Path); !os.IsNotExist(err) {
		t.Errorf("the job's directory is still there: %v", err)
	}
	for _, d := range []*Dir{first, second} {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(d.Path()); !os.IsNotExist(err) {
			t.Errorf("a closed directory is still there: %v", err)
		}
	}
}

func TestReserve(t *testing.T) {
	t.Parallel()
	d, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	free, err := d.Free()
	if err != nil || free <= 0 {
		t.Fatalf("%d bytes free, %v", free, err)
	}
	var jobs [2]*Job
	for i := range jobs {
		if jobs[i], err = d.Job(); err != nil {
			t.Fatal(err)
		}
	}
	a, b := jobs[0], jobs[1]
	// The disk is not ours alone: leave others room for what they write.
	if err := a.Reserve(math.MaxInt64); !errors.Is(err, ErrFull) {
		t.Errorf("more than there is: %v", err)
	}
	if err := a.Reserve(free / 2); err != nil {
		t.Error(err)
	}
	if err := b.Reserve(free / 4 * 3); !errors.Is(err, ErrPromised) {
		t.Errorf("what another has: %v", err)
	}
	if err := a.Reserve(free / 8); err != nil {
		t.Errorf("less than before: %v", err)
	}
	if err := b.Reserve(free / 4 * 3); err != nil {
		t.Error(err)
	}
	// What a job has written is not needed again.
	if err := os.WriteFile(filepath.Join(b.Path, "x"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if used(b.Path) != 1<<20 {
		t.Errorf("%d bytes are used", used(b.Path))
	}
	if err := b.Remove(); err != nil {
		t.Error(err)
	}
	if err := a.Reserve(free / 4 * 3); err != nil {
		t.Errorf("what another has given back: %v", err)
	}
}
