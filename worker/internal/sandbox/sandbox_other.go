//go:build unix && !linux

package sandbox

import "syscall"

// Attr is how a child is started: as the leader of its own process group.
func Attr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Confine does nothing here: limits of another process can only be set on
// Linux, which is where farms run.
func Confine(int, Limits) error { return nil }

// rssUnit is the unit of Rusage.Maxrss in bytes.
const rssUnit = 1
