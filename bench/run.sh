#!/usr/bin/env bash
# Builds the benchmark in a workspace of its own (never committed: users must not build with it) and runs it.
# Arguments go to the benchmark: -rounds 10 -only caddy. With -only envoy it is all that has to do with Envoy; "make bench" is
# everything, and make bench ARGS="-only envoy" the same as here.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/bench
printf 'go 1.26.0\nuse %s\nuse %s\n' "$PWD" "$PWD/bench" > .cache/bench/go.work
export GOWORK="$PWD/.cache/bench/go.work"
go build -trimpath -ldflags '-s -w' -o .cache/bench/caddy ./bench/caddy
go build -o .cache/bench/bench ./bench
go build -trimpath -ldflags '-s -w' -o .cache/bench/penstock ./cmd/penstock
GOOS=wasip1 GOARCH=wasm go build -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/penstock.wasm ./envoy-wasm
GOOS=wasip1 GOARCH=wasm go build -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/vm.wasm ./bench/vm
# The rival is built with the versions it was made with, which are not ours.
GOWORK=off go build -C bench/rival -trimpath -ldflags '-s -w' -o ../../.cache/bench/ratelimit github.com/envoyproxy/ratelimit/src/service_cmd
echo "# $(git rev-parse --short HEAD 2>/dev/null || echo uncommitted), $(nproc) cores, $(go version | cut -d' ' -f3), $(redis-server --version | cut -d' ' -f3)"
if [ $# -eq 0 ]; then
	echo
	echo "## In the process"
	echo
	GOWORK=off go test -run '^$' -bench . -benchtime 1s ./core ./internal/identity ./internal/memstore | grep -E '^Benchmark'
	echo
	echo "## On the Redis server"
	echo
	GOWORK=off go test -run '^$' -bench . -benchtime 1s ./internal/redisstore | grep -E '^Benchmark'
fi
exec .cache/bench/bench "$@"
