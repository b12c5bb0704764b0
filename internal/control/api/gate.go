// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/sources"
)

// Bounds of callers whose token is not known to be valid.
const (
	// checksMax bounds the checks of unknown tokens that run at the same time. Each check is a
	// query, and checksMax is less than half of the connections to the database.
	checksMax = 4
	checkTime = 3 * time.Second
	// waitersMax bounds the callers that wait for such a check, and waitersEach bounds the waiting
	// callers from one address.
	waitersMax  = 256
	waitersEach = 64
	// An address may show failuresMax invalid tokens at once, and one more every failureEvery.
	failuresMax  = 32
	failureEvery = 500 * time.Millisecond
	// addressesMax bounds the addresses with failures that are remembered. Beyond it, all further
	// addresses share a budget.
	addressesMax = 4096
	// knownMax bounds the remembered tokens.
	knownMax = 10_000
	// nodesMax is the part of requestsMax that nodes may use, so that they leave room for people.
	nodesMax = requestsMax / 2
)

// gate lets at most requestsMax requests be served at a time: each has a turn. A token that was
// valid before gets a turn at once, and is verified again during the turn. Any other token is
// verified first, in a queue of its own, so a caller without a valid token takes no turn from
// callers with one.
type gate struct {
	identify     func(ctx context.Context, remote, authorization string) (requester, *refusal)
	now          func() time.Time
	turns, nodes chan struct{}   // hold a value for each request that is being served
	byToken      *sources.Counts // the turns of each token, which may use half of them
	checks       chan struct{}   // holds a value for each check of an unknown token

	mu      sync.Mutex
	known   map[[sha256.Size]byte]struct{} // the hashes of tokens that were valid
	origins map[netip.Prefix]*failures
	waiting int
}

// failures limits the callers of an address that have shown no valid token.
type failures struct {
	waiting int
	full    time.Time // when the address may show failuresMax invalid tokens again
}

func newGate(identify func(ctx context.Context, remote, authorization string) (requester, *refusal)) *gate {
	return &gate{identify: identify, now: time.Now, turns: make(chan struct{}, requestsMax), nodes: make(chan struct{}, nodesMax),
		checks: make(chan struct{}, checksMax), known: map[[sha256.Size]byte]struct{}{}, byToken: sources.New(),
		origins: map[netip.Prefix]*failures{}}
}

// Refusals of a gate.
var (
	errTurns    = &refusal{http.StatusServiceUnavailable, "too many requests are under way; try again"}
	errEach     = &refusal{http.StatusServiceUnavailable, "too many requests with this token are under way; try again"}
	errWaiting  = &refusal{http.StatusServiceUnavailable, "too many callers without a valid token are waiting; try again"}
	errFailures = &refusal{http.StatusTooManyRequests, "too many invalid tokens came from this address; try again"}
)

// gate.enter returns the caller of a request, and a function that ends the turn of the request.
func (g *gate) enter(r *http.Request) (by requester, leave func(), no *refusal) {
	authorization := r.Header.Get("Authorization")
	if authorization == "" {
		by, no = g.identify(r.Context(), r.RemoteAddr, "")
		return by, nil, no
	}
	hash := sha256.Sum256([]byte(authorization))
	known := g.knows(hash)
	if !known {
		if by, no = g.check(r, authorization); no != nil {
			return by, nil, no
		}
	}
	if leave, no = g.turnOf(hash, ofNodes(r)); no != nil {
		return by, nil, no
	}
	if known {
		listen.Called(r.Context(), true) // before another connection takes its place
		if by, no = g.identify(r.Context(), r.RemoteAddr, authorization); no != nil {
			leave()
			g.remember(hash, no.status != http.StatusUnauthorized)
			return by, nil, no
		}
	}
	g.remember(hash, true)
	return by, leave, nil
}

// ofNodes reports whether a request is one that nodes send.
func ofNodes(r *http.Request) bool {
	if strings.HasPrefix(r.URL.Path, "/v1/batches/") {
		return true
	}
	rest, isPolicy := strings.CutPrefix(r.URL.Path, "/v1/policies/")
	name, isText := strings.CutSuffix(rest, publishedSuffix)
	return isPolicy && isText && name != "" && !strings.Contains(name, "/")
}

// turnOf takes a turn for a request with a token, unless the token has half of all turns.
func (g *gate) turnOf(hash [sha256.Size]byte, node bool) (leave func(), no *refusal) {
	token := g.countOf(hash)
	if !token.Enter(requestsMax) {
		token.Leave()
		return nil, errEach
	}
	end, no := g.turn(node)
	if no != nil {
		token.Leave()
		return nil, no
	}
	return func() {
		end()
		token.Leave()
	}, nil
}

// countOf returns the count of a token's turns. Several tokens can share a count.
func (g *gate) countOf(hash [sha256.Size]byte) sources.Source {
	return g.byToken.Of(binary.BigEndian.Uint64(hash[:]))
}

// gate.turn takes a turn, and for a request of a node also one of the turns of nodes.
func (g *gate) turn(node bool) (leave func(), no *refusal) {
	if node {
		select {
		case g.nodes <- struct{}{}:
		default:
			return nil, errTurns
		}
	}
	select {
	case g.turns <- struct{}{}:
	default:
		if node {
			<-g.nodes
		}
		return nil, errTurns
	}
	return func() {
		<-g.turns
		if node {
			<-g.nodes
		}
	}, nil
}

func (g *gate) knows(hash [sha256.Size]byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, known := g.known[hash]
	return known
}

// remember notes whether a token is valid.
func (g *gate) remember(hash [sha256.Size]byte, valid bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !valid {
		delete(g.known, hash)
		return
	}
	if len(g.known) >= knownMax {
		clear(g.known) // so each valid token is checked in the database again
	}
	g.known[hash] = struct{}{}
}

// gate.check identifies a caller whose token is not known.
func (g *gate) check(r *http.Request, authorization string) (by requester, no *refusal) {
	origin, no := g.wait(originOf(r))
	if no != nil {
		return by, no
	}
	defer g.waited(origin)
	ctx, cancel := context.WithTimeout(r.Context(), checkTime)
	defer cancel()
	select {
	case g.checks <- struct{}{}:
	case <-ctx.Done():
		return by, errWaiting
	}
	defer func() { <-g.checks }()
	if by, no = g.identify(ctx, r.RemoteAddr, authorization); no != nil && no.status == http.StatusUnauthorized {
		g.noteFailure(origin)
	}
	return by, no
}

// originOf returns the network of a caller: an IPv4 address, or the /64 of an IPv6 address. The
// result is the zero value for a caller over a Unix socket.
func originOf(r *http.Request) netip.Prefix {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return netip.Prefix{}
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Prefix{}
	}
	return listen.Origin(addr)
}

// everyone is the network to which failures of further addresses count while [addressesMax] others
// are remembered. Callers over a Unix socket have another network, so they do not share this
// budget.
var everyone = netip.PrefixFrom(netip.IPv6Unspecified(), 0)

// gate.wait notes a caller that waits for a check, and returns the value that counts the caller's
// failures.
func (g *gate) wait(from netip.Prefix) (*failures, *refusal) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	f := g.origins[from]
	if f == nil {
		if len(g.origins) >= addressesMax {
			g.sweep(now)
		}
		if from.IsValid() && len(g.origins) >= addressesMax {
			from = everyone
		}
		if f = g.origins[from]; f == nil {
			f = new(failures)
			g.origins[from] = f
		}
	}
	switch {
	case f.full.Sub(now) > (failuresMax-1)*failureEvery:
		return nil, errFailures
	case g.waiting >= waitersMax || f.waiting >= waitersEach:
		return nil, errWaiting
	}
	g.waiting++
	f.waiting++
	return f, nil
}

// sweep forgets the addresses without failures. The mutex must be held.
func (g *gate) sweep(now time.Time) {
	for from, f := range g.origins {
		if f.waiting == 0 && !f.full.After(now) {
			delete(g.origins, from)
		}
	}
}

func (g *gate) waited(f *failures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
	f.waiting--
}

// noteFailure notes an invalid token of an address.
func (g *gate) noteFailure(f *failures) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := g.now(); f.full.Before(now) {
		f.full = now
	}
	f.full = f.full.Add(failureEvery)
}
