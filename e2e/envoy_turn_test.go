// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestThousandsInOneTurn tests thousands of requests that arrive while Envoy is suspended, so that
// its workers then read all of them at once. Each request is denied by the filter, denied by the
// bridge, or admitted. If the filter nested its local replies, they would overflow the small stack
// of the virtual machine.
func TestThousandsInOneTurn(t *testing.T) {
	t.Parallel()
	const connections = 2400
	const policy = "name: shop\non_error: deny\nrules:\n" +
		"- {name: never, match: {path: /never}, action: block}\n- {name: one, match: {path: /one}, per: [], limit: 1/31d fixed_window}\n" +
		"- {name: all, match: {path: /}, limit: 100000/31d}\n"
	s := &site{set: "on_error: deny\ndeadline: 10s", direct: true}
	useEnvoy(t, nil, s)
	s.startBridge(t, policy)
	s.awaitDecided(t)
	if a := s.get(t, "/one"); a.status != http.StatusOK {
		t.Fatalf("the only one there is: status %d", a.status)
	}
	kinds := []struct {
		path   string
		status int
	}{{"/never", http.StatusForbidden}, {"/one", http.StatusTooManyRequests}, {"/free", http.StatusOK}}
	open := make([]net.Conn, connections)
	for i := range open {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(envoyPatience))
		open[i] = conn
	}
	speak := func(path string, status func(i int) int) {
		if path == "" {
			s.envoy.freeze()
		}
		for i, conn := range open {
			if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: shop.example\r\n\r\n", cmp.Or(path, kinds[i%len(kinds)].path)); err != nil {
				t.Error(err)
			}
		}
		if path == "" {
			s.envoy.signal(syscall.SIGCONT)
		}
		var group sync.WaitGroup
		for i, conn := range open {
			group.Go(func() {
				response, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, response.Body)
				response.Body.Close()
				if response.StatusCode != status(i) {
					t.Errorf("%d: status %d, want %d", i, response.StatusCode, status(i))
				}
			})
		}
		group.Wait()
	}
	speak("/free", func(int) int { return http.StatusOK }) // assigns each connection to a worker
	speak("", func(i int) int { return kinds[i%len(kinds)].status })
	s.awaitDecided(t)
	if log := s.envoy.log.String(); strings.Contains(log, "RangeError") {
		t.Errorf("Envoy says\n%s", log)
	}
}
