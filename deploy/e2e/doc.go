// Package e2e tests the farm as a whole, over real servers and with real
// processes.
package e2e
