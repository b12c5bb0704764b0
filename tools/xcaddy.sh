#!/usr/bin/env bash
# Builds a Caddy with Penstock the way xcaddy does it, from this checkout, into .cache/xcaddy-caddy.
#
# To resolve the import, go also looks for a module github.com/penstock/penstock/caddy. The network's
# answer to that is outside this test: some proxies report an error where they should say that there
# is no such module, which fails the build. After any error (|) go asks the next proxy in the list,
# and an empty folder says that there is none.
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
