// SPDX-License-Identifier: Apache-2.0

package filter

// If the route enables internal redirects, Envoy follows an upstream's redirect itself. The stream
// ends without a response. Immediately afterwards, in the same worker, another stream begins with
// another path. Both streams are one request of one client, so the request is decided once, by the
// path that the client requested.
//
// The second stream is recognized by a value in Envoy's filter state that counts the redirects.
// Clients cannot write it, because only Envoy's own filters fill the filter state. The header
// x-envoy-original-url is not used. The previous stream must have the same connection and the same
// x-request-id. If this filter is disabled on the redirecting route, the previous stream belongs to
// another request, and the redirected request is decided like a new one.

// redirects is the path of the count in the filter state.
var redirects = []string{"filter_state", "num_internal_redirects"}

// isRedirected reports whether the stream continues another one after a redirect.
func (f *Filter) isRedirected() bool {
	value, ok := f.host.Property(redirects...)
	return ok && value != "" && value != "0"
}

// continueFrom takes over the decision and the settlement from the stream before the redirect.
func (s *Stream) continueFrom(before *Stream) Action {
	s.releaseAsking()
	s.before, s.state, s.head = nil, decided, before.head
	s.fields, s.remaining, s.due = before.fields, before.remaining, before.due
	before.due = nil
	s.f.host.Count(CounterRedirected)
	return Continue
}

// Stream.abandon settles a request whose client did not wait for the end of the response. It
// also settles a request that ended before its response began, if no other stream continues the
// request. The upstream may have done its work, so the cost is the number that was read so far, or
// the policy's setting named unread.
func (s *Stream) abandon() {
	if s == nil || s.due == nil {
		return
	}
	s.due.response.Cut()
	s.settleOnce()
}
