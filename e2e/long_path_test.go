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
	"sync/atomic"
	"testing"
	"time"
)

const longPolicy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: all, match: {path: /**}, limit: 3/31d}
  - {name: deep, match: {path: [/**/a/**/b/**/c, /**/A/**]}, limit: 1000000/31d}
`

// floodLong sends requests for a path over several connections at once. It returns the number of
// answers by status, and the longest wait of another client meanwhile. The status 0 means that
// there was no answer.
func floodLong(t *testing.T, address, path, user string, connections, each int) (statuses map[int]int, waited time.Duration) {
	t.Helper()
	statuses = make(map[int]int)
	var mu sync.Mutex
	var flooding sync.WaitGroup
	for range connections {
		flooding.Go(func() {
			all := sendRaw(address, path, user, each)
			mu.Lock()
			defer mu.Unlock()
			for _, status := range all {
				statuses[status]++
			}
		})
	}
	var over atomic.Bool
	go func() { flooding.Wait(); over.Store(true) }()
	for n := 0; !over.Load(); n++ {
		began := time.Now()
		if status := sendRaw(address, "/short", fmt.Sprint("other", user, n), 1)[0]; status != 200 {
			t.Errorf("another client is answered %d", status)
		}
		waited = max(waited, time.Since(began))
	}
	return statuses, waited
}

// sendRaw sends a request for the path several times over one connection, and returns the statuses.
// It does not alter the path.
func sendRaw(address, path, user string, times int) []int {
	statuses := make([]int, times)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return statuses
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	answers := bufio.NewReader(conn)
	for i := range statuses {
		if _, err := fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: shop\r\nX-User: %s\r\n\r\n", path, user); err != nil {
			break
		}
		response, err := http.ReadResponse(answers, nil)
		if err != nil {
			break
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil || response.Close {
			statuses[i] = response.StatusCode
			break
		}
		statuses[i] = response.StatusCode
	}
	return statuses
}

// longestPaths returns paths of about the given length that are especially expensive to parse.
func longestPaths(length int) map[string]string {
	all := map[string]string{}
	for _, unit := range []string{`;\`, "a;\\%C3%89/", "/a", "%61%5C;"} {
		all[unit] = "/" + strings.Repeat(unit, length/len(unit))
	}
	return all
}

// checkLongPaths sends requests with long paths to a front. Paths that are too long are denied and
// do not reach the upstream. All other requests are counted, whatever characters their paths
// consist of.
func checkLongPaths(t *testing.T, address string, longest int) {
	n := 0
	for unit, path := range longestPaths(longest) {
		n++
		statuses, waited := floodLong(t, address, path, fmt.Sprint("long", n), 20, 4)
		t.Logf("%d bytes of %q: %v; another client waited %v at most", longest, unit, statuses, waited)
		if statuses[200] > 0 || statuses[414] == 0 {
			t.Errorf("%d bytes of %q: %v, want 414", longest, unit, statuses)
		}
	}
	for unit, path := range map[string]string{"%C3%89": "/" + strings.Repeat("%C3%89", 1350), "%41": "/" + strings.Repeat("%41", 2700),
		";": "/a" + strings.Repeat(";", 8000), `;\a`: "/" + strings.Repeat(`;\a`, 30)} {
		n++
		statuses, waited := floodLong(t, address, path, fmt.Sprint("read", n), 10, 5)
		t.Logf("%d bytes of %q: %v; another client waited %v at most", len(path), unit, statuses, waited)
		if statuses[200] != 3 || statuses[429] != 47 {
			t.Errorf("%d bytes of %q: %v, want 3 that pass", len(path), unit, statuses)
		}
	}
}

// TestLongPathsInEnvoy tests that even requests with the longest paths that Envoy accepts are
// counted, however long it takes to read them.
func TestLongPathsInEnvoy(t *testing.T) {
	t.Parallel()
	s := &site{set: longDeadline}
	byDefault := &site{}
	useEnvoy(t, nil, s, byDefault)
	s.startBridge(t, longPolicy)
	byDefault.startBridge(t, longPolicy)
	checkLongPaths(t, s.address, 58<<10)
	statuses, _ := floodLong(t, byDefault.address, longestPaths(58 << 10)[`;\`], "default", 100, 3)
	t.Logf("with the default deadline: %v", statuses)
	if statuses[200] > 0 || statuses[414] == 0 {
		t.Errorf("with the default deadline: %v, want 414", statuses)
	}
}

// TestLongPathsInCaddy tests long paths in a Caddy that permits headers of up to 2 MiB. Caddy's
// default is 16 KiB.
func TestLongPathsInCaddy(t *testing.T) {
	t.Parallel()
	file := newRenamedFile(t, t.TempDir()+"/policy.yaml")
	file.edit(longPolicy)
	c := startCaddy(t, "{\n\tadmin ADMIN\n\tservers {\n\t\tmax_header_size 2MiB\n\t}\n\tpenstock {\n\t\tpolicy {env.POLICY}\n\t}\n}\n:SITE {\n\tpenstock\n\trespond ok\n}\n", "POLICY="+file.path)
	checkLongPaths(t, c.address, 1_000_000)
}
