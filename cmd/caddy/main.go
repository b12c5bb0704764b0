// SPDX-License-Identifier: Apache-2.0

// Command caddy is Caddy with its standard modules and Penstock. `make build` writes it to
// bin/caddy. To add other modules, build with xcaddy instead.
package main

import (
	caddycmd "github.com/caddyserver/caddy/v2/cmd"

	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/penstock/penstock/caddy"
)

func main() { caddycmd.Main() }
