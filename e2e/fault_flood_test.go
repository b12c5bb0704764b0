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

	"github.com/penstock/penstock/internal/test/seed"
)

// The size of a flood. It has floodClients clients in "make faults", and floodClientsTried in "make
// test".
const (
	floodClients      = 1_000_000
	floodClientsTried = 2_000
	floodConnections  = 8 // connections to each node under "make faults"; under "make test" there is one
	// floodMemoryMax bounds the growth of a process. Its tables of clients are bounded, and Go's
	// heap may become twice as large as they are.
	floodMemoryMax = 96 << 10 // KB
)

// floodRule limits each client.
const floodRule = "  - {name: unknown, match: {path: /unknown}, per: [client], limit: 10/31dWORDS}\n"

// floodPolicy returns a policy that takes the client's address from the field that a trusted proxy
// in front adds.
func floodPolicy(policy, words string) string {
	return "trusted_hops: 1\n" + policy + strings.Replace(floodRule, "WORDS", words, 1)
}

// nodeGroup.flood sends one request for each of many clients with random addresses. In the middle,
// it edits the policy.
func (g *nodeGroup) flood() {
	g.t.Helper()
	clients, connections := int64(floodClientsTried), 1
	if *allFaults {
		clients, connections = floodClients, floodConnections
	}
	before, begun := g.resident(), time.Now()
	seed := seed.First(g.t)
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
	if most > floodMemoryMax {
		g.t.Errorf("%d clients: a process has grown by %d KB, from %v to %v", clients, most, before, after)
	}
	g.said = fmt.Sprintf("%d requests a second beside the load, %.1f %% of them uncounted; no process more than %d MB larger",
		int(float64(clients)/took.Seconds()), 100*float64(undecided.Load())/float64(clients), (most+1023)>>10)
}

// editAt waits until the given number of clients have sent their requests, and then edits the
// policy.
func (g *nodeGroup) editAt(clients int64, asked *atomic.Int64) {
	pace := time.NewTicker(faultPause())
	defer pace.Stop()
	for asked.Load() < clients {
		<-pace.C
	}
	g.edit("", lateRule)
}

// nodeGroup.resident returns the resident memory, in KB, of each process of the nodes.
func (g *nodeGroup) resident() (kb []int) {
	for _, s := range g.running {
		kb = append(kb, s.residentKB())
	}
	return kb
}

// flood sends requests over one connection, each of a random client, until all connections together
// have sent as many requests as the flood has clients. It writes the requests itself, because
// net/http's client would take most of the time.
func flood(node string, random *rand.Rand, next *atomic.Int64, clients int64, undecided *atomic.Int64) error {
	connection, err := net.Dial("tcp", node)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for {
		if _, err := fmt.Fprintf(connection, "GET /unknown HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: %v\r\n\r\n", randomClient(random)); err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		kind := kindOf(answer{status: response.StatusCode, header: response.Header}, nil)
		if kind != counted && kind != uncounted && (kind != overloaded || *allFaults) {
			return fmt.Errorf("a new client gets status %d", response.StatusCode)
		}
		if kind != counted {
			undecided.Add(1)
		}
		if next.Add(1) > clients {
			return nil
		}
	}
}

// randomClient returns a random IPv4 or IPv6 address.
func randomClient(random *rand.Rand) netip.Addr {
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
