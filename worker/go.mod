module github.com/vidforge/vidforge/worker

go 1.26

require (
	github.com/vidforge/vidforge/pkg v0.0.0
	github.com/vidforge/vidforge/proto v0.0.0
)

replace (
	github.com/vidforge/vidforge/pkg => ../pkg
	github.com/vidforge/vidforge/proto => ../proto
)
