package scratch

import (
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
	job, remove, err := first.Job()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(job, "x"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(job); !os.IsNotExist(err) {
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
