// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"

	_ "github.com/penstock/penstock/caddy"
)

// One line in a Caddyfile limits each client. Here a header identifies the client, because this
// Caddy listens on a Unix socket, where clients have no address.
func Example() {
	folder, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder) //nolint:errcheck // it is in the temporary folder
	socket := filepath.Join(folder, "http.sock")
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`
		{
			admin off
		}
		http:// {
			bind unix/`+socket+`
			penstock 2/1m {
				identify header X-User unverified
			}
			respond "ok"
		}`), nil)
	if err == nil {
		err = caddy.Load(config, true)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer caddy.Stop() //nolint:errcheck // the example is over
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	for range 3 {
		request, _ := http.NewRequest(http.MethodGet, "http://shop.example/", nil)
		request.Header.Set("X-User", "ann")
		response, err := client.Do(request)
		if err != nil {
			fmt.Println(err)
			return
		}
		_ = response.Body.Close()
		fmt.Println(response.StatusCode, response.Header.Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 1
	// 200 0
	// 429 0
}
