# Penstock: `make run` to see it, `make test` to see it proven, `make help` for the rest.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
GO ?= go
SEED ?=
FUZZTIME ?= 20s
ROUNDS ?= 100
ADDRESS ?= http://localhost:8080
ARGS ?=

# Packages whose tests run under the race detector too: everything that shares memory between goroutines.
RACE := ./core ./internal/... ./caddy ./cmd/penstock
FUZZ_PACKAGES = $(shell grep -rl --include='*_test.go' '^func Fuzz' core internal caddy envoy-wasm | xargs -rn1 dirname | sort -u)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: run
run: build ## start Caddy on examples/Caddyfile and say what to try
	@echo
	@echo "Penstock is limiting $(ADDRESS): 3 requests a minute for each client."
	@echo "In another terminal:"
	@echo
	@echo "    for i in 1 2 3 4; do curl -i $(ADDRESS); done"
	@echo
	@echo "Stop with Ctrl-C. The configuration is examples/Caddyfile."
	@echo
	@exec bin/caddy run --config examples/Caddyfile

.PHONY: run-envoy
run-envoy: bin/penstock bin/penstock.wasm ## start Redis, the bridge and Envoy on examples/envoy.yaml and say what to try
	@tools/setup.sh envoy
	@exec tools/run-envoy.sh

.PHONY: build
build: bin/caddy bin/penstock bin/penstock.wasm ## build bin/caddy, the command bin/penstock, and bin/penstock.wasm for Envoy

.PHONY: bin/caddy
bin/caddy:
	@$(GO) build -trimpath -ldflags '-s -w' -o bin/caddy ./cmd/caddy

.PHONY: bin/penstock
bin/penstock:
	@$(GO) build -trimpath -ldflags '-s -w' -o bin/penstock ./cmd/penstock

.PHONY: bin/penstock.wasm
bin/penstock.wasm:
	@GOOS=wasip1 GOARCH=wasm $(GO) build -trimpath -buildmode=c-shared -ldflags '-s -w' -o bin/penstock.wasm ./envoy-wasm

.PHONY: setup
setup: ## install what the tests start: redis-server, nginx, Node, and Envoy in .cache/envoy
	@tools/setup.sh envoy nginx node

.PHONY: test
test: setup lint unit race e2e xcaddy ## everything: the whole truth, as CI runs it

.PHONY: unit
unit: setup ## unit tests, vectors, the store exam on a real Redis
	$(GO) test $$($(GO) list ./... | grep -v /e2e)

.PHONY: race
race: setup ## the same under the race detector
	$(GO) test -race $(RACE)

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME each
	@for package in $(FUZZ_PACKAGES); do \
	  for target in $$(grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' $$package | sed 's/func //' | sort -u); do \
	    echo "== $$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$package; \
	  done; \
	done

.PHONY: simulate
simulate: ## many nodes with leases and faults, ROUNDS times; a failure says with which SEED to repeat it
	PENSTOCK_SEED=$(SEED) PENSTOCK_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^TestNeverOver$$' ./internal/lease

.PHONY: e2e
e2e: setup ## real Caddy and Envoy processes over a real Redis
	$(GO) test -count=1 -timeout 40m ./e2e

.PHONY: faults
faults: setup ## every fault on every front, and what was seen in docs/faults.md
	$(GO) test -count=1 -timeout 120m -run '^TestFaults$$' ./e2e -faults

.PHONY: attack
attack: setup ## every attack in every size on every front, and a table of what was seen; a short form is in e2e
	$(GO) test -count=1 -v -timeout 120m -run '^TestAttacks$$' ./e2e -attack

.PHONY: envoy-memory
envoy-memory: setup ## a million made-up clients in front of Envoy, whose memory must not grow
	PENSTOCK_STRANGERS=1000000 $(GO) test -count=1 -v -timeout 60m -run TestEnvoyMemoryIsFlat ./e2e

# The recordings are of a commit that is newer than what bench/rival can pin: docs/envoy.md says which, and RATELIMIT names a
# program of that one. What the pinned one answers otherwise, the test counts as differences that are not known.
RATELIMIT ?= $(CURDIR)/.cache/bench/ratelimit

.PHONY: record-ratelimit
record-ratelimit: setup ## ask envoyproxy/ratelimit again what its configurations decide, for the tests of the importer
	GOWORK=off $(GO) build -C bench/rival -o ../../.cache/bench/ratelimit github.com/envoyproxy/ratelimit/src/service_cmd
	$(GO) test -count=1 -v -timeout 30m -run '^TestImportedDecidesAsTheRealService$$' ./internal/rlsimport \
	  -record $(RATELIMIT) -sources $$(cd bench/rival && GOWORK=off $(GO) list -m -f '{{.Dir}}' github.com/envoyproxy/ratelimit)

.PHONY: lint
lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "run gofmt -w on these"; exit 1; }
	$(GO) vet ./...
	@cd tools && $(GO) build -o ../.cache/staticcheck honnef.co/go/tools/cmd/staticcheck
	.cache/staticcheck ./...

.PHONY: lint-bench
lint-bench: ## vet the benchmark, which needs its rivals' modules and so is no part of lint
	bench/run.sh vet

.PHONY: bench
bench: setup ## measure Penstock beside its rivals, into docs/benchmarks.md; ARGS=-quick, ARGS="-only caddy" for a part
	@tools/setup.sh wrk
	bench/run.sh $(ARGS)

.PHONY: xcaddy
xcaddy: ## build a Caddy with Penstock the way xcaddy does it, from this checkout
	@tools/xcaddy.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf bin .cache
