// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"container/list"
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// One in newConnsShare places is reserved for connections without a call yet.
	newConnsShare = 8
	// FirstCallTime is how long a connection may take until the head of its first call has arrived,
	// including the TLS handshake. A call may take half of that time to arrive. The other half is
	// for a busy server to answer that the call did not arrive completely.
	FirstCallTime = 10 * time.Second
	// idleTime is how long a connection must be silent, in both directions, to count as idle. A
	// client may take that long to answer in a TLS handshake.
	idleTime = time.Second
	// probeTime is how long a connection that only checks the health may be silent. Health checks
	// come more often than that.
	probeTime = 5 * time.Minute
)

// fullLogEvery is the least interval between two log lines about closed connections.
const fullLogEvery = time.Minute

// Limit limits the connections of a listener. Without it, a client could use up the memory of the
// process. A connection beyond a limit is closed at once, so that the client notices. A connection
// is new until its first call, which must show the token if the server requires one; then it is
// established. Established connections may take all but an eighth of the places. With tokens or
// certificates, new connections share that eighth. When that eighth is full, the next connection
// replaces the first new connection that is idle: the server waits for its bytes, and none have
// been sent either way for a second. If none is idle, the next connection replaces the oldest new
// one. If the address of the next connection has many new connections, the next connection replaces
// one of these. So a client that makes its call at once always gets a place.
//
// One address may have at most three quarters of the established connections. Connections over a
// Unix socket have no address, and no such limit. A Limit is safe for concurrent use.
type Limit struct {
	net.Listener
	max, establishedMax, newConnsMax int
	idleTime                         time.Duration
	logger                           *slog.Logger

	mu          sync.Mutex
	established int
	newConns    list.List // of *Conn, the one that was silent longest first
	origins     map[netip.Prefix]*origin
	told        time.Time // when the log was last written
}

// origin counts the connections of one address.
type origin struct {
	established int
	newConns    list.List
	tokenless   allowance // of requests on new connections; see [Restrain]
	kept        bool      // until tokenless is full again; see Limit.forget
}

// Conn is a connection of a Limit.
type Conn struct {
	net.Conn
	limit *Limit
	from  netip.Prefix // the zero value if there are no addresses
	// patience closes a connection without a call.
	patience *time.Timer

	// The Limit's mutex guards the fields below.
	gone    bool
	place   *list.Element // in the list of all new connections
	own     *list.Element // in the list of the new connections of its address
	streams allowance     // of streams on the new connection; see [Restrain]

	established atomic.Bool  // set while the mutex is held, and never reset
	reading     atomic.Bool  // whether the server waits for bytes of the client
	active      atomic.Int64 // when the last bytes were sent in either direction, in Unix nanoseconds
}

// NewLimit limits the number of open connections of a listener. If guarded is true, callers must
// show a token or certificate. Otherwise new connections may take all places for a moment, as in a
// burst.
func NewLimit(l net.Listener, connectionsMax int, guarded bool, logger *slog.Logger) *Limit {
	kept := max(1, connectionsMax/newConnsShare)
	c := &Limit{Listener: l, max: connectionsMax, newConnsMax: connectionsMax, establishedMax: connectionsMax - kept, idleTime: idleTime, logger: logger,
		origins: map[netip.Prefix]*origin{}}
	if guarded {
		c.newConnsMax = kept
	}
	return c
}

// Accept implements [net.Listener].
func (c *Limit) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	v := &Conn{Conn: connection, limit: c, from: originOf(connection.RemoteAddr())}
	if late := c.enter(v); late != nil {
		_ = late.Close()
	}
	return v, nil
}

// Limit.enter adds a new connection, and returns the connection to close for it, or nil.
func (c *Limit) enter(v *Conn) (late *Conn) {
	v.active.Store(time.Now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.newConns.Len(); n >= c.newConnsMax || n+c.established >= c.max {
		longest := &c.newConns
		if from := c.origins[v.from]; from != nil && from.newConns.Len() > c.newConnsMax/newConnsShare {
			longest = &from.newConns
		}
		late = idlest(longest)
		c.leave(late)
		c.logClosed("as many are open as may be that have made no call yet")
	}
	from := c.origins[v.from]
	if from == nil {
		from = new(origin)
		c.origins[v.from] = from
	}
	v.place, v.own = c.newConns.PushBack(v), from.newConns.PushBack(v)
	v.patience = time.AfterFunc(FirstCallTime, func() { _ = v.Close() })
	return late
}

// idlest returns the connection of a list that is to be closed: the first idle one among the first
// few, or else the first one. So a connection whose first call is being read or verified is closed
// only if none of the first few is idle.
func idlest(newConns *list.List) *Conn {
	const glances = 32
	element, now := newConns.Front(), time.Now().UnixNano()
	for range glances {
		if element == nil {
			break
		}
		v := element.Value.(*Conn)
		if silent := time.Duration(now - v.active.Load()); v.reading.Load() && silent >= v.limit.idleTime {
			return v
		}
		element = element.Next()
	}
	return newConns.Front().Value.(*Conn)
}

// Limit.leave removes a connection from the lists and counts. The mutex must be held.
func (c *Limit) leave(v *Conn) {
	if v.gone {
		return
	}
	v.gone = true
	v.patience.Stop()
	from := c.origins[v.from]
	if v.established.Load() {
		c.established--
		from.established--
	} else {
		c.newConns.Remove(v.place)
		from.newConns.Remove(v.own)
	}
	c.forget(v.from)
}

// Limit.forget removes an address that has no connections, as soon as it may make all its requests
// without a token at once again. Otherwise an address could make more of them by connecting again.
// The mutex must be held.
func (c *Limit) forget(address netip.Prefix) {
	from := c.origins[address]
	if from == nil || from.established > 0 || from.newConns.Len() > 0 {
		return
	}
	wait := time.Until(time.Time(from.tokenless))
	switch {
	case wait <= 0:
		delete(c.origins, address)
	case !from.kept:
		from.kept = true
		time.AfterFunc(wait, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			from.kept = false
			c.forget(address)
		})
	}
}

// Admit makes a new connection an established one, or closes it if there is no room. A nil Conn has
// no limit.
func (v *Conn) Admit() {
	if v == nil || v.established.Load() {
		return
	}
	c := v.limit
	c.mu.Lock()
	if v.established.Load() || v.gone {
		c.mu.Unlock()
		return
	}
	from, room := c.origins[v.from], c.established < c.establishedMax
	if v.from.IsValid() && from.established >= max(1, c.establishedMax-c.establishedMax/4) {
		room = false
	}
	if room {
		v.patience.Stop()
		c.newConns.Remove(v.place)
		from.newConns.Remove(v.own)
		c.established++
		from.established++
		v.established.Store(true)
	} else {
		c.logClosed("as many are open as may be, of all or of its address")
	}
	c.mu.Unlock()
	if !room {
		_ = v.Close()
	}
}

// Probe records that a new connection has sent a health check, which needs no token. A nil Conn has
// no limit.
func (v *Conn) Probe() {
	if v == nil {
		return
	}
	v.limit.mu.Lock()
	defer v.limit.mu.Unlock()
	if v.established.Load() || v.gone {
		return
	}
	v.limit.newConns.MoveToBack(v.place)
	v.limit.origins[v.from].newConns.MoveToBack(v.own)
	v.patience.Reset(probeTime)
}

// Read implements [net.Conn].
func (v *Conn) Read(b []byte) (n int, err error) {
	v.reading.Store(true)
	if n, err = v.Conn.Read(b); n > 0 {
		v.active.Store(time.Now().UnixNano())
	}
	v.reading.Store(false)
	return n, err
}

// Write implements [net.Conn].
func (v *Conn) Write(b []byte) (n int, err error) {
	v.active.Store(time.Now().UnixNano())
	return v.Conn.Write(b)
}

// Close implements [net.Conn]. It may be called more than once.
func (v *Conn) Close() error {
	v.limit.mu.Lock()
	v.limit.leave(v)
	v.limit.mu.Unlock()
	return v.Conn.Close()
}

// logClosed logs, at most once in fullLogEvery, that a connection is closed. The mutex must be
// held.
func (c *Limit) logClosed(why string) {
	if now := time.Now(); now.Sub(c.told) >= fullLogEvery {
		c.told = now
		c.logger.Warn("a connection is closed: "+why, "address", c.Addr().String(), "open", c.established+c.newConns.Len(),
			"without a call", c.newConns.Len())
	}
}

// RemoteAddr implements [net.Conn]. The returned address contains the connection, because a gRPC
// handler has no other access to the connection.
func (v *Conn) RemoteAddr() net.Addr { return connAddr{v.Conn.RemoteAddr(), v} }

// connAddr is the remote address of a Conn.
type connAddr struct {
	net.Addr
	conn *Conn
}

// originOf returns the network of an address: an IPv4 address itself, or the first 64 bits of an
// IPv6 address, because every IPv6 client has a /64 or more. The result is the zero value for other
// addresses.
func originOf(addr net.Addr) netip.Prefix {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	return Origin(tcp.AddrPort().Addr())
}

// Origin returns the network of an address. All callers from one network share one bound.
func Origin(ip netip.Addr) netip.Prefix {
	ip, bits := ip.Unmap(), 64
	if ip.Is4() {
		bits = 32
	}
	prefix, _ := ip.WithZone("").Prefix(bits) // bits never exceeds the address' length
	return prefix
}

// ConnOf returns the connection of a remote address, or nil if its listener has no [Limit].
func ConnOf(addr net.Addr) *Conn {
	if of, ok := addr.(connAddr); ok {
		return of.conn
	}
	return nil
}

// visiting is the context key of a call's connection.
type visiting struct{}

// WithConn puts the connection into the contexts of its calls, for [Called]. Use WithConn as the
// ConnContext of an [net/http.Server].
func WithConn(ctx context.Context, conn net.Conn) context.Context {
	if v := ConnOf(conn.RemoteAddr()); v != nil {
		return context.WithValue(ctx, visiting{}, v)
	}
	return ctx
}

// Called marks the connection of an accepted call as established. If the argument known is false,
// the call is a health check, which does not establish the connection.
func Called(ctx context.Context, known bool) {
	v, _ := ctx.Value(visiting{}).(*Conn)
	if known {
		v.Admit()
	} else {
		v.Probe()
	}
}
