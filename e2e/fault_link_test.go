// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/test/freeport"
)

// link simulates the network between one node and Redis. A link can be cut, or be made slow or
// narrow.
type link struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// newLink returns a link that forwards to an address until the test ends.
func newLink(t testing.TB, upstream string) *link {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxics have a logger of their own
	quiet := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{t: t, proxy: toxiproxy.NewProxy(quiet, "redis", freeport.Address(t), upstream)}
	l.reconnect()
	t.Cleanup(l.proxy.Stop)
	return l
}

func (l *link) url() string { return "redis://" + l.proxy.Listen }

// link.cut closes all connections and accepts no new ones.
func (l *link) cut() { l.proxy.Stop() }

// link.reconnect undoes cut.
func (l *link) reconnect() {
	l.t.Helper()
	if err := l.proxy.Start(); err != nil {
		l.t.Fatal(err)
	}
}

// The directions of a link.
const (
	toRedis   = "upstream"
	fromRedis = "downstream"
)

// addToxic adds a toxic of toxiproxy, such as latency, bandwidth or reset_peer, in both directions
// of the link.
func (l *link) addToxic(kind string, attributes map[string]int) {
	l.t.Helper()
	l.addToxicOneWay(kind, attributes, toRedis, fromRedis)
}

// link.hold delays all data in one direction, including the end of a connection, until the link
// heals. Then everything arrives at once, as TCP would retransmit lost data.
func (l *link) hold(direction string) {
	l.t.Helper()
	l.addToxicOneWay("latency", map[string]int{"latency": 3_600_000}, direction)
}

func (l *link) addToxicOneWay(kind string, attributes map[string]int, directions ...string) {
	l.t.Helper()
	for _, stream := range directions {
		text, err := json.Marshal(map[string]any{"type": kind, "stream": stream, "attributes": attributes})
		if err == nil {
			_, err = l.proxy.Toxics.AddToxicJson(strings.NewReader(string(text)))
		}
		if err != nil {
			l.t.Fatal(err)
		}
	}
}

// link.heal removes all toxics.
func (l *link) heal() { l.proxy.Toxics.ResetToxics(context.Background()) }
