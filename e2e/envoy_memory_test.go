// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// unknownClientsDefault is the number of clients that TestEnvoyMemoryIsFlat makes up. "make
// envoy-memory" uses a million.
const unknownClientsDefault = 30_000

const unknownClientsPolicy = `name: shop
trusted_hops: 1
identify:
  - api_key: {keys_file: keys.toml}
  - ip: {}
rules:
  - {name: all, limit: 10/31d}
  - {name: keys, per: [header:X-Device], unverified: true, limit: 10/31d}
`

// growthByClientMax is the number of bytes by which Envoy may grow for each made-up client. A
// record of each client would take more than that. Without such records, Envoy grows by at most a
// megabyte in total.
const growthByClientMax = 100

// unknownClients returns the number of clients to make up.
func unknownClients(t testing.TB) int {
	t.Helper()
	text := os.Getenv("PENSTOCK_UNKNOWN_CLIENTS")
	if text == "" {
		return unknownClientsDefault
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("PENSTOCK_UNKNOWN_CLIENTS: %v", err)
	}
	return n
}

// TestEnvoyMemoryIsFlat tests that Envoy's memory does not keep growing with new clients that have
// invalid credentials.
func TestEnvoyMemoryIsFlat(t *testing.T) {
	t.Parallel()
	unknownClients := unknownClients(t)
	s := &site{direct: true, set: longDeadline}
	e := startEnvoy(t, wasm(t), nil, s)
	b := newBridge(t, unknownClientsPolicy)
	b.listen = s.bridge
	keys, err := os.ReadFile("../examples/keys.toml")
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(b.policy.path), "keys.toml"), keys, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e.awaitPolicyLoad(t, func() { b.run(t) })
	s.awaitDecided(t)
	// The first requests fill all bounded caches of both workers. No cache holds more than 4096
	// clients.
	const warm = 20_000
	s.visit(t, 0, warm)
	before, bridgeBefore := e.residentKB(), b.residentKB()
	s.visit(t, warm, warm+unknownClients)
	after := e.residentKB()
	t.Logf("%d unknown clients: Envoy %d MB, then %d MB; the bridge %d MB, then %d MB", unknownClients, before>>10, after>>10, bridgeBefore>>10,
		b.residentKB()>>10)
	if most := min(16<<10, growthByClientMax*unknownClients>>10); after > before+most {
		t.Errorf("Envoy has grown from %d to %d KB by %d unknown clients", before, after, unknownClients)
	}
}

// site.visit sends one request of each client from the number named first up to, but not including,
// the number named last. Every client has its own address, device and key.
func (s *site) visit(t *testing.T, first, last int) {
	t.Helper()
	const connections = 32
	var next, wrong atomic.Int64
	next.Store(int64(first))
	var group sync.WaitGroup
	for range connections {
		group.Go(func() {
			if err := s.visitOver(&next, int64(last), &wrong); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if n := wrong.Load(); n > int64(last-first)/100 {
		t.Errorf("%d of %d answers tell of no limit", n, last-first)
	}
}

// visitOver sends requests over one connection until all clients have sent one. It writes the
// requests itself, because net/http's client would take most of the time.
func (s *site) visitOver(next *atomic.Int64, last int64, wrong *atomic.Int64) error {
	connection, err := net.Dial("tcp", s.address)
	if err != nil {
		return err
	}
	defer connection.Close()
	reader := bufio.NewReader(connection)
	for {
		n := next.Add(1) - 1
		if n >= last {
			return nil
		}
		_, err := fmt.Fprintf(connection, "GET /item/%d HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 10.%d.%d.%d\r\nX-API-Key: made-up-%d\r\n"+
			"X-Device: %d\r\n\r\n", n, n>>16&255, n>>8&255, n&255, n, n)
		if err != nil {
			return err
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.Header.Get("RateLimit") == "" {
			wrong.Add(1)
		}
	}
}

// residentKB returns the resident memory of the process.
func (s *server) residentKB() int {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.command.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			n, _ := strconv.Atoi(fields[1])
			return n
		}
	}
	s.t.Fatal("no VmRSS in the status of the process")
	return 0
}
