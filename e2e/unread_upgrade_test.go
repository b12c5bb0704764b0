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

// upgradedCaddyfile is a Caddy that limits requests before a proxy. Clients are in 127.0.0.0/8.
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

// TestUpgradesCostUnread: a client that upgrades the connection where the cost is in the body of
// the response chooses that the cost is not read, so it is charged the maximum cost, in every
// front.
func TestUpgradesCostUnread(t *testing.T) {
	t.Parallel()
	upstream := http.HandlerFunc(echoing)
	m := &metered{redis: redistest.Start(t)}
	text := strings.Replace(unreadPolicy, "rules:", "trusted_hops: 1\nrules:", 1)
	filter := &site{manager: upgrading + ", xff_num_trusted_hops: 1"}
	startEnvoy(t, wasm(t), upstream, filter)
	filter.startBridge(t, unreadPolicy, "--redis", m.redis.URL(), "--redis-timeout", "5s")
	policy := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	policy.edit(text)
	p := startCaddy(t, upgradedCaddyfile, "PENSTOCK_REDIS="+m.redis.URL(), "POLICY="+policy.path, "UPSTREAM="+startUpstream(t, upstream))
	plain := &site{filter: moduleFilter(unreadPolicy + inRedis(m.redis)), manager: upgrading + ", xff_num_trusted_hops: 1"}
	startModuleSite(t, upstream, plain)
	for i, address := range []string{filter.address, p.address, plain.address} {
		client, charged := clientAddress(i+1), int64(0)
		if got := upgraded(t, address, client); got != http.StatusSwitchingProtocols {
			t.Errorf("front %d: answered %d, want an upgrade", i, got)
		}
		eventually.Until(t, patience, "the response is charged", func() bool {
			charged = m.charged(t, "tokens", client)
			return charged != 100
		})
		if charged != 50000 {
			t.Errorf("front %d: an upgrade costs %d, want the maximum", i, charged)
		}
	}
}

// upgraded requests an upgrade as a client, and returns the status of the response.
func upgraded(t *testing.T, address, client string) int {
	t.Helper()
	connection, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	_ = connection.SetDeadline(time.Now().Add(patience))
	_, err = io.WriteString(connection, "GET /echo HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: "+client+
		"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(connection), nil)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

// startModuleSite runs Envoy with the native module at one site.
func startModuleSite(t testing.TB, upstream http.Handler, s *site) {
	t.Helper()
	startEnvoyIn(t, []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + filepath.Dir(module(t))}, "", upstream, s)
}
