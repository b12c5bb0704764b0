// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestModuleMakesNoGarbage tests that the module allocates nothing on the heap of Go for a request
// that it decides without a call. The test sends 12,000 such requests, and counts the garbage
// collections. With GOGC=25, two small allocations for each request would cause several
// collections.
func TestModuleMakesNoGarbage(t *testing.T) {
	t.Parallel()
	const connections, each = 16, 750
	policy := strings.Replace(threeADay, "3/31d", "10000000/31d", 1)
	s, asking := &site{direct: true, filter: moduleFilter(policy)}, &site{direct: true, filter: moduleFilter(policy + inRedis(redistest.Start(t)))}
	e := startEnvoyIn(t, []string{modulePath(t), "GODEBUG=gctrace=1", "GOGC=25"}, "", nil, s, asking)
	s.sendRequests(t, connections, 100)
	before := e.collections()
	s.sendRequests(t, connections, each)
	after := e.collections()
	t.Logf("%d collections at the start, %d after %d requests more", before, after, connections*each)
	if after > before+1 { // Go collects garbage at least every two minutes
		t.Errorf("%d collections during the requests", after-before)
	}
	// Calls of Redis allocate memory, and so cause a collection. If one is counted, the log does
	// report collections.
	eventually.Until(t, patience, "calls of Redis cause a collection", func() bool {
		asking.sendRequests(t, connections, each/10)
		return e.collections() > after
	})
}

// envoy.collections returns the number of garbage collections that Go has reported in the log.
func (e *envoy) collections() (n int) {
	for line := range strings.Lines(e.log.String()) {
		if strings.HasPrefix(line, "gc ") {
			n++
		}
	}
	return n
}

// sendRequests sends requests over each connection, one at a time. It does not use net/http's
// client, which would take most of the time.
func (s *site) sendRequests(t *testing.T, connections, each int) {
	t.Helper()
	var group sync.WaitGroup
	for range connections {
		group.Go(func() {
			if err := s.askOver(each); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
}

// askOver sends n requests over one connection. It fails unless a limit admits each of them.
func (s *site) askOver(n int) error {
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		return err
	}
	defer c.Close()
	answers := bufio.NewReader(c)
	for range n {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"); err != nil {
			return err
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			return err
		}
		discard(response.Body)
		if response.StatusCode != http.StatusOK || response.Header.Get("RateLimit") == "" {
			return fmt.Errorf("status %d, %v", response.StatusCode, response.Header)
		}
	}
	return nil
}
