// Package command tests the command vidforge as its users run it: the built
// binary, as processes.
package command
