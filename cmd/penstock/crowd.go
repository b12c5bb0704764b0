// SPDX-License-Identifier: Apache-2.0

package main

import (
	"container/list"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/bridge"
)

// The bounds of connections, of each place where the bridge listens: without them a client that can connect could take all
// its memory. What is beyond them is closed at once, so that the client knows.
const (
	// httpConnectionsMax is above all calls under way and all that wait, for over HTTP/1.1 each has a connection of its own;
	// an idle one holds some 10 KB.
	httpConnectionsMax = 1 << 15
	// grpcConnectionsMax is a connection for each worker of some hundred Envoys; an idle one holds some 80 KB.
	grpcConnectionsMax = 1 << 12
	// strangersShare is the part of the places, one in so many, that is kept for connections that have made no call yet.
	strangersShare = 8
	// firstCallTime is how long a connection may take to the head of its first call, the handshake included. Half of it is
	// what a call may take to come; the rest is for a busy server to answer one that does not.
	firstCallTime = 2 * bridge.CallTime
	// probeTime is how long a connection that only asks for the health may be silent. A health check asks more often.
	probeTime = 5 * time.Minute
)

// fullLogEvery is the least time between two lines of the log about connections that were closed.
const fullLogEvery = time.Minute

// crowd bounds the connections of a listener. Each begins as a stranger and becomes a guest with the first call that it may
// make: one with the token, where there is one. An eighth of the places is never a guest's, and with a token or certificates a
// stranger has one of these. When they are taken, the stranger that has been silent longest is closed for the next, one of the
// same address if that address has many; so a client that makes its call at once gets in whatever the others do. An address
// has three quarters of the guests' places at most. Connections over a Unix socket have no address, and count as of none.
// Safe for concurrent use.
type crowd struct {
	net.Listener
	max, guestsMax, strangersMax int
	logger                       *slog.Logger

	mu        sync.Mutex
	guests    int
	strangers list.List // of *visitor, the one that was silent longest first
	origins   map[netip.Prefix]*origin
	told      time.Time // when the log was last told
}

// origin is what an address has of a crowd.
type origin struct {
	guests    int
	strangers list.List
}

// visitor is a connection of a crowd.
type visitor struct {
	net.Conn
	crowd *crowd
	from  netip.Prefix // the zero value where there are no addresses
	// patience ends a stranger.
	patience *time.Timer

	// The crowd's mutex guards what follows.
	guest, gone bool
	place       *list.Element // among all strangers
	own         *list.Element // among those of its address
}

// newCrowd lets so many connections of a listener be open at once. Where callers are let in without showing anything, a
// burst of them may all be strangers for a moment, and have all the places.
func newCrowd(l net.Listener, connectionsMax int, guarded bool, logger *slog.Logger) *crowd {
	kept := max(1, connectionsMax/strangersShare)
	c := &crowd{Listener: l, max: connectionsMax, strangersMax: connectionsMax, guestsMax: connectionsMax - kept, logger: logger,
		origins: map[netip.Prefix]*origin{}}
	if guarded {
		c.strangersMax = kept
	}
	return c
}

// Accept implements [net.Listener].
func (c *crowd) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &visitor{Conn: connection, crowd: c, from: originOf(connection.RemoteAddr())}
	if late := c.enter(v); late != nil {
		_ = late.Close()
	}
	return v, nil
}

// enter makes a connection a stranger, and returns the one that has to go for it; nil if none has.
func (c *crowd) enter(v *visitor) (late *visitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.strangers.Len(); n >= c.strangersMax || n+c.guests >= c.max {
		longest := &c.strangers
		if from := c.origins[v.from]; from != nil && from.strangers.Len() > c.strangersMax/strangersShare {
			longest = &from.strangers
		}
		late = longest.Front().Value.(*visitor)
		c.leave(late)
		c.tell("as many are open as may be that have made no call yet")
	}
	from := c.origins[v.from]
	if from == nil {
		from = new(origin)
		c.origins[v.from] = from
	}
	v.place, v.own = c.strangers.PushBack(v), from.strangers.PushBack(v)
	v.patience = time.AfterFunc(firstCallTime, func() { _ = v.Close() })
	return late
}

// leave takes a connection off the books; the mutex is held.
func (c *crowd) leave(v *visitor) {
	if v.gone {
		return
	}
	v.gone = true
	v.patience.Stop()
	from := c.origins[v.from]
	if v.guest {
		c.guests--
		from.guests--
	} else {
		c.strangers.Remove(v.place)
		from.strangers.Remove(v.own)
	}
	if from.guests == 0 && from.strangers.Len() == 0 {
		delete(c.origins, v.from)
	}
}

// admit makes a stranger a guest, or closes it where there is no room for one. A nil visitor has none to be.
func (v *visitor) admit() {
	if v == nil {
		return
	}
	c := v.crowd
	c.mu.Lock()
	if v.guest || v.gone {
		c.mu.Unlock()
		return
	}
	from, room := c.origins[v.from], c.guests < c.guestsMax
	if v.from.IsValid() && from.guests >= max(1, c.guestsMax-c.guestsMax/4) {
		room = false
	}
	if room {
		v.patience.Stop()
		c.strangers.Remove(v.place)
		from.strangers.Remove(v.own)
		v.guest, c.guests, from.guests = true, c.guests+1, from.guests+1
	} else {
		c.tell("as many are open as may be, of all or of its address")
	}
	c.mu.Unlock()
	if !room {
		_ = v.Close()
	}
}

// probe notes that a stranger has asked for the health, which needs no token. A nil visitor has no place to keep.
func (v *visitor) probe() {
	if v == nil {
		return
	}
	v.crowd.mu.Lock()
	defer v.crowd.mu.Unlock()
	if v.guest || v.gone {
		return
	}
	v.crowd.strangers.MoveToBack(v.place)
	v.crowd.origins[v.from].strangers.MoveToBack(v.own)
	v.patience.Reset(probeTime)
}

// Close implements [net.Conn]. It may be called several times.
func (v *visitor) Close() error {
	v.crowd.mu.Lock()
	v.crowd.leave(v)
	v.crowd.mu.Unlock()
	return v.Conn.Close()
}

// tell logs that a connection is closed, now and then; the mutex is held.
func (c *crowd) tell(why string) {
	if now := time.Now(); now.Sub(c.told) >= fullLogEvery {
		c.told = now
		c.logger.Warn("a connection is closed: "+why, "address", c.Addr().String(), "open", c.guests+c.strangers.Len(),
			"without a call", c.strangers.Len())
	}
}

// RemoteAddr implements [net.Conn]. The address leads back to the connection: it is all that gRPC tells a request of it.
func (v *visitor) RemoteAddr() net.Addr { return visitorAddr{v.Conn.RemoteAddr(), v} }

// visitorAddr is the address of the other side of a visitor.
type visitorAddr struct {
	net.Addr
	visitor *visitor
}

// originOf returns the network that an address counts as: an IPv4 address, or the 64 bits of an IPv6 address that one client
// has at least; the zero value for what is no IP address.
func originOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	ip, bits := tcp.AddrPort().Addr().Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.WithZone("").Prefix(bits) // so many bits it has
	return prefix
}
