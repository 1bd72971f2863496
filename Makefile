# Every command that a contributor or a pipeline needs. Tools are pinned here
# and fetched by the go command; nothing has to be installed beforehand but Go,
# git and make.

SHELL = /bin/bash
.SHELLFLAGS = -euo pipefail -c
.DEFAULT_GOAL = help

BUF      = go run github.com/bufbuild/buf/cmd/buf@v1.75.0
GOLANGCI = go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0

# The workspace's modules, nested ones too, as folders relative to this one.
MODULES = $(patsubst $(CURDIR)/%,%,$(shell go list -m -f '{{.Dir}}'))

# RACE=1 turns the race detector on; TESTFLAGS are handed to go test.
RACE ?=
TESTFLAGS ?=

# What the programs need on a Debian host.
PACKAGES = ffmpeg fonts-dejavu-core fonts-droid-fallback
# What the tests need beside.
TEST_PACKAGES = redis-server chromium

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{ printf "  %-14s %s\n", $$1, $$2 }'

.PHONY: deps
deps: ## Install the Debian packages that are missing (as root), or name them
	@missing=$$({ dpkg-query -W -f '$${Package} $${db:Status-Status}\n' $(PACKAGES) 2>/dev/null || true; } | awk '$$2 == "installed" { print $$1 }' | sort | comm -13 - <(printf '%s\n' $(PACKAGES) | sort) | xargs); \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then \
		echo "Please install: $$missing" >&2; exit 1; \
	fi; \
	echo "Installing $$missing"; \
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1; \
	apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing </dev/null >/dev/null

.PHONY: test-deps
test-deps: PACKAGES += $(TEST_PACKAGES)
test-deps: deps ## Install what the tests need beside

.PHONY: build
build: ## Build the programs into bin/
	go build -o bin/ ./gateway/cmd/... ./worker/cmd/... ./deploy/vidforge/...

.PHONY: bundle
bundle: build ## Pack bin/vidforge into an MCP bundle (.mcpb) for desktop hosts, with its registry entry
	go run ./deploy/vidforge/mcpb

.PHONY: demo
demo: ## Render a video through MCP; FILE=video renders that one, FORMAT=webm or mov to another format
	@FORMAT=$(FORMAT) deploy/demo.sh $(FILE)

# Whole-system tests read other modules' files, which go's test cache does not
# see.
.PHONY: test
test: test-deps ## Run every module's tests; RACE=1 with the race detector
	@failed=; \
	for m in $(MODULES); do \
		echo "== $$m"; \
		fresh=; if [ $$m = deploy/e2e ]; then fresh=-count=1; fi; \
		(cd $$m && go test $(if $(RACE),-race) $$fresh -timeout 30m $(TESTFLAGS) ./...) || failed="$$failed $$m"; \
	done; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed" >&2; exit 1; fi

.PHONY: e2e
e2e: test-deps ## Run the programs as processes, over real servers, with faults
	cd deploy/e2e && go test $(if $(RACE),-race) -count=1 -timeout 30m $(TESTFLAGS) . ./command ./faults ./processes ./servers

.PHONY: conformance
conformance: ## Run the official MCP conformance suite
	go run ./deploy/e2e/conformance/run

.PHONY: clients
clients: deps ## Render with the official MCP clients in both generations, and the Inspector
	cd deploy/e2e && go test -tags clients -count=1 -timeout 20m -v $(TESTFLAGS) ./conformance/clients

.PHONY: lint
lint: lint-proto lint-modules lint-go ## Check everything that needs no test

.PHONY: lint-go
lint-go: ## Check format, vet and the rules of .golangci.yaml
	$(GOLANGCI) run --timeout 20m --allow-parallel-runners $(addprefix ./,$(addsuffix /...,$(MODULES)))

.PHONY: lint-proto
lint-proto: ## Check style, compatibility and freshness of the protobuf files
	cd proto && $(BUF) lint && $(BUF) format --diff --exit-code && $(BUF) breaking --against baseline.binpb
	@new=$$(mktemp -d); trap 'rm -rf "$$new"' EXIT; \
	cd proto && $(BUF) generate -o "$$new" && diff -ru --exclude='*.proto' vidforge "$$new/vidforge" || { echo "run make generate" >&2; exit 1; }

.PHONY: lint-modules
lint-modules: ## Check that each module builds alone and is tidy
	@for m in $(MODULES); do \
		(cd $$m && GOWORK=off go build ./... && GOWORK=off go mod tidy -diff >/dev/null) || { echo "$$m does not build alone, or its go.mod is not tidy" >&2; exit 1; }; \
	done

.PHONY: generate
generate: ## Generate the Go beside the .proto files
	cd proto && $(BUF) generate

.PHONY: baseline
baseline: ## At a release: make the present protobuf files what later ones must not break
	cd proto && $(BUF) build -o baseline.binpb

.PHONY: bench
bench: test-deps ## Run every module's benchmarks
	@for m in $(MODULES); do (cd $$m && go test -run '^$$' -bench . -benchmem $(TESTFLAGS) ./...); done

# How long each fuzz target runs.
FUZZTIME ?= 10s

.PHONY: fuzz
fuzz: test-deps ## Fuzz every target for FUZZTIME; MODULES=gateway only those of a module
	@failed=; \
	for m in $(MODULES); do \
		for pkg in $$(cd $$m && go list -f '{{.ImportPath}}={{.Dir}}' ./...); do \
			for target in $$(cat /dev/null $${pkg#*=}/*_test.go 2>/dev/null | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p'); do \
				(cd $$m && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $${pkg%%=*}) || failed="$$failed $$target"; \
			done; \
		done; \
	done; \
	if [ -n "$$failed" ]; then echo "FAILED:$$failed" >&2; exit 1; fi

.PHONY: nightly
nightly: test-deps ## Run what is too long for every change: clusters, race detector, fuzzing, benchmarks
	$(MAKE) test RACE=1 TESTFLAGS="-tags nightly $(TESTFLAGS)"
	$(MAKE) fuzz FUZZTIME=1m
	$(MAKE) bench

.PHONY: clean
clean: ## Remove what build and demo made
	rm -rf bin out
