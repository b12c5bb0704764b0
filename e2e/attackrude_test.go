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

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// rudeRedis is a Redis whose answers are replaced while it is in a mood. It takes and forwards all that it is asked.
type rudeRedis struct {
	t        testing.TB
	listener net.Listener
	server   *redistest.Server
	mood     atomic.Pointer[string]
}

// rudeMoods are what it says in place of an answer; nil stands for saying nothing.
var rudeMoods = map[string]func(answer []byte) []byte{
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
	"too late": nil, // see answer
}

// tardy is how long an answer that is too late takes.
const tardy = 300 * time.Millisecond

// startRudeRedis starts one that is polite.
func startRudeRedis(t testing.TB) *rudeRedis {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &rudeRedis{t: t, listener: listener, server: redistest.StartTCP(t)}
	r.becomes("")
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

func (r *rudeRedis) url() string         { return "redis://" + r.listener.Addr().String() }
func (r *rudeRedis) becomes(mood string) { r.mood.Store(&mood) }

// serve forwards what a client asks, and answers.
func (r *rudeRedis) serve(client net.Conn) {
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
		if _, err := client.Write(r.answer(buffer[:n])); err != nil {
			return
		}
	}
}

// answer is what it says in place of a true answer.
func (r *rudeRedis) answer(truth []byte) []byte {
	mood := *r.mood.Load()
	if mood == "too late" {
		<-time.After(tardy)
		return truth
	}
	say, rude := rudeMoods[mood]
	if !rude {
		return truth
	}
	if say == nil {
		return nil
	}
	return say(truth)
}

// rudely asks while Redis is in a mood, and returns when it is polite again and requests are decided.
func (a *assault) rudely(mood string) {
	const clients, asks = 4, 5
	a.front.rude.becomes(mood)
	defer a.front.rude.becomes("")
	var group sync.WaitGroup
	var slowest atomic.Int64
	for range clients {
		group.Go(func() {
			client := &http.Client{Timeout: patience}
			for range asks {
				begun := time.Now()
				if a, err := ask(client, "http://"+a.front.address+besidePath, besideHeader, "1"); err == nil && a.status == 0 {
					return
				}
				slowest.Store(max(slowest.Load(), int64(time.Since(begun))))
			}
		})
	}
	for range a.attack.limit * 4 {
		a.plain()
	}
	group.Wait()
	a.front.rude.becomes("")
	await.Until(a, patience, "requests are decided again", func() bool {
		a, err := ask(http.DefaultClient, "http://"+a.front.address+besidePath, besideHeader, "1")
		return err == nil && a.header.Get("X-RateLimit-Limit") != ""
	})
	took := time.Duration(slowest.Load())
	a.note("%s: slowest %v", mood, took.Round(time.Millisecond))
	if took > answerWithin {
		a.Errorf("%s: a request took %v", mood, took)
	}
}

// rudeAttacks are by a Redis. Meanwhile on_error decides: a node then lets through what the limit says, and Redis the same
// once more, for it knows of none.
var rudeAttacks = rudeRows()

func rudeRows() (rows []attack) {
	tried := map[string]bool{"a string of two billion bytes": true, "garbage": true, "half": true, "a number": true}
	for _, mood := range slices.Sorted(maps.Keys(rudeMoods)) {
		rows = append(rows, attack{name: "a Redis that says " + mood, path: "/each", limit: 5, slack: 5, loses: true, outage: true, long: !tried[mood],
			fronts: []string{rudeCaddy, rudeFilter}, run: func(a *assault) { a.rudely(mood) }})
	}
	return rows
}
