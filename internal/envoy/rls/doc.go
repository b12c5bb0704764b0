// SPDX-License-Identifier: Apache-2.0

// Package rls serves Envoy's rate limit protocol, envoy.service.ratelimit.v3.RateLimitService.
// Envoy's own ratelimit filter works with it unchanged, with the same policy and counters as all
// other fronts.
//
// The package decides all descriptors of one request in one atomic step of the store. If one
// descriptor is over its limit, none is charged. So clients that retry do not use up their other
// limits. (envoyproxy/ratelimit charges every descriptor, unless it is set to
// STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT.)
//
// The cost is a call from Envoy for each request. The service gets only the data that Envoy's
// actions send. The service does not see the response, so it cannot settle charges, and it cannot
// delay a request for longer than Envoy's timeout. Use the filter instead where Envoy can load it.
//
// If a request lacks units that other regions might lend, it waits for at most a second, and for at
// most three quarters of the time that Envoy gives it. Then it is answered. If Envoy ends the call
// before that, nothing is charged.
//
// Under a policy with a directory of clients, each descriptor is decided with the records of its
// client. If a record cannot be read in time, because too many clients wait for theirs, the
// descriptor is answered OVER_LIMIT.
//
// # How a descriptor becomes a request
//
// The domain is the name of the policy, or a name that the policy's rules match as
// attr:envoy.domain. Each descriptor is one request, with its entries as attributes:
//
//	entry KEY = VALUE           attr:KEY, in per: [attr:KEY] and in
//	                            match: { attr: { KEY: [value, "prefix*"] } }
//	the second entry of a KEY   attr:KEY#2, the third attr:KEY#3
//	the keys, in order          attr:envoy.descriptor: "source_cluster/destination_cluster"
//	                            ("/" and "%" in a key: %2F, %25)
//	the domain                  attr:envoy.domain
//	remote_address              the client's address, for identify: [ip], per: [ip] and
//	                            match: { ip: … }
//	path, :path                 the path, with its query
//	method, :method             the method
//	host, authority, :authority the host
//	any KEY                     the request header of that name, in any case:
//	                            x-api-key is X-API-Key
//
// One policy serves Caddy and Envoy if the actions use these keys. A rule applies to every
// descriptor that it matches, whatever other entries the descriptor has. To apply a rule only to
// descriptors with exactly these entries, write match: { attr: { envoy.descriptor: "foo/bar" } }. A
// counter that several descriptors of a request share is charged once.
//
// hits_addend multiplies the rule's cost. The product is charged completely or not at all. At the
// end of a stream (apply_on_stream_done), the hits_addend of a descriptor reports past usage; see
// [StreamKey]. Usage beyond the limit is recorded too, as debt of up to one window's count, and is
// answered OVER_LIMIT. At the end of a stream that was denied, nothing is charged. A value of 0
// charges nothing, and is answered OVER_LIMIT if nothing is left, because the next request would be
// denied. Negative hits (is_negative_hits) are refunded to the current window, up to the units
// charged in it. A sliding log refunds nothing.
//
// A descriptor's own limit replaces the policy's rules, in every domain. Such a limit is a fixed
// window, with a counter for the descriptor's entries. Of several limits with the same unit for one
// descriptor, the strictest applies. If several descriptors have limits with quota, it is enough if
// one of them has room.
package rls
