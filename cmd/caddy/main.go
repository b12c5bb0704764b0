// SPDX-License-Identifier: Apache-2.0

// Command caddy is Caddy with its standard modules and Penstock: what `make build` puts at bin/caddy. To have other
// modules in it as well, build with xcaddy instead.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/penstock/penstock/caddy"
)

func main() { caddycmd.Main() }
