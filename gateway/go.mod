module github.com/vidforge/vidforge/gateway

go 1.26

require (
	github.com/vidforge/vidforge/pkg v0.0.0
	github.com/vidforge/vidforge/pkg/mcptask v0.0.0
	github.com/vidforge/vidforge/proto v0.0.0
)

replace (
	github.com/vidforge/vidforge/pkg => ../pkg
	github.com/vidforge/vidforge/pkg/mcptask => ../pkg/mcptask
	github.com/vidforge/vidforge/proto => ../proto
)
