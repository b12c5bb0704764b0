#!/usr/bin/env bash
# Builds a Caddy with Penstock the way xcaddy does it, from this checkout, into .cache/xcaddy-caddy.
#
# Looking for github.com/penstock/penstock/caddy as a module of its own is part of how go resolves the import, and what the network
# answers to that is not ours to test: some proxies refuse where they should say that there is none, which ends the build. After
# any error (|) go asks the next proxy in the list, and an empty folder says that there is none.
set -euo pipefail
cd "$(dirname "$0")/.."
caddy=$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)
mkdir -p .cache
(cd tools && go build -o ../.cache/xcaddy github.com/caddyserver/xcaddy/cmd/xcaddy)

nothing=$(mktemp -d)
trap 'rm -rf "$nothing"' EXIT
proxies=$(go env GOPROXY)
GOPROXY="${proxies%%[,|]*}|file://$nothing" .cache/xcaddy build "$caddy" --output .cache/xcaddy-caddy \
	--with github.com/penstock/penstock/caddy --replace github.com/penstock/penstock="$PWD" >.cache/xcaddy.log 2>&1 ||
	{ cat .cache/xcaddy.log; exit 1; }
.cache/xcaddy-caddy list-modules | grep penstock
