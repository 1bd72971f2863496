// Package scratch gives each job a directory of its own and removes what a
// process that was killed left behind.
package scratch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/gofrs/flock"
)

var (
	// ErrFull is returned when the file system has not the space that is needed.
	ErrFull = errors.New("scratch: not enough space")
	// ErrPromised is returned when it has the space, but other jobs of this
	// process will need it.
	ErrPromised = errors.New("scratch: the space is promised to other jobs")
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

	mu   sync.Mutex
	jobs map[*Job]int64 // what each will need in bytes, written or not
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
	d := &Dir{path: path, jobs: map[*Job]int64{}, lock: flock.New(filepath.Join(path, lockName))}
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

// Job is one job's directory.
type Job struct {
	Path string
	dir  *Dir
}

// Job makes a directory for one job.
func (d *Dir) Job() (*Job, error) {
	path, err := os.MkdirTemp(d.path, "job-*")
	if err != nil {
		return nil, fmt.Errorf("make job directory: %w", err)
	}
	j := &Job{Path: path, dir: d}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jobs[j] = 0
	return j, nil
}

// Remove removes the job's directory with everything in it.
func (j *Job) Remove() error {
	err := os.RemoveAll(j.Path)
	j.dir.mu.Lock()
	defer j.dir.mu.Unlock()
	delete(j.dir.jobs, j)
	if err != nil {
		return fmt.Errorf("remove job directory: %w", err)
	}
	return nil
}

// Reserve promises the job bytes of space in all, what it has written already
// included. It writes nothing: others may fill the disk all the same.
func (j *Job) Reserve(bytes int64) error {
	d := j.dir
	d.mu.Lock()
	defer d.mu.Unlock()
	free, err := d.Free()
	if err != nil {
		return err
	}
	free += used(j.Path)
	if bytes > free {
		return fmt.Errorf("%w: %d bytes are needed in %s, %d are free", ErrFull, bytes, d.path, free)
	}
	for other, need := range d.jobs {
		if other != j {
			free -= max(0, need-used(other.Path))
		}
	}
	if bytes > free {
		return fmt.Errorf("%w: %d bytes are needed in %s, %d are left", ErrPromised, bytes, d.path, max(0, free))
	}
	d.jobs[j] = bytes
	return nil
}

// used is the length of the files below a directory in bytes, as far as they
// can be seen.
func used(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return nil //nolint:nilerr // removed meanwhile
		}
		if info, err := e.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// Free is the space that the file system has left for this process in bytes.
func (d *Dir) Free() (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(d.path, &s); err != nil {
		return 0, fmt.Errorf("scratch: look for free space in %s: %w", d.path, err)
	}
	return int64(s.Bavail) * int64(s.Bsize), nil //nolint:gosec,unconvert // types differ by system
}

// Close removes the process's directory.
func (d *Dir) Close() error {
	return errors.Join(os.RemoveAll(d.path), d.lock.Close())
}
