#!/usr/bin/env bash
# Builds a Caddy with Penstock the way xcaddy does it, from this checkout, into .cache/xcaddy-caddy.
#
# Looking for github.com/penstock/penstock/caddy as a module of its own is part of how go resolves the import, and what
# the network answers to that is not ours to test: the build takes its modules from the local cache, filled first.
set -euo pipefail
cd "$(dirname "$0")/.."
caddy=$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)
mkdir -p .cache
(cd tools && go build -o ../.cache/xcaddy github.com/caddyserver/xcaddy/cmd/xcaddy)

modules=$(mktemp -d)
trap 'rm -rf "$modules"' EXIT
go build -o /dev/null ./cmd/caddy
(cd "$modules" && go mod init modules && go get "github.com/caddyserver/caddy/v2@$caddy") 2>/dev/null

GOPROXY="file://$(go env GOMODCACHE)/cache/download" .cache/xcaddy build "$caddy" --output .cache/xcaddy-caddy \
	--with github.com/penstock/penstock/caddy --replace github.com/penstock/penstock="$PWD" >.cache/xcaddy.log 2>&1 ||
	{ cat .cache/xcaddy.log; exit 1; }
.cache/xcaddy-caddy list-modules | grep penstock
