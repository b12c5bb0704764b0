// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// slotCount is the number of slots of a cluster.
	slotCount = 1 << 14
	// nodesMax bounds the servers of a cluster, and thereby the connections. Redis recommends at
	// most 1,000 servers.
	nodesMax = 1024
	// forgetAfter is how long a server without slots is kept after the last redirect to it. A
	// server that is importing its first slots is known only from ASK replies.
	forgetAfter = time.Minute
)

// cluster is the known assignment of slots to the servers of a Redis cluster. A cluster is safe for
// concurrent use.
type cluster struct {
	store *Store
	slots [slotCount]atomic.Pointer[node] // nil if no server is known

	mu     sync.Mutex
	nodes  map[string]*node // the servers by host:port
	closed bool
}

// cluster.all returns the known servers.
func (c *cluster) all() []*node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.nodes))
}

// cluster.node returns the server at host:port, or nil if there are too many servers or the store
// is closed.
func (c *cluster) node(addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodeLocked(addr)
}

// cluster.learn assigns a slot to the server at host:port after a redirect, and returns that
// server. Like cluster.node, it can return nil.
func (c *cluster) learn(slot int, addr string) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodeLocked(addr)
	if n != nil {
		c.slots[slot].Store(n)
	}
	return n
}

func (c *cluster) nodeLocked(addr string) *node {
	n := c.nodes[addr]
	if n == nil {
		if c.closed || len(c.nodes) >= nodesMax {
			return nil
		}
		n = newNode(c.store, c.store.settings.at(addr))
		c.nodes[addr] = n
	}
	n.wanted.Store(int64(time.Since(c.store.reporter.start)))
	return n
}

// owner is the server of a range of slots.
type owner struct {
	first, last int
	addr        string
}

// cluster.apply adopts a view of the whole cluster. It returns the servers that are no longer used;
// the caller closes them.
func (c *cluster) apply(view []owner) (over []*node) {
	var served [slotCount]*node
	serving := map[*node]bool{}
	for _, o := range view {
		n := c.node(o.addr)
		serving[n] = true
		for slot := o.first; slot <= o.last; slot++ {
			served[slot] = n
		}
	}
	for slot := range served {
		if c.slots[slot].Load() != served[slot] {
			c.slots[slot].Store(served[slot])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	horizon := int64(time.Since(c.store.reporter.start) - forgetAfter)
	for addr, n := range c.nodes {
		if !serving[n] && (n.wanted.Load() < horizon || n.breaker.State() == BreakerOpen) {
			delete(c.nodes, addr)
			over = append(over, n)
		}
	}
	return over
}

// cluster.close prevents new nodes and closes the existing ones.
func (c *cluster) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	for _, n := range c.all() {
		n.close()
	}
}

// slotOf returns the slot of a key: of the text in its first braces if there is any, otherwise of
// the whole key.
func slotOf[T string | []byte](key T) int {
	first, last := 0, len(key)
	for i := range len(key) {
		if key[i] != '{' {
			continue
		}
		for j := i + 1; j < len(key); j++ {
			if key[j] == '}' {
				if j > i+1 {
					first, last = i+1, j
				}
				break
			}
		}
		break
	}
	crc := uint16(0)
	for i := first; i < last; i++ {
		crc = crc<<8 ^ crcTable[byte(crc>>8)^key[i]]
	}
	return int(crc % slotCount)
}

// crcTable is the table of the CRC-16 that Redis uses (XMODEM: polynomial 0x1021, initial value 0).
var crcTable = func() (table [256]uint16) {
	for i := range table {
		crc := uint16(i) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
		table[i] = crc
	}
	return table
}()

// parseRedirection parses "MOVED 3999 127.0.0.1:6381" or the same with ASK. The argument asked is
// the address of the server that replied. It supplies the host, which a server that does not know
// its own address omits.
func parseRedirection(text, asked string) (slot int, addr string, ok bool) {
	words := strings.Fields(text)
	if len(words) != 3 {
		return 0, "", false
	}
	slot, err := strconv.Atoi(words[1])
	addr, known := completeAddress(words[2], asked)
	return slot, addr, err == nil && slot >= 0 && slot < slotCount && known
}

// completeAddress returns host:port of an address in a server's reply. The argument named asked
// supplies the host if the reply omits it.
func completeAddress(addr, asked string) (string, bool) {
	at := strings.LastIndexByte(addr, ':')
	if at < 0 {
		return "", false
	}
	host, port := strings.Trim(addr[:at], "[]"), addr[at+1:]
	if host == "" || host == "?" {
		host, _, _ = net.SplitHostPort(asked)
	}
	n, err := strconv.Atoi(port)
	return net.JoinHostPort(host, port), err == nil && n > 0 && n <= 65535
}
