// Package processes holds tests of vidforge-gateway and vidforge-worker as
// processes among servers that are processes too: settings, starting in any
// order, readiness, draining.
package processes
