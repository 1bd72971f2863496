module github.com/vidforge/vidforge/worker

go 1.26.0

require (
	github.com/rivo/uniseg v0.4.7
	github.com/vidforge/vidforge/pkg v0.0.0
	golang.org/x/image v0.48.0
	golang.org/x/text v0.44.0
)

require golang.org/x/sys v0.50.0

replace (
	github.com/vidforge/vidforge/pkg => ../pkg
	github.com/vidforge/vidforge/proto => ../proto
)
