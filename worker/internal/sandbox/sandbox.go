// Package sandbox confines the child processes that read files from strangers:
// a process group of their own, death with the worker, resource limits.
package sandbox

// Limits of one child process. Zero leaves a resource as the worker has it.
type Limits struct {
	// AddressSpace is the most virtual memory in bytes. It is a backstop
	// against a decoder gone wild, not a memory budget: thread stacks and
	// mapped libraries count.
	AddressSpace uint64
	// FileSize is the longest file in bytes that the child may write; beyond
	// it the kernel sends SIGXFSZ.
	FileSize uint64
	// CPUSeconds is the most CPU time in seconds; beyond it the kernel sends
	// SIGXCPU.
	CPUSeconds uint64
	// OpenFiles is the largest number of open file descriptors.
	OpenFiles uint64
}

// DefaultLimits suit any run on any media that the farm accepts.
func DefaultLimits() Limits {
	return Limits{AddressSpace: 16 << 30, FileSize: 128 << 30, CPUSeconds: 24 * 3600, OpenFiles: 256}
}
