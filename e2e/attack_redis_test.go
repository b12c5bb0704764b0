// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"errors"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// hostileRedis is a proxy in front of Redis. It forwards all commands, and can replace the replies
// of Redis.
type hostileRedis struct {
	t        testing.TB
	listener net.Listener
	server   *redistest.Server
	mode     atomic.Pointer[string]
}

// hostileReplies maps a mode to the function that replaces a reply. If the function is nil, there
// is no reply.
var hostileReplies = map[string]func(answer []byte) []byte{
	"a string of two billion bytes": func([]byte) []byte { return append([]byte("$2000000000\r\n"), bytes.Repeat([]byte("x"), 1<<20)...) },
	"a list of two billion": func([]byte) []byte {
		return append([]byte("*2000000000\r\n"), bytes.Repeat([]byte(":1\r\n"), 1<<18)...)
	},
	"lists in lists":     func([]byte) []byte { return bytes.Repeat([]byte("*1\r\n"), 1<<18) },
	"a line without end": func([]byte) []byte { return bytes.Repeat([]byte("+aaaaaaaaaaaaaaaa"), 1<<16) },
	"garbage":            func([]byte) []byte { return []byte("\x00\xff\xfe?!\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n") },
	"a negative length":  func([]byte) []byte { return []byte("$-7\r\n*-9\r\n") },
	"a number":           func([]byte) []byte { return []byte(":1\r\n") },
	"OK":                 func([]byte) []byte { return []byte("+OK\r\n") },
	"nil":                func([]byte) []byte { return []byte("$-1\r\n") },
	"an error":           func([]byte) []byte { return []byte("-ERR no\r\n") },
	"an empty list":      func([]byte) []byte { return []byte("*0\r\n") },
	"numbers out of bounds": func([]byte) []byte {
		return []byte("*3\r\n:9223372036854775807\r\n:-9223372036854775808\r\n:99999999999999999999\r\n")
	},
	"half":     func(answer []byte) []byte { return answer[:len(answer)/2] },
	"twice":    func(answer []byte) []byte { return slices.Concat(answer, answer) },
	"never":    nil,
	"too late": nil, // see reply
}

// lateBy is how long a reply is delayed in the mode "too late".
const lateBy = 300 * time.Millisecond

// startHostileRedis starts the proxy. At first it forwards replies unchanged.
func startHostileRedis(t testing.TB) *hostileRedis {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &hostileRedis{t: t, listener: listener, server: redistest.StartTCP(t)}
	r.setMode("")
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go r.serve(connection)
			}
		}
	}()
	return r
}

func (r *hostileRedis) url() string         { return "redis://" + r.listener.Addr().String() }
func (r *hostileRedis) setMode(mode string) { r.mode.Store(&mode) }

// hostileRedis.serve forwards the commands of a client, and the replies.
func (r *hostileRedis) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.server.Addr)
	if err != nil {
		return
	}
	defer server.Close()
	go func() {
		defer server.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		if _, err := client.Write(r.reply(buffer[:n])); err != nil {
			return
		}
	}
}

// hostileRedis.reply returns the bytes to send instead of a genuine reply.
func (r *hostileRedis) reply(truth []byte) []byte {
	mode := *r.mode.Load()
	if mode == "too late" {
		<-time.After(lateBy)
		return truth
	}
	say, hostile := hostileReplies[mode]
	if !hostile {
		return truth
	}
	if say == nil {
		return nil
	}
	return say(truth)
}

// askDuring sends requests while Redis misbehaves in the given mode. It returns when Redis behaves
// again and requests are decided.
func (a *attackRun) askDuring(mode string) {
	const clients, asks = 4, 5
	a.front.hostile.setMode(mode)
	defer a.front.hostile.setMode("")
	var group sync.WaitGroup
	var slowest atomic.Int64
	for range clients {
		group.Go(func() {
			client := &http.Client{Timeout: patience}
			for range asks {
				begun := time.Now()
				if a, err := ask(client, "http://"+a.front.address+otherClientPath, otherClientHeader, "1"); err == nil && a.status == 0 {
					return
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(begun))))
			}
		})
	}
	for range a.attack.limit * 4 {
		a.sendPlain()
	}
	group.Wait()
	a.front.hostile.setMode("")
	eventually.Until(a, patience, "requests are decided again", func() bool {
		a, err := ask(http.DefaultClient, "http://"+a.front.address+otherClientPath, otherClientHeader, "1")
		return err == nil && a.header.Get("X-RateLimit-Limit") != ""
	})
	took := time.Duration(slowest.Load())
	a.note("%s: slowest %v", mode, took.Round(time.Millisecond))
	if took > answerWithin {
		a.Errorf("%s: a request took %v", mode, took)
	}
}

// redisAttacks holds attacks by Redis itself. During these attacks, on_error decides, and a node on
// its own allows up to the limit. Redis has counted none of these requests, so afterwards it allows
// up to the limit again.
var redisAttacks = redisRows()

func redisRows() (rows []attack) {
	tried := map[string]bool{"a string of two billion bytes": true, "garbage": true, "half": true, "a number": true}
	for _, mode := range slices.Sorted(maps.Keys(hostileReplies)) {
		rows = append(rows, attack{name: "a Redis that says " + mode, path: "/each", limit: 5, slack: 5, loses: true, outage: true, long: !tried[mode],
			fronts: []string{caddyHostile, filterHostile}, run: func(a *attackRun) { a.askDuring(mode) }})
	}
	return rows
}
