// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

const cachedPolicy = "name: shop\non_error: deny\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: all, limit: 1/31d}]\n"

const cachedCaddyfile = `{
	admin ADMIN
	penstock
}
:SITE {
	penstock {
		identify header X-User unverified
		rule all {
			limit 1/31d
		}
	}
	respond "page"
}
`

// cacheConfiguration makes nginx cache the answers of the server at FRONT, even those without a
// time to live.
const cacheConfiguration = `
daemon off; master_process off; pid FOLDER/pid; error_log stderr crit;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path FOLDER/body; proxy_temp_path FOLDER/proxy; fastcgi_temp_path FOLDER/fastcgi;
  uwsgi_temp_path FOLDER/uwsgi; scgi_temp_path FOLDER/scgi;
  proxy_cache_path FOLDER/cache keys_zone=pages:1m;
  server {
    listen ADDRESS;
    location / {
      proxy_pass http://FRONT; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_cache pages; proxy_cache_valid any 10m; add_header X-Cache $upstream_cache_status always;
    }
  }
}
`

// TestNoDenialIsCached tests that a cache in front does not serve the denial of one client to
// others. The client sends a GET with the content type of gRPC, so that its denial has the status
// 200.
func TestNoDenialIsCached(t *testing.T) {
	t.Parallel()
	page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "page") })
	filtered := new(site)
	useEnvoy(t, page, filtered)
	filtered.startBridge(t, cachedPolicy)
	_, modules := startModule(t, module(t), page, cachedPolicy)
	for name, address := range map[string]string{"Caddy": startCaddy(t, cachedCaddyfile).address, "filter": filtered.address,
		"module": modules[0].address} {
		cache := "http://" + startNginx(t, strings.Replace(cacheConfiguration, "FRONT", address, 1))
		get := func(path string, header ...string) answer {
			a, err := ask(http.DefaultClient, cache+path, header...)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		get("/own", "X-User", "mallory")
		if a := get("/page", "X-User", "mallory", "Content-Type", "application/grpc"); a.status != 200 || a.header.Get("Grpc-Status") != "8" {
			t.Errorf("%s: the client is not denied as gRPC: %d, %v", name, a.status, a.header)
		}
		if a := get("/page", "X-User", "ann"); a.body != "page" {
			t.Errorf("%s: another client gets %d, %v, %q", name, a.status, a.header, a.body)
		}
	}
}
