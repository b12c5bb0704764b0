// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
)

// hostile is a server that takes the place of Redis, and sends replies that no Redis sends.
type hostile struct {
	listener net.Listener
	polite   bool // whether only calls of the script get a hostile reply
	head     string
	more     string // this text follows head endlessly; "" means that nothing follows
	mu       sync.Mutex
	told     int // number of hostile replies
}

// newHostile returns a hostile server that ends with the test.
func newHostile(t testing.TB, polite bool, head, more string) *hostile {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{listener: listener, polite: polite, head: head, more: more}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go h.serve(conn)
		}
	}()
	return h
}

func (h *hostile) addr() string { return h.listener.Addr().String() }

func (h *hostile) serve(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	for {
		command, err := readCommand(reader)
		if err != nil {
			return
		}
		if h.polite && !strings.EqualFold(command, "evalsha") {
			answer := "+OK\r\n"
			if strings.EqualFold(command, "hello") {
				answer = "-ERR unknown command\r\n"
			}
			if _, err := io.WriteString(conn, answer); err != nil {
				return
			}
			continue
		}
		h.mu.Lock()
		h.told++
		h.mu.Unlock()
		if _, err := io.WriteString(conn, h.head); err != nil {
			return
		}
		for more := strings.Repeat(h.more, 1024); more != ""; {
			if _, err := io.WriteString(conn, more); err != nil {
				return
			}
		}
	}
}

// readCommand reads a command and returns its name.
func readCommand(r *bufio.Reader) (name string, err error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	n, err := strconv.Atoi(strings.Trim(line, "*\r\n"))
	for i := 0; i < n && err == nil; i++ {
		if line, err = r.ReadString('\n'); err != nil {
			return "", err
		}
		size, bad := strconv.Atoi(strings.Trim(line, "$\r\n"))
		if bad != nil {
			return "", bad
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(r, text); i == 0 {
			name = string(text[:size])
		}
	}
	return name, err
}

// hostileAnswers holds, by name, the replies that a hostile server could send.
var hostileAnswers = map[string][2]string{
	"a string of 2 GB":        {"$2000000000\r\n", ""},
	"a string of 2 GB, sent":  {"$2000000000\r\n", "x"},
	"an array of 1e9":         {"*1000000000\r\n", ""},
	"an array of arrays":      {"", "*65536\r\n"},
	"deep":                    {"", "*1\r\n"},
	"an endless line":         {"+", "x"},
	"an endless error":        {"-ERR ", "x"},
	"an endless number":       {"$", "0"},
	"endless words":           {"", "+OK\r\n"},
	"endless attributes":      {"", "|0\r\n"},
	"something else entirely": {"HTTP/1.1 200 OK\r\n", "\r\n"},
}

// TestHostileServers puts each hostile server in the place of each kind of server. Every call fails
// by about its deadline, and the reply takes no memory.
func TestHostileServers(t *testing.T) {
	for name, answer := range hostileAnswers {
		for _, mode := range []string{ModeSingle, ModeRing, ModeCluster, ModeSentinel, "polite"} {
			t.Run(name+"/"+mode, func(t *testing.T) { attackBy(t, mode, answer[0], answer[1]) })
		}
	}
}

func attackBy(t *testing.T, mode, head, more string) {
	// The bound allows for a reply of 16 MB and its copies, for each possible connection.
	const memoryMax = 400 << 20
	h := newHostile(t, mode == "polite", head, more)
	options := Options{Mode: mode, Addrs: []string{h.addr()}}
	switch mode {
	case ModeSingle, "polite":
		options = Options{URL: "redis://" + h.addr()}
	case ModeRing:
		options.Addrs = append(options.Addrs, newHostile(t, false, head, more).addr())
	case ModeSentinel:
		options.Master = "m"
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s := open(t, options)
	limit := limittest.New(t, "10/1m")
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 4 {
				start := time.Now()
				err := s.Take(context.Background(), take1(fmt.Sprintf("rl1:{%d}", i), limit), make([]counter.Result, 1))
				// A polite server answers PING, so on a busy machine it may be considered
				// overloaded.
				overloaded := mode == "polite" && errors.Is(err, counter.ErrOverloaded)
				if !errors.Is(err, counter.ErrUnavailable) && !overloaded {
					t.Errorf("error %v", err)
				}
				if took := time.Since(start); took > slowest {
					t.Errorf("a call with a deadline of %s took %s", TimeoutDefault, took)
				}
			}
		})
	}
	wg.Wait()
	waitUntil(t, "the server has answered", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.told > 0
	})
	s.Close()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > memoryMax {
		t.Errorf("%d MB were allocated", took>>20)
	}
}
