package sandbox

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Attr is how a child is started: as the leader of its own process group, and
// killed when the thread that started it ends. The caller keeps that thread
// (runtime.LockOSThread) until the child has ended.
func Attr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// Confine applies the limits to a child that has just been started. A child
// that has ended already is no error.
func Confine(pid int, l Limits) error {
	for _, r := range []struct {
		name     string
		resource int
		limit    uint64
	}{
		{"address space", unix.RLIMIT_AS, l.AddressSpace},
		{"file size", unix.RLIMIT_FSIZE, l.FileSize},
		{"cpu time", unix.RLIMIT_CPU, l.CPUSeconds},
		{"open files", unix.RLIMIT_NOFILE, l.OpenFiles},
	} {
		if r.limit == 0 {
			continue
		}
		// The worker's own hard limit stays the ceiling: raising it would
		// need a privilege that the worker should not have.
		var have unix.Rlimit
		err := unix.Prlimit(pid, r.resource, nil, &have)
		if err == nil {
			limit := min(r.limit, have.Max)
			err = unix.Prlimit(pid, r.resource, &unix.Rlimit{Cur: limit, Max: limit}, nil)
		}
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("limit %s of process %d: %w", r.name, pid, err)
		}
	}
	// No core dumps: they would hold a user's pictures.
	if err := unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("limit core dumps of process %d: %w", pid, err)
	}
	return nil
}

// rssUnit is the unit of Rusage.Maxrss in bytes.
const rssUnit = 1024
