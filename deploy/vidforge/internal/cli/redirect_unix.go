//go:build unix

package cli

import (
	"os"

	"golang.org/x/sys/unix"
)

// redirect makes from's descriptor another one of to, and returns what it was.
func redirect(from, to *os.File) (*os.File, error) {
	own, err := unix.FcntlInt(from.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	if err := unix.Dup2(int(to.Fd()), int(from.Fd())); err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	return os.NewFile(uintptr(own), from.Name()), nil
}
