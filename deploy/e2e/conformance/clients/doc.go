// Package clients runs the official clients of MCP against a whole farm, as
// `make clients` does: they need npm, and time.
package clients
