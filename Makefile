# Where Go's own installer puts it, for shells that do not know.
export PATH := $(PATH):/usr/local/go/bin

GO       ?= go
PKG      ?= ./...
FUZZTIME ?= 30s
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo development)
FOLDERS  := appliance controller cscf ha media tui

.PHONY: help build demo test test-race lint fuzz bench docs deps have-go clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-18s%s\n", $$1, $$2 }'

build: have-go ## build bin/bellwether, one static program
	@test -e bin/bellwether || echo "Building; the first time this takes a minute or so ..."
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION)' -o bin/bellwether ./appliance/cmd/bellwether

demo: build ## run a cluster of three nodes with calling phones, on this machine
	bin/bellwether demo $(DEMO)

test: deps lint test-race ## install what the tests need, then lint and run all of them

# The acceptance tests run clusters in real time: alone, after all others.
test-race: have-go ## run the tests of PKG (default: all) with the race detector
	@set -e; all=$$($(GO) list $(PKG)); export CGO_ENABLED=1; \
	alone=$$(echo "$$all" | grep /appliance/acceptance || true); \
	others=$$(echo "$$all" | grep -v /appliance/acceptance || true); \
	test -z "$$others" || $(GO) test -race -timeout 8m $$others; \
	test -z "$$alone" || $(GO) test -race -timeout 8m $$alone

lint: have-go ## check formatting and run go vet
	@unformatted=$$(gofmt -l $(FOLDERS)) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "not formatted; run gofmt -w on:"; echo "$$unformatted"; exit 1; fi
	CGO_ENABLED=1 $(GO) vet -race ./...

fuzz: have-go ## fuzz every fuzz target for FUZZTIME (default: 30s)
	@set -e; grep -rl --include='*_test.go' '^func Fuzz' $(FOLDERS) | xargs -n 1 dirname | sort -u | while read -r dir; do \
		for target in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go); do \
			echo "$$dir $$target"; \
			$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) ./$$dir; \
		done; \
	done

bench: have-go ## run the micro-benchmarks of PKG (default: all)
	$(GO) test -run '^$$' -bench . -benchmem $(PKG)

docs: have-go ## write docs/conformance.md, from the tests
	$(GO) test -run TestConformanceIsDocumented -count=1 ./appliance/repo -update

deps: ## install the programs that the tests run (Debian)
	@packaging/deps.sh

clean: ## remove what was built
	rm -rf bin

have-go:
	@command -v $(GO) >/dev/null || { echo "Go is not here; install Go $$(sed -n 's/^go //p' go.mod) or later from https://go.dev/dl/, then run make again" >&2; exit 1; }
