// SPDX-License-Identifier: Apache-2.0

// Command caddy is the Caddy that the benchmark measures: Penstock, a rival, and a handler that
// only sets headers, in one binary, so that all have the same overhead.
package main

import (
	"context"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/standard"
	_ "github.com/mholt/caddy-ratelimit"
	"github.com/redis/go-redis/v9"

	_ "github.com/penstock/penstock/caddy"
)

func init() {
	caddy.RegisterModule(headers{})
	httpcaddyfile.RegisterHandlerDirective("bench_headers", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		return headers{}, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("bench_headers", httpcaddyfile.Before, "basic_auth")
	caddy.RegisterModule(new(roundTrip))
	httpcaddyfile.RegisterHandlerDirective("bench_round_trip", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		h.Next()
		trip := new(roundTrip)
		if !h.Args(&trip.Address) {
			return nil, h.ArgErr()
		}
		return trip, nil
	})
	httpcaddyfile.RegisterDirectiveOrder("bench_round_trip", httpcaddyfile.Before, "basic_auth")
}

func main() { caddycmd.Main() }

// headers is the baseline: it decides nothing, and sets the headers that Penstock sets. As with
// Penstock, the values change from request to request.
type headers struct{ count int64 }

func (headers) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bench_headers", New: func() caddy.Module { return new(headers) }}
}

func (h headers) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	remaining := strconv.Itoa(1_000_000 + len(r.URL.Path))
	field := w.Header()
	field["X-Ratelimit-Limit"] = []string{"1000000000"}
	field["X-Ratelimit-Remaining"] = []string{remaining}
	field["X-Ratelimit-Reset"] = []string{"1795000000"}
	field["Ratelimit-Policy"] = []string{`"one";q=1000000000;w=60,"two";q=1000000000;w=3600,"three";q=1000000000;w=86400`}
	field["Ratelimit"] = []string{`"one";r=` + remaining + `;t=60`}
	return next.ServeHTTP(w, r)
}

// roundTrip sends one EVALSHA with go-redis and sets the headers. The script has two commands. This
// is the least that a limiter over Redis can do inside Caddy.
type roundTrip struct {
	Address string `json:"address"`
	headers
	client *redis.Client
	sha    string
}

func (*roundTrip) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.bench_round_trip", New: func() caddy.Module { return new(roundTrip) }}
}

// Provision connects and loads the script.
func (t *roundTrip) Provision(ctx caddy.Context) (err error) {
	t.client = redis.NewClient(&redis.Options{Addr: t.Address})
	t.sha, err = t.client.ScriptLoad(ctx,
		"local n = redis.call('INCR', KEYS[1]) redis.call('PEXPIRE', KEYS[1], ARGV[1]) return n").Result()
	return err
}

func (t *roundTrip) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	if err := t.client.EvalSha(context.Background(), t.sha, []string{"hand"}, 60_000).Err(); err != nil {
		return err
	}
	return t.headers.ServeHTTP(w, r, next)
}

var (
	_ caddyhttp.MiddlewareHandler = headers{}
	_ caddyhttp.MiddlewareHandler = (*roundTrip)(nil)
)
