// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// sharedAndOwn has a limit that all clients share, and one for each address.
const sharedAndOwn = `{name: shop, rules: [
	{name: everyone, match: {attr: {generic_key: all}}, per: ["attr:generic_key"], limit: 100/1h fixed_window},
	{name: own, match: {attr: {envoy.descriptor: remote_address}}, per: ip, limit: 10/1h fixed_window}]}`

// TestDeniedRequestsChargeNoSharedLimit: each request of a client costs 2 units, by the hits of its
// descriptors. The client goes on after its own limit is used up. These requests are not charged to
// the limit that all clients share, whether Envoy marks its calls or not. At the end of a stream,
// the hits have happened, so both limits are charged.
func TestDeniedRequestsChargeNoSharedLimit(t *testing.T) {
	for _, c := range []struct {
		name, mark  string
		busy        bool
		shared, own uint32 // what is left of the two limits
		unmarked    int
	}{
		{name: "request", mark: "ended=,", shared: 90},
		{name: "request, with a hyphen for no details", mark: "ended=-,-", shared: 90},
		{name: "no mark", shared: 90, unmarked: 25},
		{name: "a mark that Envoy has not evaluated", mark: "ended=%RESPONSE_CODE_DETAILS%,%UPSTREAM_HOST%", shared: 90, unmarked: 25},
		{name: "a mark without the upstream", mark: "ended=", shared: 90, unmarked: 25},
		{name: "another mark", mark: "via_upstream", shared: 90, unmarked: 25},
		{name: "end of a stream", mark: ended, shared: 50},
		{name: "reset of a stream", mark: "ended=http2.remote_reset,192.0.2.9:80", shared: 50},
		{name: "reset of a stream before the upstream is chosen", mark: "ended=upstream_reset{a,b},", shared: 50},
		{name: "reset of a stream over HTTP/3", mark: "ended=,192.0.2.9:80", shared: 50},
		{name: "end of a denied stream", mark: "ended=request_rate_limited,", shared: 100, own: 10},
		{name: "request in an overload", mark: "ended=,", busy: true, shared: 100, own: 10},
		{name: "no mark in an overload", busy: true, shared: 100, own: 10, unmarked: 25},
		{name: "end of a stream in an overload", mark: ended, busy: true, shared: 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, rules(t, sharedAndOwn), nil)
			s.mark = c.mark
			if c.busy {
				s.under.all.Add(RequestsMaxDefault)
			}
			for range 25 {
				s.ask(hits(descriptor("generic_key", "all"), 2, false), hits(descriptor("remote_address", "192.0.2.1"), 2, false))
			}
			if c.busy {
				s.under.all.Add(-RequestsMaxDefault)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			s.mark = "ended=,"
			left := func(d *ratelimit.RateLimitDescriptor) uint32 {
				return s.ask(hits(d, 0, true)).Statuses[0].LimitRemaining
			}
			shared, own := left(descriptor("generic_key", "all")), left(descriptor("remote_address", "192.0.2.1"))
			if shared != c.shared || own != c.own || s.unmarked != c.unmarked {
				t.Errorf("%d left of the shared limit, want %d; %d of the client's own, want %d; %d calls without a mark, want %d",
					shared, c.shared, own, c.own, s.unmarked, c.unmarked)
			}
		})
	}
}

// TestDeniedStreamsGiveNothingBack: each stream takes a unit when it begins and gives it back when
// it ends. Envoy calls at the end of a denied stream, too, although that stream has taken nothing.
func TestDeniedStreamsGiveNothingBack(t *testing.T) {
	s := serve(t, rules(t, sharedAndOwn), nil)
	unit := func(back bool) *ratelimit.RateLimitDescriptor {
		return hits(descriptor("remote_address", "192.0.2.1"), 1, back)
	}
	begin := func(want bool) {
		t.Helper()
		s.mark = "ended=,"
		s.checkAnswer(want, unit(false))
	}
	for range 10 {
		begin(true)
	}
	for range 5 {
		begin(false)
		for _, s.mark = range []string{"ended=request_rate_limited,", "ended=rate_limiter_error,-"} {
			s.checkAnswer(true, unit(true))
		}
	}
	begin(false)
	s.mark = ended
	s.checkAnswer(true, unit(true))
	begin(true)
	begin(false)
	if s.refused != 10 {
		t.Errorf("%d ends of denied streams, want 10", s.refused)
	}
}
