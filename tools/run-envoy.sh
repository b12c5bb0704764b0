#!/usr/bin/env bash
# Runs Redis (unless one answers already), the bridge and Envoy with examples/envoy.yaml until Ctrl-C.
# They may start in any order; with this order, the first request is already counted. The script
# stops every process that it started as soon as one of them ends. With the argument "module", it
# runs Envoy with the native module and examples/envoy-module.yaml, without a bridge.
set -euo pipefail
cd "$(dirname "$0")/.."

front=${1:-filter}
case $front in
filter) example=examples/envoy.yaml ;;
module)
	example=examples/envoy-module.yaml
	export ENVOY_DYNAMIC_MODULES_SEARCH_PATH=bin
	[ -e bin/libpenstock.so ] || { echo "bin/libpenstock.so is missing: install gcc, then make build" >&2; exit 1; }
	;;
*)
	echo "FRONT=$front is unknown: write filter or module" >&2
	exit 1
	;;
esac

redis_port=6379
envoy_port=8090
admin_port=9901
bridge=unix:bin/penstock.sock
envoy=http://localhost:$envoy_port

# Without job control, background processes do not receive Ctrl-C, so the script stops them.
started=()
end() {
	trap - EXIT INT TERM
	[ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
	wait
}
trap end EXIT
trap 'exit 0' INT TERM

# taken reports whether a process listens at a port.
taken() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
redis_answers() { [ "$(redis-cli -h 127.0.0.1 -p $redis_port ping 2>/dev/null)" = PONG ]; }

for port in $envoy_port $admin_port; do
	if taken $port; then
		echo "port $port is in use: stop the process that listens there, or write another port in $example and tools/run-envoy.sh" >&2
		exit 1
	fi
done
if ! redis_answers; then
	if taken $redis_port; then
		echo "port $redis_port is in use by a process that is not an open Redis: stop it, or write another port in tools/run-envoy.sh" >&2
		exit 1
	fi
	redis-server --bind 127.0.0.1 --port $redis_port --save '' --appendonly no >/dev/null &
	started+=($!)
	for _ in {1..100}; do
		redis_answers && break
		sleep 0.1
	done
fi
if [ $front = filter ]; then
	bin/penstock bridge --policy examples/envoy.policy.yaml --redis redis://127.0.0.1:$redis_port --listen $bridge &
	started+=($!)
fi
.cache/envoy/bin/envoy -c $example --concurrency 2 --use-dynamic-base-id --disable-hot-restart --log-level warning &
started+=($!)

# ready reports whether Envoy limits requests. Envoy compiles the filter before it listens. A moment
# later, both workers and the main thread have the policy. The module has the policy before Envoy
# listens.
ready() {
	curl -s -o /dev/null $envoy/ || return 1
	[ $front = module ] || curl -s http://localhost:$admin_port/stats | grep -q 'penstock.policy_loaded: [3-9]'
}
until ready; do
	for process in "${started[@]}"; do
		kill -0 "$process" 2>/dev/null || { echo "one of them did not start: see above" >&2; exit 1; }
	done
	sleep 0.2
done

cat <<END

Penstock limits $envoy/api/ to 5 requests a minute per client. In another terminal:

    for i in 1 2 3 4 5 6; do curl -i $envoy/api/; done
    curl -i -H 'X-API-Key: try-business-2f6d0c1ab9' $envoy/api/
    curl -s 'localhost:$admin_port/stats?filter=^$([ $front = module ] && echo dynamicmodulescustom || echo wasmcustom).penstock'

Edit examples/envoy.policy.yaml while it runs: the edit takes effect within two seconds. Stop with Ctrl-C.

END
wait -n "${started[@]}" || true
