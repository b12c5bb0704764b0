// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/caddyauth"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/intercept"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/logging"
	_ "github.com/caddyserver/caddy/v2/modules/caddytls/standardstek"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	_ "github.com/caddyserver/caddy/v2/modules/metrics"

	_ "github.com/penstock/penstock/caddy"
	"github.com/penstock/penstock/internal/test/freeport"
)

// server is a Caddy in this process. Only one can run at a time, so tests that use it are not
// parallel.
type server struct {
	t     testing.TB
	port  int
	admin int
}

// start runs a Caddy on a Caddyfile. In the Caddyfile, PORT stands for a free port, and ADMIN for
// the port of the admin endpoint, which is off by default.
func start(t testing.TB, caddyfile string) *server {
	t.Helper()
	s := &server{t: t, port: freePort(t), admin: freePort(t)}
	t.Cleanup(func() {
		if err := caddy.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.load(caddyfile); err != nil {
		t.Fatal(err)
	}
	return s
}

// server.load changes the configuration, as a reload does.
func (s *server) load(caddyfile string) error {
	caddyfile = strings.ReplaceAll(caddyfile, "PORT", strconv.Itoa(s.port))
	adapted, warnings, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		return err
	}
	for _, w := range warnings {
		if !strings.Contains(w.Message, "not formatted") {
			s.t.Errorf("the adapter warns: %s", w)
		}
	}
	return s.loadJSON(adapted)
}

func (s *server) loadJSON(text []byte) error {
	var config map[string]any
	if err := json.Unmarshal(text, &config); err != nil {
		return err
	}
	config["admin"] = map[string]any{"listen": "127.0.0.1:" + strconv.Itoa(s.admin), "config": map[string]any{"persist": false}}
	logging, _ := config["logging"].(map[string]any)
	if logging == nil {
		config["logging"] = map[string]any{"logs": map[string]any{"default": map[string]any{"level": "ERROR"}}}
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return caddy.Load(text, true)
}

func freePort(t testing.TB) int {
	t.Helper()
	address, err := netip.ParseAddrPort(freeport.Address(t))
	if err != nil {
		t.Fatal(err)
	}
	return int(address.Port())
}

// reply is a response whose body has been read completely.
type reply struct {
	*http.Response
	body string
}

var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// server.do sends a request. The fields are alternating header names and values.
func (s *server) do(method, path string, fields ...string) reply {
	s.t.Helper()
	r, err := http.NewRequest(method, "http://127.0.0.1:"+strconv.Itoa(s.port)+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(fields); i += 2 {
		if fields[i] == "Host" {
			r.Host = fields[i+1]
		}
		r.Header.Set(fields[i], fields[i+1])
	}
	return s.send(r)
}

func (s *server) send(r *http.Request) reply {
	s.t.Helper()
	response, err := client.Do(r)
	if (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) && r.Body == nil {
		// After a reload, Caddy is still shutting the old server down, which may close a new
		// connection unread.
		response, err = client.Do(r)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return reply{Response: response, body: string(body)}
}

func (s *server) get(path string, fields ...string) reply {
	return s.do(http.MethodGet, path, fields...)
}

// server.statuses sends n requests and returns their statuses in one line.
func (s *server) statuses(n int, path string, fields ...string) string {
	s.t.Helper()
	var all []string
	for range n {
		all = append(all, strconv.Itoa(s.get(path, fields...).StatusCode))
	}
	return strings.Join(all, " ")
}

// server.metrics scrapes the admin endpoint.
func (s *server) metrics() string {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(s.admin)+"/metrics", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.send(r).body
}

// wantField compares a header field.
func (r reply) wantField(t testing.TB, name, value string) {
	t.Helper()
	if got := strings.Join(r.Header.Values(name), " | "); got != value {
		t.Errorf("%s: got %q, want %q", name, got, value)
	}
}

func equal(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

func upstream(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}
