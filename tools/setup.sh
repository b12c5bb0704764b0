#!/usr/bin/env bash
# Installs the servers and programs that the tests start, when they are not there: redis-server, and those named as
# arguments. Debian's packages; asks for sudo when it is not root.
set -euo pipefail

missing=()
for program in redis-server "$@"; do
	command -v "$program" >/dev/null || missing+=("$program")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
echo "installing: ${missing[*]}"
# The tests start their own servers: the package must not start one at its well-known port.
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
for program in "${missing[@]}"; do
	command -v "$program" >/dev/null || { echo "could not install $program: install it by hand and try again" >&2; exit 1; }
done
