// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// quicFronts lists the fronts that serve HTTP/3.
var quicFronts = []string{caddyMemory, caddyRedis, envoyFilter, envoyModule}

// bursts lists attacks that send many requests of one client at the same time.
var bursts = []attack{
	{name: "burst of 1", path: "/each", limit: 5, long: true, run: attackByConnections(1)},
	{name: "burst of 10 connections", path: "/each", limit: 5, long: true, run: attackByConnections(10)},
	{name: "burst of 100 connections", path: "/each", limit: 5, inFlight: 100, run: attackByConnections(100)},
	{name: "burst of 1,000 connections", path: "/each", limit: 5, inFlight: 1_000, run: attackByConnections(1_000)},
	{name: "burst of 4,000 connections", path: "/each", limit: 5, long: true, inFlight: 4_000, run: attackByConnections(4_000)},
	{name: "burst of 10,000 connections", path: "/each", limit: 5, long: true, inFlight: 10_000, run: attackByConnections(10_000)},
	{name: "burst of 20 x 200 streams", path: "/each", limit: 5, inFlight: 4_000, run: streaming(20, 200)},
	{name: "burst of 32 x 240 streams", path: "/each", limit: 5, long: true, inFlight: 7_680, run: streaming(32, 240)},
	{name: "burst of 4 x 500 streams", path: "/each", limit: 5, long: true, inFlight: 2_000, run: streaming(4, 500)},
	{name: "burst of 4 x 1,000 streams", path: "/each", limit: 5, long: true, inFlight: 4_000, run: streaming(4, 1_000)},
	{name: "burst of 42 x 240 streams", path: "/each", limit: 5, long: true, inFlight: 10_080, run: streaming(42, 240)},
	{name: "burst of 4 x 100 streams of HTTP 3", path: "/each", limit: 5, inFlight: 400, fronts: quicFronts,
		run: func(a *attackRun) { a.quicBurst(4, 100, 0) }},
	{name: "burst of 20 x 100 streams of HTTP 3", path: "/each", limit: 5, long: true, inFlight: 2_000, fronts: quicFronts,
		run: func(a *attackRun) { a.quicBurst(20, 100, 0) }},
	{name: "WebSockets by the CONNECT of HTTP 3", path: "/get", limit: 3, loses: true, fronts: quicFronts,
		run: func(a *attackRun) { a.quicWebSockets(8) }},
	{name: "burst of streams of HTTP 3 that are reset", path: "/each", limit: 5, loses: true, inFlight: 400, fronts: quicFronts,
		run: func(a *attackRun) { a.quicBurst(4, 100, 3*time.Millisecond) }},
	{name: "pipelining of 500 over one connection", path: "/each", limit: 5, run: func(a *attackRun) { a.pipeline(1, 500) }},
	{name: "pipelining of 200 over each of 20 connections", path: "/each", limit: 5, long: true, inFlight: 20, run: func(a *attackRun) { a.pipeline(20, 200) }},
	{name: "steady load over 16 connections", path: "/each", limit: 5, inFlight: 16, run: func(a *attackRun) {
		a.steadyLoad(16, chooseLength(300, 5_000), func(int) (from, fields string) { return a.from, "" })
	}},
}

// chooseLength returns the first number if the tests run under "make test", and the second one
// under "make attack".
func chooseLength(short, long int) int {
	if *allAttacks {
		return long
	}
	return short
}

// attackByConnections returns an attack with n connections, which send one request each. The attack
// uses fewer connections if the limit on open files requires it.
func attackByConnections(n int) func(a *attackRun) {
	return func(a *attackRun) {
		var files syscall.Rlimit
		if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
			a.Fatal(err)
		}
		// The upstream runs in this process as well, so each admitted request needs a second
		// connection here.
		if most := int(files.Cur/2) - 500; n > most {
			a.note("%d connections, for more files are not allowed", most)
			n = most
		}
		text := a.request(http.MethodGet, a.attack.path, "Connection: close\r\n")
		a.sendBurst(n, func(int) string { return text })
	}
}

func streaming(connections, each int) func(a *attackRun) {
	return func(a *attackRun) { a.streamBurst(connections, each, nil) }
}

// attackRun.pipeline writes n requests to each of several connections before it reads an answer.
func (a *attackRun) pipeline(connections, n int) {
	var group sync.WaitGroup
	text := a.request(http.MethodGet, a.attack.path, "")
	for range connections {
		c, err := a.dial()
		if err != nil {
			a.note("connect: %v", err)
			continue
		}
		a.sent += n
		group.Go(func() {
			defer c.Close()
			var writing sync.WaitGroup
			writing.Go(func() {
				for range n {
					if _, err := io.WriteString(c, text); err != nil {
						return
					}
				}
			})
			reader := bufio.NewReader(c)
			for range n {
				response, err := http.ReadResponse(reader, nil)
				if err != nil {
					break
				}
				discard(response.Body)
			}
			writing.Wait()
		})
	}
	group.Wait()
}

// steadyLoad sends n requests over several connections, one at a time on each connection. For each
// request, it calls the function named of with a number. This function returns the source address
// of the connection and the header fields of the request.
func (a *attackRun) steadyLoad(connections, n int, of func(i int) (from, fields string)) {
	var next, answered atomic.Int64
	var group sync.WaitGroup
	for c := range connections {
		group.Go(func() {
			from, _ := of(c)
			for next.Load() < int64(n) {
				if a.loadOver(from, &next, &answered, n, of) != nil {
					return
				}
			}
		})
	}
	group.Wait()
	a.sent += min(n, int(next.Load()))
	a.note("%d answered", answered.Load())
}

// loadOver sends requests over one connection until the proxy closes the connection or n requests
// have begun.
func (a *attackRun) loadOver(from string, next, answered *atomic.Int64, n int, of func(i int) (from, fields string)) error {
	c, err := connectFrom(from, a.site())
	if err != nil {
		return err
	}
	defer c.Close()
	reader := bufio.NewReader(c)
	for i := next.Add(1); i <= int64(n); i = next.Add(1) {
		_, fields := of(int(i))
		if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", a.attack.path, a.host, fields); err != nil {
			return nil
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return nil
		}
		discard(response.Body)
		if answered.Add(1); response.Close {
			return nil
		}
	}
	return nil
}
