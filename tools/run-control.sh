#!/usr/bin/env bash
# Runs Redis, the control plane with a private PostgreSQL, and Caddy with examples/control/Caddyfile
# until Ctrl-C. The rows stay in .cache/control; Redis starts empty, and the control plane fills it.
# The script stops every process that it started as soon as one of them ends.
set -euo pipefail
cd "$(dirname "$0")/.."

caddy_port=8070
admin_port=2020
control_port=7070
control=http://127.0.0.1:$control_port
folder=$PWD/.cache/control
redis=$folder/redis.sock

# Without job control, background processes do not receive Ctrl-C, so the script stops them.
started=()
end() {
	trap - EXIT INT TERM
	[ ${#started[@]} -eq 0 ] || kill "${started[@]}" 2>/dev/null || true
	wait
}
trap end EXIT
trap 'exit 0' INT TERM

taken() { (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
for port in $caddy_port $admin_port $control_port; do
	if taken $port; then
		echo "port $port is in use: stop the process that listens there, or write another port in examples/control/Caddyfile and tools/run-control.sh" >&2
		exit 1
	fi
done

# No TCP port is opened for Redis and PostgreSQL. PostgreSQL runs as another user if this one is root.
mkdir -p "$folder"
chmod 755 "$folder"
redis-server --port 0 --unixsocket "$redis" --save '' --appendonly no --dir "$folder" >/dev/null &
started+=($!)
until [ -S "$redis" ]; do sleep 0.1; done
bin/penstock control dev --dir "$folder/pg" --redis "unix://$redis" --listen 127.0.0.1:$control_port --first-token-file "$folder/token" &
started+=($!)
PENSTOCK_REDIS="unix://$redis" bin/caddy run --config examples/control/Caddyfile 2>"$folder/caddy.log" &
started+=($!)

until curl -sf -o /dev/null $control/readyz && taken $caddy_port; do
	for process in "${started[@]}"; do
		kill -0 "$process" 2>/dev/null || { echo "one of them did not start: see above, and $folder/caddy.log" >&2; exit 1; }
	done
	sleep 0.2
done
token=$(cat "$folder/token")

cat <<END

Caddy at http://localhost:$caddy_port admits 3 requests a minute for each X-User. The control plane is at $control.
In another terminal:

    TOKEN=$token
    # 1. block a client: bob is denied with 403
    curl --json '{"action":"block","reason":"abuse"}' -H "Authorization: Bearer \$TOKEN" $control/v1/clients/header.x-user:bob/edits
    curl -i -H 'X-User: bob' localhost:$caddy_port
    # 2. sell a tier: ann has 100 requests a minute
    curl -X PUT --json '{"reason":"sold"}' -H "Authorization: Bearer \$TOKEN" $control/v1/tiers/gold
    curl --json '{"action":"set-tier","tier":"gold","reason":"paid"}' -H "Authorization: Bearer \$TOKEN" $control/v1/clients/header.x-user:ann/edits
    curl -i -H 'X-User: ann' localhost:$caddy_port
    # 3. see who changed what
    curl -H "Authorization: Bearer \$TOKEN" $control/v1/changes

Stop with Ctrl-C. To begin anew, remove .cache/control.

END
wait -n "${started[@]}" || true
