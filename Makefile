# `make run` starts an example, `make check` runs what to run before a commit, `make test` runs all
# tests, and `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
GO ?= go
SEED ?=
FUZZTIME ?= 20s
ROUNDS ?= 100
ADDRESS ?= http://localhost:8080
ARGS ?=
# Every command of go uses -trimpath, as the builds of bin/ do. Otherwise the compiler would compile
# each package once more for tests and vet, and in each checkout. The compiler runs with less garbage
# collection below 2 GiB, which saves a fifth of its time. Only go-redis needs more than 1 GiB.
# Programs and tests have Go's default.
export GOFLAGS := $(strip $(filter-out -trimpath,$(shell $(GO) env GOFLAGS 2>/dev/null)) -trimpath '-toolexec=env GOGC=1000 GOMEMLIMIT=2GiB')
# What run-envoy starts: the WebAssembly filter with its bridge, or the native module.
FRONT ?= filter

# Packages whose tests also run under the race detector: those whose code or tests share memory
# between goroutines. Most tests of core use one goroutine, so in core only the tests in files that
# start goroutines are run. cmd/penstock puts the other packages together. The packages of control
# that are left out keep everything in PostgreSQL, and rlsimport is called by one goroutine. With the
# race detector, compiling what these packages import takes longer than running their tests.
RACE_EXCEPT := internal/test/.*|cmd/penstock|internal/control/(archive|database|ledger|retain)|internal/envoy/rlsimport
SHARES := "sync"|"sync/atomic"|^[[:space:]]*go [a-z]|\.Go.func
RACE = $(shell grep -rlE --include='*.go' '$(SHARES)' internal caddy cmd envoy-module | xargs -rn1 dirname | sort -u | \
	grep -vE '^($(RACE_EXCEPT))$$' | sed 's,^,./,')
SHARES_IN_CORE = grep -rlE --include='*_test.go' '$(SHARES)' core
RACE_IN_CORE = $(shell $(SHARES_IN_CORE) | xargs -r grep -hoE '^func Test[A-Za-z0-9_]+' | sed 's/func //' | paste -sd '|')
# Most tests of RACE do the same under the race detector with -short, so make test runs them only
# there. The others take fewer steps there, or count allocations. internal/test/differs names these
# others, and make test runs them without the race detector too.
DIFFERS := racescale|testing\.Short|AllocsPerRun|go:build.*race|storetest\.(Run|Random|Oracle)
RACE_DIFFERS = $(shell for d in $(RACE); do ! grep -qsE '$(DIFFERS)' $$d/*_test.go || echo $$d; done)
DIFFERING = $(shell $(GO) run ./internal/test/differs '$(DIFFERS)' $(RACE_DIFFERS))
# The store exams call a store from one goroutine. make test runs them in full without the race
# detector. The race detector runs only tests that call a store from many goroutines.
EXAMS := TestStoreExam|TestStoreExamOnACluster|TestStoreExamOnARing|TestStoreExamOverSentinels|TestScriptExam|TestPassesTheExam|TestPassesTheExamFromMemory|TestPassesTheExamOverLeases
# Commands that list all packages except e2e, and those of them that are not in RACE.
UNIT = $(GO) list ./... | grep -v '/e2e$$'
REST = $(UNIT) | grep -vE '/($(subst $(eval) ,|,$(RACE:./%=%)))$$'
# Tests of e2e that make check runs: the first example of the README, a limit shared by two nodes,
# and the conformance corpus on Caddy and on Envoy.
CHECK_STORIES := TestOneLine|TestNeverOverAcrossNodes|TestConformanceOfCaddy|TestConformanceOfEnvoy
# Tests of e2e that run alone: they use the default deadlines, which would expire if a small machine
# ran other work at the same time.
QUIET_STORIES := TestAttacks|TestEnvoyBursts|TestEnvoyRateLimitGuide|TestAnswersAreAsDescribed|TestManyNewTokensAtOnce

# Tests that mostly wait run in parallel: 4 packages at a time, and in each package 6 tests that
# call t.Parallel. lint runs vet, so go test does not. Tests are linked without debugging
# information, which no test reads.
WIDE := -vet=off -timeout 30m -ldflags=-w -p 4 -parallel 6
# Tests under the race detector need the processors more, and run beside e2e. Packages of other
# modules are compiled without inlining, which takes two thirds of the time.
RACE_WIDE := -vet=off -timeout 30m -ldflags=-w -gcflags=all=-l -gcflags=std= -gcflags=github.com/penstock/penstock/...= -p 2 -parallel 4
# gotest.sh repeats up to twenty tests that failed beside others, if AGAIN names a file.
TEST := tools/gotest.sh $(GO) test
# e2e starts the programs that make build has built.
E2E := PENSTOCK_BIN=$(CURDIR)/bin $(TEST) -count=1 -vet=off -ldflags=-w
# READY=1 means that setup and build are done, so that parallel targets do not repeat them.
READY ?=
FAILED_ONCE := $(CURDIR)/.cache/stages/failed-once
FUZZ_PACKAGES = $(shell grep -rl --include='*_test.go' '^func Fuzz' core internal caddy envoy-wasm envoy-module | xargs -rn1 dirname | sort -u)

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1|\2/' | column -t -s '|'

.PHONY: run
run: say-build bin/caddy bin/penstock bin/penstock.wasm ## start Caddy with examples/Caddyfile and print what to try; installs nothing
	@echo
	@echo "Penstock is limiting $(ADDRESS): 3 requests a minute for each client."
	@echo "In another terminal:"
	@echo
	@echo "    for i in 1 2 3 4; do curl -i $(ADDRESS); done"
	@echo
	@echo "Stop with Ctrl-C. The configuration is examples/Caddyfile."
	@echo
	@exec bin/caddy run --config examples/Caddyfile

# The first build takes minutes and prints nothing meanwhile.
.PHONY: say-build
say-build:
	@test -e bin/caddy || echo "building bin/: Go downloads the modules that its cache lacks; nothing else is installed"

# This runs before the build, because setup.sh prints what it is about to install.
.PHONY: setup-envoy
setup-envoy:
	@tools/setup.sh envoy

.PHONY: run-envoy
run-envoy: setup-envoy $(if $(filter module,$(FRONT)),bin/libpenstock.so,bin/penstock bin/penstock.wasm) ## start Redis, the bridge and Envoy with examples/envoy.yaml and print what to try; FRONT=module for the native module
	@exec tools/run-envoy.sh $(FRONT)

.PHONY: setup-postgresql
setup-postgresql:
	@tools/setup.sh postgresql

.PHONY: run-control
run-control: setup-postgresql say-build bin/caddy bin/penstock ## start PostgreSQL, Redis, the control plane and Caddy, and print what to try
	@exec tools/run-control.sh

.PHONY: build
build: bin/caddy bin/penstock bin/penstock.wasm bin/libpenstock.so ## build bin/caddy, the command bin/penstock, and bin/penstock.wasm and bin/libpenstock.so for Envoy

.PHONY: bin/caddy
bin/caddy:
	@$(GO) build -trimpath -ldflags '-s -w' -o bin/caddy ./cmd/caddy

.PHONY: bin/penstock
bin/penstock:
	@$(GO) build -trimpath -ldflags '-s -w' -o bin/penstock ./cmd/penstock

.PHONY: bin/penstock.wasm
bin/penstock.wasm:
	@GOOS=wasip1 GOARCH=wasm $(GO) build -tags penstock_filter -trimpath -buildmode=c-shared -ldflags '-s -w' -o bin/penstock.wasm ./envoy-wasm

# The module is the only program that needs a C compiler, so the others are built without one.
.PHONY: bin/libpenstock.so
bin/libpenstock.so:
	@cc=$$($(GO) env CC); if command -v "$${cc%% *}" >/dev/null; then \
	  CGO_ENABLED=1 $(GO) build -trimpath -buildmode=c-shared -ldflags '-s -w' -o bin/libpenstock.so ./envoy-module; \
	else \
	  rm -f bin/libpenstock.so; \
	  echo "bin/libpenstock.so is not built: it needs a C compiler; make setup installs gcc, or install it with: apt-get install gcc libc6-dev"; \
	fi

.PHONY: setup
setup: ## install missing programs that the tests need: redis-server, gcc, PostgreSQL, nginx, Node, Prometheus, and in .cache Envoy, an S3 server and pyarrow
	@tools/setup.sh envoy gcc nginx node postgresql prometheus pyarrow rclone

# ready does setup and build. The downloads of setup mostly wait, so bin/caddy is built meanwhile.
# Without a C compiler, go would compile packages that use cgo differently, so the build then begins
# after setup has installed one.
.PHONY: ready
ready:
	@if cc=$$($(GO) env CC) && command -v "$${cc%% *}" >/dev/null; then \
	  $(MAKE) --no-print-directory -j2 setup bin/caddy; \
	else \
	  $(MAKE) --no-print-directory setup; \
	fi
	@$(MAKE) --no-print-directory build

.PHONY: check
check: ready ## run before each commit, takes minutes: lint, all packages with short random walks, a few tests of e2e
	@READY=1 tools/stages.sh check-e2e lint check-unit race

.PHONY: test
test: ready ## everything that CI runs: lint, unit, race, e2e and xcaddy, in parallel where possible
	@rm -f $(FAILED_ONCE)
	@READY=1 AGAIN=$(FAILED_ONCE) tools/stages.sh low:lint low:xcaddy e2e-quiet then e2e-busy race unit-rest then again

.PHONY: exam
exam: ready ## before a release: the same with random walks of full length (10 million events, a million counters)
	@READY=1 PENSTOCK_EXAM=1 tools/stages.sh low:lint low:xcaddy e2e-quiet then e2e-busy unit race-whole then race-module

.PHONY: unit
unit: $(if $(READY),,setup) ## all packages except e2e: unit tests, vectors, and the store tests on a real Redis
	$(TEST) $(WIDE) $$($(UNIT))

.PHONY: unit-rest
unit-rest: $(if $(READY),,setup) ## the tests of unit that race does not run, or with fewer steps
	$(TEST) $(WIDE) $$($(REST))
	$(TEST) $(WIDE) -run '^($(DIFFERING))$$' $(RACE_DIFFERS)

.PHONY: race
race: $(if $(READY),,setup) ## packages that share memory between goroutines, under the race detector, with short random walks
	$(TEST) -race -short $(RACE_WIDE) -skip '^($(EXAMS))$$' $(RACE)
	$(TEST) -race -short $(RACE_WIDE) -run '^($(RACE_IN_CORE))$$' $$($(SHARES_IN_CORE) | xargs -n1 dirname | sort -u | sed 's,^,./,')

# Stories of the native module that share memory between workers and goroutines in every way.
RACE_STORIES := TestModule|TestModuleLeases|TestModuleNeverOver|TestModuleUpdates|TestModuleClientsLeave|TestModuleWorkers|TestModuleServesOperatorsOnce

# The race detector of a shared library needs its data at a low address, where setarch -L puts it.
.PHONY: race-module
race-module: ready ## stories of the native module in a real Envoy, the library itself under the race detector
	GOFLAGS= $(GO) vet -cgocall ./envoy-module/abi
	@mkdir -p .cache/race && ln -sf $(CURDIR)/bin/caddy $(CURDIR)/bin/penstock .cache/race/
	@printf '#!/bin/sh\nexec setarch -L %s "$$@"\n' "$${PENSTOCK_ENVOY:-$(CURDIR)/.cache/envoy/bin/envoy}" >.cache/race/envoy && chmod +x .cache/race/envoy
	CGO_ENABLED=1 $(GO) build -race -buildmode=c-shared -ldflags '-s -w' -o .cache/race/libpenstock.so ./envoy-module
	GORACE=halt_on_error=1 PENSTOCK_ENVOY=$(CURDIR)/.cache/race/envoy PENSTOCK_BIN=$(CURDIR)/.cache/race $(TEST) -count=1 -vet=off -timeout 30m -run '^($(RACE_STORIES))$$' ./e2e

.PHONY: again
again: ## run once more, alone, the tests that failed beside others in make test
	PENSTOCK_BIN=$(CURDIR)/bin tools/gotest.sh again

.PHONY: race-whole
race-whole: $(if $(READY),,setup) ## the same with random walks of a tenth of their length
	$(GO) test -race $(WIDE) $(RACE) ./cmd/penstock ./internal/control/... ./internal/envoy/rlsimport ./core/...

.PHONY: check-unit
check-unit: $(if $(READY),,setup) ## unit-rest with random walks of a twentieth of their length
	$(GO) test -short $(WIDE) $$($(REST))
	$(GO) test -short $(WIDE) -run '^($(DIFFERING))$$' $(RACE_DIFFERS)

.PHONY: check-e2e
check-e2e: $(if $(READY),,ready) ## the tests of e2e that check runs
	$(E2E) -short -run '^($(CHECK_STORIES))$$' ./e2e

.PHONY: fuzz
fuzz: ## fuzz every target for FUZZTIME each
	@for package in $(FUZZ_PACKAGES); do \
	  for target in $$(grep -rhoE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' $$package | sed 's/func //' | sort -u); do \
	    echo "== $$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) ./$$package; \
	  done; \
	done

.PHONY: simulate
simulate: ## simulate many nodes with leases and faults, ROUNDS times; a failure prints the SEED to repeat it
	PENSTOCK_SEED=$(SEED) PENSTOCK_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^TestNeverOver$$' ./internal/lease

.PHONY: simulate-regions
simulate-regions: ## simulate a limit in several regions with faults, ROUNDS times, and compare ways to count it
	PENSTOCK_SEED=$(SEED) PENSTOCK_ROUNDS=$(ROUNDS) PENSTOCK_RIVALS=1 $(GO) test -count=1 -timeout 0 -v ./internal/region
	PENSTOCK_SEED=$(SEED) PENSTOCK_ROUNDS=$(ROUNDS) $(GO) test -count=1 -timeout 0 -v -run '^TestNeverOver(Ahead)?$$' ./internal/region/loan

.PHONY: e2e
e2e: $(if $(READY),,ready) ## real Caddy and Envoy processes over a real Redis
	$(E2E) -timeout 30m ./e2e

.PHONY: e2e-quiet
e2e-quiet: $(if $(READY),,ready) ## the tests of e2e that run alone
	$(E2E) -timeout 30m -run '^($(QUIET_STORIES))$$' ./e2e

.PHONY: e2e-busy
e2e-busy: $(if $(READY),,ready) ## all other tests of e2e
	$(E2E) -timeout 30m -skip '^($(QUIET_STORIES))$$' ./e2e

# The older versions of Envoy in which the native module works. make test runs its stories in the newest.
OLD_ENVOYS := envoy-1.38 envoy-1.39

.PHONY: e2e-versions
e2e-versions: ready ## before a release: the stories of the native module with older versions of Envoy, each in a folder of .cache
	@tools/setup.sh $(OLD_ENVOYS)
	@for name in $(OLD_ENVOYS); do \
	  echo "== $$name"; \
	  PENSTOCK_ENVOY=$(CURDIR)/.cache/$$name/bin/envoy $(E2E) -timeout 30m -run '^(TestModule|TestConformanceOfModule)' ./e2e; \
	done

.PHONY: faults
faults: ready ## test every fault on every front, and write the results into docs/explanation/faults.md
	$(E2E) -timeout 120m -run '^TestFaults$$' ./e2e -faults

.PHONY: attack
attack: ready ## test every attack at every size on every front, and print a table of the results; e2e has a short form
	$(E2E) -v -timeout 120m -run '^TestAttacks$$' ./e2e -attack

.PHONY: envoy-memory
envoy-memory: ready ## send requests of a million made-up clients to Envoy, whose memory must not grow
	PENSTOCK_UNKNOWN_CLIENTS=1000000 $(E2E) -v -timeout 60m -run '^(TestEnvoyMemoryIsFlat|TestModuleMemoryIsFlat)$$' ./e2e

# The recordings were made with a newer commit of envoyproxy/ratelimit than bench/rival can pin.
# docs/guides/from-envoy-ratelimit.md names the newer commit. To repeat the recordings, set RATELIMIT
# to a program built from it. If the pinned version answers differently, the test reports an unknown
# difference.
RATELIMIT ?= $(CURDIR)/.cache/bench/ratelimit

.PHONY: record-ratelimit
record-ratelimit: setup ## record the answers of envoyproxy/ratelimit again, for the tests of the importer
	GOWORK=off $(GO) build -C bench/rival -o ../../.cache/bench/ratelimit github.com/envoyproxy/ratelimit/src/service_cmd
	$(GO) test -count=1 -v -timeout 30m -run '^TestImportedDecidesAsTheRealService$$' ./internal/envoy/rlsimport \
	  -record $(RATELIMIT) -sources $$(cd bench/rival && GOWORK=off $(GO) list -m -f '{{.Dir}}' github.com/envoyproxy/ratelimit)

# tools/lint runs the checks of staticcheck and of vet. With less garbage collection, it takes two
# thirds of the time, and twice the memory. It also analyzes what a package imports. So cmd/caddy,
# which does nothing but import all modules of Caddy, is left out. The check cgocall reads files with
# cgo again, by names that with -trimpath can be those of another checkout with the same build cache.
# So race-module runs this check, without -trimpath.
LINTED = $$($(GO) list ./... | grep -v '/cmd/caddy$$')
.PHONY: lint
lint: export GOGC = 1000
lint: export GOMEMLIMIT = 2GiB
lint: ## gofmt, vet, staticcheck
	@test -z "$$(gofmt -l . | tee /dev/stderr)" || { echo "run gofmt -w on these"; exit 1; }
	@cd tools && $(GO) build -o ../.cache/lint ./lint
	.cache/lint $(LINTED)
	GOOS=wasip1 GOARCH=wasm .cache/lint -tags penstock_filter -tests=false -checks inherit,-U1000 ./envoy-wasm/...

.PHONY: lint-bench
lint-bench: ## vet the benchmark; not a part of lint, because it needs its rivals' modules
	bench/run.sh vet

.PHONY: bench
bench: setup ## measure Penstock and its rivals, and write docs/explanation/benchmarks.md; ARGS=-quick, ARGS="-only caddy" for a part
	@tools/setup.sh wrk
	bench/run.sh $(ARGS)

.PHONY: xcaddy
xcaddy: ## build a Caddy with Penstock the way xcaddy does it, from this checkout
	@tools/xcaddy.sh

.PHONY: clean
clean: ## remove what was built
	rm -rf bin .cache
