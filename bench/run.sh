#!/usr/bin/env bash
# Builds the benchmark in its own workspace and runs it. The workspace is never committed: users must
# not build with it. Arguments are passed to the benchmark: -quick, -rounds 10, -round 2s,
# -only envoy-direct, -write "" to print only. Rivals written in Go are built; nginx,
# limitador-server and wasm_shim.wasm are used if they are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p .cache/bench
printf 'go 1.26.0\nuse %s\nuse %s\n' "$PWD" "$PWD/bench" > .cache/bench/go.work
export GOWORK="$PWD/.cache/bench/go.work"
if [ "${1:-}" = vet ]; then
	GOOS=wasip1 GOARCH=wasm go vet ./bench/vm # no other system compiles its files
	exec go vet ./bench/...
fi
go build -trimpath -ldflags '-s -w' -o .cache/bench/caddy ./bench/caddy
go build -o .cache/bench/bench ./bench
go build -trimpath -ldflags '-s -w' -o .cache/bench/penstock ./cmd/penstock
case " $* " in
*" -only control "*) exec .cache/bench/bench "$@" ;; # needs no rival
esac
GOOS=wasip1 GOARCH=wasm go build -tags penstock_filter -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/penstock.wasm ./envoy-wasm
GOOS=wasip1 GOARCH=wasm go build -tags penstock_filter -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/vm.wasm ./bench/vm
CGO_ENABLED=1 go build -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/modules/libpenstock.so ./envoy-module
CGO_ENABLED=1 go build -trimpath -buildmode=c-shared -ldflags '-s -w' -o .cache/bench/modules/libbaseline.so ./bench/module
# Rivals are built with the dependencies of their own go.mod, not with Penstock's.
GOWORK=off go build -C bench/rival -trimpath -ldflags '-s -w' -o ../../.cache/bench/ratelimit github.com/envoyproxy/ratelimit/src/service_cmd
GOWORK=off go build -C bench/gubernator -trimpath -ldflags '-s -w' -o ../../.cache/bench/gubernator .
for package in core internal/store/memstore internal/store/leasestore; do
	GOWORK=off go test -c -o ".cache/bench/${package##*/}.test" "./$package"
done
exec .cache/bench/bench "$@"
