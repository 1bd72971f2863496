BUF = go run github.com/bufbuild/buf/cmd/buf@v1.75.0

.PHONY: generate
generate: ## Generate the Go beside the .proto files
	cd proto && $(BUF) generate
