// Package buildinfo tells what the Go tool stamped into the binary.
package buildinfo

import (
	"runtime/debug"
	"strings"
)

// Version is that of the main module, without its leading v and without build
// metadata, which the fingerprint of the contract adds itself; "dev" when the
// binary knows none.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	version, _, _ := strings.Cut(info.Main.Version, "+")
	return strings.TrimPrefix(version, "v")
}
