// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// upgradedCaddyfile configures a Caddy that limits requests and passes them to an upstream.
const upgradedCaddyfile = `{
	admin ADMIN
	auto_https off
	penstock {
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
	}
}
:SITE {
	penstock {
		policy {env.POLICY}
	}
	reverse_proxy {env.UPSTREAM}
}
`

// The responses to requests with these heads are followed by another protocol.
const (
	upgradeHead = "GET /echo HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
	tunnelHead = "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n"
)

// TestUpgradesCostUnread tests that a client that upgrades the connection is charged the maximum
// cost, because a cost in the body of the response cannot be read. This holds for Caddy, for
// Envoy's filter and for the native module. The same holds for a tunnel through Envoy.
func TestUpgradesCostUnread(t *testing.T) {
	t.Parallel()
	upstream := http.HandlerFunc(serveEcho)
	m := &meteredSite{redis: redistest.Start(t)}
	text := strings.Replace(unreadPolicy, "rules:", "trusted_hops: 1\nrules:", 1)
	filter := &site{manager: upgrading + ", xff_num_trusted_hops: 1", routes: tunnelling}
	useEnvoy(t, upstream, filter)
	filter.startBridge(t, unreadPolicy, "--redis", m.redis.URL(), "--redis-timeout", "5s")
	policy := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	policy.edit(text)
	p := startCaddy(t, upgradedCaddyfile, "PENSTOCK_REDIS="+m.redis.URL(), "POLICY="+policy.path, "UPSTREAM="+startUpstream(t, upstream))
	plain := &site{filter: moduleFilter(unreadPolicy + inRedis(m.redis)), manager: upgrading + ", xff_num_trusted_hops: 1", routes: tunnelling}
	startModuleSite(t, upstream, plain)
	for i, c := range []struct {
		address, head string
		want          int
	}{{filter.address, upgradeHead, 101}, {p.address, upgradeHead, 101}, {plain.address, upgradeHead, 101},
		{filter.address, tunnelHead, 200}, {plain.address, tunnelHead, 200}} {
		client, charged := clientAddress(i+1), int64(0)
		if got := sendUpgrade(t, c.address, c.head, client); got != c.want {
			t.Errorf("request %d: answered %d, want %d", i, got, c.want)
		}
		eventually.Until(t, patience, "the response is charged", func() bool {
			charged = m.countCharged(t, "tokens", client)
			return charged != 100
		})
		if charged != 50000 {
			t.Errorf("request %d: %.7s costs %d, want the maximum", i, c.head, charged)
		}
	}
}

// sendUpgrade sends a request with the given head as a client, and returns the status of the
// response.
func sendUpgrade(t *testing.T, address, head, client string) int {
	t.Helper()
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	if _, err = io.WriteString(connection, head+"X-Forwarded-For: "+client+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// startModuleSite runs an Envoy with one site, which has the native module.
func startModuleSite(t testing.TB, upstream http.Handler, s *site) {
	t.Helper()
	startEnvoyIn(t, []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + filepath.Dir(module(t))}, "", upstream, s)
}
