module github.com/vidforge/vidforge/deploy/e2e

go 1.26.0

require github.com/vidforge/vidforge/pkg/mcptask v0.0.0

require golang.org/x/mod v0.41.0

require (
	github.com/google/jsonschema-go v0.4.3 // indirect
	github.com/modelcontextprotocol/go-sdk v1.8.0
	github.com/segmentio/asm v1.1.3 // indirect
	github.com/segmentio/encoding v0.5.4 // indirect
	github.com/yosida95/uritemplate/v3 v3.0.2 // indirect
	golang.org/x/oauth2 v0.35.0 // indirect
	golang.org/x/sync v0.25.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/time v0.15.0 // indirect
)

replace (
	github.com/vidforge/vidforge/deploy/embedded => ../../deploy/embedded
	github.com/vidforge/vidforge/deploy/vidforge => ../../deploy/vidforge
	github.com/vidforge/vidforge/gateway => ../../gateway
	github.com/vidforge/vidforge/pkg => ../../pkg
	github.com/vidforge/vidforge/pkg/mcptask => ../../pkg/mcptask
	github.com/vidforge/vidforge/proto => ../../proto
	github.com/vidforge/vidforge/worker => ../../worker
)
