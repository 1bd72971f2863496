module github.com/vidforge/vidforge/deploy/vidforge

go 1.26

require (
	github.com/vidforge/vidforge/deploy/embedded v0.0.0
	github.com/vidforge/vidforge/gateway v0.0.0
	github.com/vidforge/vidforge/pkg v0.0.0
	github.com/vidforge/vidforge/pkg/mcptask v0.0.0
	github.com/vidforge/vidforge/proto v0.0.0
	github.com/vidforge/vidforge/worker v0.0.0
)

replace (
	github.com/vidforge/vidforge/deploy/embedded => ../../deploy/embedded
	github.com/vidforge/vidforge/gateway => ../../gateway
	github.com/vidforge/vidforge/pkg => ../../pkg
	github.com/vidforge/vidforge/pkg/mcptask => ../../pkg/mcptask
	github.com/vidforge/vidforge/proto => ../../proto
	github.com/vidforge/vidforge/worker => ../../worker
)
