package embedded

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// syncFS flushes the whole file system that f is on.
func syncFS(f *os.File) error {
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs: %w", err)
	}
	return nil
}
