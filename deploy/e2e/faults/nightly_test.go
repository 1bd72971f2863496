//go:build nightly

package faults

// everyStop runs every point of TestStoppedAndContinued.
const everyStop = true
