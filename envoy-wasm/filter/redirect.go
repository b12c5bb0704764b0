// SPDX-License-Identifier: Apache-2.0

package filter

// Envoy answers an upstream's redirect itself where the route says so: the stream ends without a response, and the next
// thing that happens in this worker is that it begins again, as another stream with another path. It is still one request
// of one client, so it is decided once, by the path the client asked for.
//
// What tells such a stream is a value in Envoy's filter state, which counts the redirects. No client can write it: the
// filter state is filled by Envoy's own filters. The header x-envoy-original-url, which is there as well, does not count.
// The stream before must have come over the same connection with the same x-request-id: where the route that redirects has
// this filter disabled, it was somebody else's, and the request is decided as one that has just come.

// redirects is where the count is.
var redirects = []string{"filter_state", "num_internal_redirects"}

// redirected reports whether the stream whose headers have come is one that goes on after a redirect.
func (f *Filter) redirected() bool {
	value, ok := f.host.Property(redirects...)
	return ok && value != "" && value != "0"
}

// goOn takes over what was decided before the redirect, and what is to be settled.
func (s *Stream) goOn(before *Stream) Action {
	s.release()
	s.before, s.state, s.head, s.hurried = nil, decided, before.head, before.hurried
	s.told, s.remaining, s.due = before.told, before.remaining, before.due
	before.due = nil
	s.f.host.Count(CounterRedirected)
	return Continue
}
