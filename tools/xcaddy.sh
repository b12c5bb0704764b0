#!/usr/bin/env bash
# Builds a Caddy with Penstock from this checkout with xcaddy, into .cache/xcaddy-caddy.
#
# To resolve the import, go also looks for a module github.com/penstock/penstock/caddy. This test
# must not depend on the network's answer: some module proxies answer with an error instead of "not
# found", which fails the build. After any error (|), go uses the next proxy in the list. Here that
# is an empty folder, which means "not found".
#
# By default, xcaddy disables cgo, and sets build tags that leave out the databases of Caddy's
# certificate authority. This script uses cgo if bin/caddy is built with it, and sets no tags, because
# most packages are then in the build cache. Penstock's packages are the same without cgo (see
# TestOnlyTheModuleUsesCgo), and know none of these tags.
set -euo pipefail
cd "$(dirname "$0")/.."
caddy=$(go list -m -f '{{.Version}}' github.com/caddyserver/caddy/v2)
mkdir -p .cache
(cd tools && go build -o ../.cache/xcaddy github.com/caddyserver/xcaddy/cmd/xcaddy)

nothing=$(mktemp -d)
trap 'rm -rf "$nothing"' EXIT
proxies=$(go env GOPROXY)
export XCADDY_GO_BUILD_FLAGS="-trimpath -ldflags '-w -s'"
CGO_ENABLED=$(go env CGO_ENABLED) GOPROXY="${proxies%%[,|]*}|file://$nothing" .cache/xcaddy build "$caddy" --output .cache/xcaddy-caddy \
	--with github.com/penstock/penstock/caddy --replace github.com/penstock/penstock="$PWD" >.cache/xcaddy.log 2>&1 ||
	{ cat .cache/xcaddy.log; exit 1; }
.cache/xcaddy-caddy list-modules | grep penstock
