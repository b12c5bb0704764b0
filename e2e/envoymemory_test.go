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
	"sync"
	"sync/atomic"
	"testing"
)

// strangersDefault is how many clients TestEnvoyMemoryIsFlat makes up; "make envoy-memory" tries a million.
const strangersDefault = 200_000

const strangersPolicy = `name: shop
trusted_hops: 1
identify:
  - api_key: {keys_file: keys.toml}
  - ip: {}
rules:
  - {name: all, limit: 10/31d}
  - {name: keys, per: [header:X-Device], unverified: true, limit: 10/31d}
`

// TestEnvoyMemoryIsFlat: clients that nobody has seen before, with credentials that nobody has given out, cost Envoy no memory
// that it keeps.
func TestEnvoyMemoryIsFlat(t *testing.T) {
	strangers := strangersDefault
	if text := os.Getenv("PENSTOCK_STRANGERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("PENSTOCK_STRANGERS: %v", err)
		}
		strangers = n
	}
	s := &site{direct: true, set: patient}
	e := startEnvoy(t, wasm(t), nil, s)
	b := newBridge(t, strangersPolicy)
	b.listen = s.bridge
	keys, err := os.ReadFile("../examples/keys.toml")
	if err == nil {
		err = os.WriteFile(filepath.Join(filepath.Dir(b.policy.path), "keys.toml"), keys, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	e.loads(t, func() { b.run(t) })
	s.isDecided(t)
	// First as many as fill whatever is bounded and remembered.
	const warm = 60_000
	s.visit(t, 0, warm)
	before, bridgeBefore := e.residentKB(), b.residentKB()
	s.visit(t, warm, warm+strangers)
	after := e.residentKB()
	t.Logf("%d strangers: Envoy %d MB, then %d MB; the bridge %d MB, then %d MB", strangers, before>>10, after>>10, bridgeBefore>>10,
		b.residentKB()>>10)
	const most = 16 << 10
	if after > before+most {
		t.Errorf("Envoy has grown from %d to %d KB by %d strangers", before, after, strangers)
	}
}

// visit sends the requests of strangers, each with an address, a device and a key of its own.
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

// visitOver sends requests over one connection until the last has its turn. It is written by hand: the client of net/http
// would take most of the time.
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
