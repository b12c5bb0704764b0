// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/storetest"
)

// How many clients a flood is made of: in make faults, and in make test.
const (
	floodClients      = 1_000_000
	floodClientsTried = 2_000
	floodConnections  = 8 // at each node; in make test one
	// floodMemoryMost is by how much a process may grow: what it remembers of clients is bounded, and Go's heap is twice that.
	floodMemoryMost = 96 << 10 // KB
)

// floodRule limits each client.
const floodRule = "  - {name: strangers, match: {path: /stranger}, per: [client], limit: 10/31dWORDS}\n"

// floodPolicy has clients named by the proxy before.
func floodPolicy(policy, words string) string {
	return "trusted_hops: 1\n" + policy + strings.Replace(floodRule, "WORDS", words, 1)
}

// flood lets clients that nobody has seen before ask once each, from addresses at random. The policy is edited in the middle.
func (g *nodeGroup) flood() {
	g.t.Helper()
	clients, connections := int64(floodClientsTried), 1
	if *allFaults {
		clients, connections = floodClients, floodConnections
	}
	before, begun := g.resident(), time.Now()
	seed := storetest.Seed(g.t)
	var next, undecided atomic.Int64
	var asking sync.WaitGroup
	asking.Go(func() { g.editAt(clients/2, &next) })
	for i := range connections * len(g.nodes) {
		asking.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for next.Add(1) <= clients {
				if err := flood(g.nodes[i%len(g.nodes)], random, &next, clients, &undecided); err != nil {
					g.t.Error(err)
					next.Store(clients)
				}
			}
		})
	}
	asking.Wait()
	took, after := time.Since(begun), g.resident()
	most := 0
	for i := range after {
		most = max(most, after[i]-before[i])
	}
	if most > floodMemoryMost {
		g.t.Errorf("%d clients: a process has grown by %d KB, from %v to %v", clients, most, before, after)
	}
	g.said = fmt.Sprintf("%d requests a second beside the load, %.1f %% of them uncounted; no process more than %d MB larger",
		int(float64(clients)/took.Seconds()), 100*float64(undecided.Load())/float64(clients), (most+1023)>>10)
}

// editAt edits the policy when so many have asked.
func (g *nodeGroup) editAt(clients int64, asked *atomic.Int64) {
	pace := time.NewTicker(faultPause)
	defer pace.Stop()
	for asked.Load() < clients {
		<-pace.C
	}
	g.edit("", lateRule)
}

// resident returns how many KB each process of the nodes has in memory.
func (g *nodeGroup) resident() (kb []int) {
	for _, s := range g.running {
		kb = append(kb, s.residentKB())
	}
	return kb
}

// flood asks over one connection until the last client has asked. It is written by hand: the client of net/http would take most of
// the time.
func flood(node string, random *rand.Rand, next *atomic.Int64, clients int64, undecided *atomic.Int64) error {
	connection, err := net.Dial("tcp", node)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for {
		if _, err := fmt.Fprintf(connection, "GET /stranger HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: %v\r\n\r\n", stranger(random)); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("a client that nobody has seen before gets status %d", response.StatusCode)
		}
		if response.Header.Get("RateLimit") == "" {
			undecided.Add(1)
		}
		if next.Add(1) > clients {
			return nil
		}
	}
}

// stranger returns an address, half of the time of IPv6.
func stranger(random *rand.Rand) netip.Addr {
	var bytes [16]byte
	for i := range bytes {
		bytes[i] = byte(random.Uint32())
	}
	if bytes[0]&1 == 0 {
		return netip.AddrFrom4([4]byte(bytes[:4]))
	}
	return netip.AddrFrom16(bytes)
}

// manyRules adds 10,000 rules to a policy.
func manyRules(policy, words string) string {
	const rules = 10_000
	var text strings.Builder
	text.WriteString(policy)
	for i := range rules {
		fmt.Fprintf(&text, "  - {name: rule-%d, match: {path: /rule/%d/*}, limit: 100/1m%s}\n", i, i, words)
	}
	return text.String()
}
