// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"github.com/penstock/penstock/internal/freeport"
)

// line is the network between one node and Redis: it can be cut, slow or narrow.
type line struct {
	t     testing.TB
	proxy *toxiproxy.Proxy
}

// newLine leads to an address until the test ends.
func newLine(t testing.TB, upstream string) *line {
	t.Helper()
	zerolog.SetGlobalLevel(zerolog.Disabled) // toxics have a logger of their own
	quiet := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &line{t: t, proxy: toxiproxy.NewProxy(quiet, "redis", freeport.Address(t), upstream)}
	l.mend()
	t.Cleanup(l.proxy.Stop)
	return l
}

func (l *line) url() string { return "redis://" + l.proxy.Listen }

// cut closes all connections and takes no more.
func (l *line) cut() { l.proxy.Stop() }

// mend ends what was cut.
func (l *line) mend() {
	l.t.Helper()
	if err := l.proxy.Start(); err != nil {
		l.t.Fatal(err)
	}
}

// The directions of a line.
const (
	toRedis   = "upstream"
	fromRedis = "downstream"
)

// suffer gives the line a toxic in both directions: latency, bandwidth, reset_peer …
func (l *line) suffer(kind string, attributes map[string]int) {
	l.t.Helper()
	l.sufferOneWay(kind, attributes, toRedis, fromRedis)
}

// hold lets nothing through in one direction, the end of a connection neither. When the line heals all of it comes at once, since TCP
// sends again what is lost.
func (l *line) hold(direction string) {
	l.t.Helper()
	l.sufferOneWay("latency", map[string]int{"latency": 3_600_000}, direction)
}

func (l *line) sufferOneWay(kind string, attributes map[string]int, directions ...string) {
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

// heal takes all toxics away.
func (l *line) heal() { l.proxy.Toxics.ResetToxics(context.Background()) }
