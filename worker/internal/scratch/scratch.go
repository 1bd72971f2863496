// Package scratch gives each job a directory of its own and removes what a
// process that was killed left behind.
package scratch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

const (
	processPattern = "vidforge-worker-*"
	lockName       = "lock"
)

// Dir is the scratch space of this process. Its lock is held as long as the
// process lives, so that others can tell a dead one's from it.
type Dir struct {
	path string
	lock *flock.Flock
}

// Open makes this process's directory below root (the system's temporary
// directory when empty) and removes those of dead processes.
func Open(root string) (*Dir, error) {
	if root == "" {
		root = os.TempDir()
	}
	if err := os.MkdirAll(root, 0o750); err != nil {
		return nil, fmt.Errorf("make scratch directory: %w", err)
	}
	path, err := os.MkdirTemp(root, processPattern)
	if err != nil {
		return nil, fmt.Errorf("make scratch directory: %w", err)
	}
	d := &Dir{path: path, lock: flock.New(filepath.Join(path, lockName))}
	if ok, err := d.lock.TryLock(); err != nil || !ok {
		return nil, errors.Join(fmt.Errorf("lock scratch directory %s", path), err, os.RemoveAll(path))
	}
	return d, errors.Join(sweep(root, path))
}

// sweep removes the directories whose processes are gone. Another process may
// be between making its directory and locking it; a directory without a lock
// file is therefore left alone.
func sweep(root, own string) error {
	dirs, err := filepath.Glob(filepath.Join(root, processPattern))
	if err != nil {
		return fmt.Errorf("list scratch directories: %w", err)
	}
	var errs []error
	for _, dir := range dirs {
		lockFile := filepath.Join(dir, lockName)
		if dir == own {
			continue
		}
		if _, err := os.Stat(lockFile); err != nil {
			continue
		}
		l := flock.New(lockFile)
		if ok, err := l.TryLock(); err != nil || !ok {
			continue
		}
		errs = append(errs, os.RemoveAll(dir), l.Close())
	}
	return errors.Join(errs...)
}

// Path is the process's directory.
func (d *Dir) Path() string { return d.path }

// Job makes a directory for one job; remove removes it with everything in it.
func (d *Dir) Job() (path string, remove func() error, err error) {
	path, err = os.MkdirTemp(d.path, "job-*")
	if err != nil {
		return "", nil, fmt.Errorf("make job directory: %w", err)
	}
	return path, func() error { return os.RemoveAll(path) }, nil
}

// Close removes the process's directory.
func (d *Dir) Close() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}
