// Package rules holds the repository's own rules as tests: its top level,
// package comments, module graph, words and links.
package rules
