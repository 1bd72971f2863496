package sandbox

import (
	"os"
	"syscall"
)

// MaxRSS is the largest resident set of an ended child in bytes, 0 when
// unknown.
func MaxRSS(s *os.ProcessState) int64 {
	if u, ok := s.SysUsage().(*syscall.Rusage); ok {
		return u.Maxrss * rssUnit
	}
	return 0
}
