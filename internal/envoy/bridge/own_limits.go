// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/status"
)

// StatusPath is the path at which clients can read their own limits, if Envoy routes their requests
// to the bridge.
const StatusPath = "/v1/status"

// The fields in which Envoy sends facts about a client's request that the request itself does not
// contain. Envoy must overwrite fields of these names that a client sends.
const (
	statusPeerField  = "X-Penstock-Peer"  // source.address
	statusTokenField = "X-Penstock-Token" // the filters' token; Authorization belongs to the client
	statusAttrField  = "X-Penstock-Attr"  // NAME=VALUE, any number of times
	originalPath     = "X-Envoy-Original-Path"
)

// Bounds on the requests of clients for their own limits.
const (
	// statusMax bounds the concurrent requests. Further ones are answered 503.
	statusMax = 64
	// statusEach bounds the requests per second from one IPv4 address or one IPv6 /64 network.
	// Further ones are answered 429. Some addresses share a bound.
	statusEach   = 50
	statusShares = 4096
	attrsMax     = 64
)

// statusBounds count the requests of clients for their own limits. The zero statusBounds is not ready
// to use: seed must be set.
type statusBounds struct {
	seed  maphash.Seed
	under atomic.Int64
	// each has the second in its upper half and the requests of that second in its lower half.
	each [statusShares]atomic.Uint64
}

// admits counts a request from an address, and reports whether it is within the bound.
func (s *statusBounds) admits(addr netip.Addr, now time.Time) bool {
	if addr = addr.WithZone(""); addr.Is6() && !addr.Is4In6() {
		prefix, _ := addr.Prefix(64) // 64 is a valid length
		addr = prefix.Addr()
	}
	share := &s.each[maphash.Comparable(s.seed, addr.Unmap())%statusShares]
	second := uint64(uint32(now.Unix())) << 32
	for {
		before := share.Load()
		next := second | 1
		if before&^(1<<32-1) == second {
			next = before + 1
		}
		if next&(1<<32-1) > statusEach {
			return false
		}
		if share.CompareAndSwap(before, next) {
			return true
		}
	}
}

// fromEnvoy reports whether a request for a client's own limits comes from an Envoy, and not from a
// page in a browser or another program on the network. If it does, header fields that browsers set
// come from the client and are no reason to reject it.
func (b *Bridge) fromEnvoy(r *http.Request) bool {
	if token := b.options.Token; token != "" {
		return subtle.ConstantTimeCompare([]byte(r.Header.Get(statusTokenField)), []byte(token)) == 1
	}
	return !overTCP(r) || r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

// serveStatus tells a client what is left of its limits. It charges nothing.
func (b *Bridge) serveStatus(w http.ResponseWriter, r *http.Request) {
	if b.options.Token != "" && !b.fromEnvoy(r) {
		b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
		http.Error(w, "this needs the token of the bridge, from Envoy: let the route set "+statusTokenField, http.StatusUnauthorized)
		return
	}
	b.options.Called(r.Context(), true)
	now := b.policy.Current()
	inputs := &formOf(now).inputs
	ask, err := statusRequest(r, inputs)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	defer b.statuses.under.Add(-1)
	busy := b.statuses.under.Add(1) > statusMax
	if at := time.Now(); busy || !b.statuses.admits(ask.Peer, at) {
		w.Header().Set("Retry-After", "1")
		code := http.StatusTooManyRequests
		if busy {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, "too many requests for limits: try again in a second", code)
		return
	}
	var answer status.Answer
	look := &status.Looker{Store: b.options.Store, Directory: formOf(now).directory, Plan: new(core.Plan)}
	switch err := answer.Add(look, now.Ruleset, &wire.View{Ask: ask, Inputs: inputs, At: micros(time.Now())}); {
	case err != nil:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the limits cannot be read at present", http.StatusServiceUnavailable)
	case answer.Denied():
		w.Header().Set("WWW-Authenticate", status.Challenge)
		http.Error(w, "the credential was rejected", http.StatusUnauthorized)
	default:
		_ = answer.Write(w) // an answer can always be marshaled
	}
}

// statusRequest returns the request of a client as the filter would send it.
func statusRequest(r *http.Request, inputs *core.Inputs) (*wire.Ask, error) {
	for _, name := range []string{statusPeerField, statusTokenField} {
		if len(r.Header[name]) > 1 {
			return nil, fmt.Errorf("%s is set twice: let the route overwrite the client's, with append_action: OVERWRITE_IF_EXISTS_OR_ADD", name)
		}
	}
	source := r.Header[statusPeerField]
	if len(source) == 0 {
		return nil, errors.New("the address of the client is missing: let the route of Envoy set " + statusPeerField +
			": \"%DOWNSTREAM_REMOTE_ADDRESS%\"")
	}
	ask := &wire.Ask{Path: r.URL.Path, Query: r.URL.RawQuery, Method: r.Method, Host: r.Host}
	if path := r.Header.Get(originalPath); path != "" {
		ask.Path, ask.Query, _ = strings.Cut(path, "?")
	}
	for _, name := range inputs.Headers {
		values := r.Header[name]
		one := wire.Value{Given: len(values) > 0}
		if one.Given {
			one.Text = policy.JoinLines(name, values)
		}
		ask.Headers = append(ask.Headers, one)
	}
	ask.SetAddresses(inputs.Headers, source[0], true)
	attrs, err := statusAttrs(r.Header[statusAttrField])
	if err != nil {
		return nil, err
	}
	for _, name := range inputs.Attrs {
		value, ok := attrs[name]
		ask.Attrs = append(ask.Attrs, wire.Value{Text: value, Given: ok})
	}
	return ask, nil
}

// statusAttrs reads NAME=VALUE fields. Envoy writes - for a value that it does not have.
func statusAttrs(fields []string) (map[string]string, error) {
	if len(fields) > attrsMax {
		return nil, fmt.Errorf("%s is set %d times, and %d is the most", statusAttrField, len(fields), attrsMax)
	}
	attrs := map[string]string{}
	for _, field := range fields {
		name, value, ok := strings.Cut(field, "=")
		if _, twice := attrs[name]; !ok || twice {
			return nil, errors.New("a " + statusAttrField + " is not NAME=VALUE, or is set twice: let the first overwrite the client's, with " +
				"append_action: OVERWRITE_IF_EXISTS_OR_ADD")
		}
		if value != "" && value != "-" {
			attrs[name] = value
		}
	}
	return attrs, nil
}
