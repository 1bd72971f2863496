//go:build !linux

package embedded

import "os"

// syncFS flushes f; this system offers nothing for the rest.
func syncFS(f *os.File) error { return f.Sync() }
