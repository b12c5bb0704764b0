// SPDX-License-Identifier: Apache-2.0

// Package rls serves Envoy's rate limit protocol, envoy.service.ratelimit.v3.RateLimitService, over core: Envoy's own
// ratelimit filter works against it unchanged, under the policy and the counters of every other front.
//
// What it promises: the descriptors of one request are decided in one atomic step of the store, all or nothing. Where one
// is over its limit none is charged, so that clients that retry do not use up their other limits (envoyproxy/ratelimit
// charges every descriptor whatever becomes of the request, unless it is told STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT).
// The price is a call from Envoy for each request, and that the service sees what Envoy's actions tell and nothing else: no
// response, so nothing is settled by it, and it cannot let a request wait. When not: where the filter can be loaded.
//
// # How a descriptor becomes a request
//
// The domain names the policy, or is one that the policy's rules match by, as attr:envoy.domain. Each descriptor is one
// request of core's, with its entries for attributes:
//
//	entry KEY = VALUE           attr:KEY, in match: { attr: { KEY: [value, "prefix*"] } } and per: [attr:KEY]
//	the second entry of a KEY   attr:KEY#2, the third attr:KEY#3
//	the keys, in order          attr:envoy.descriptor: "source_cluster/destination_cluster" ("/" and "%" in a key: %2F, %25)
//	the domain                  attr:envoy.domain
//	remote_address              the client's address, for identify: [ip], per: [ip] and match: { ip: … }
//	path, :path                 the path, with its query
//	method, :method             the method
//	host, authority, :authority the host
//	any KEY                     the request header of that name, in any case: x-api-key is X-API-Key
//
// So one policy serves Caddy and Envoy if the actions use these keys. A rule is for every descriptor that it matches,
// whatever else that holds; match: { attr: { envoy.descriptor: "foo/bar" } } is for descriptors of just these entries. A
// counter that several descriptors of a request meet is charged once.
//
// hits_addend multiplies the rule's cost. That of a request is decided before it is charged, all or nothing. That of a
// descriptor reports what was used, often after the response (apply_on_stream_done): what does not fit is recorded all the
// same, up to one window's count of debt, and answered OVER_LIMIT; 0 of it is a look, which charges nothing and is OVER_LIMIT
// when nothing is left, for then the next request is refused. Negative hits (is_negative_hits) go back to the current window, no further than to what it holds, and a sliding
// log takes none back. A descriptor's limit stands in place of the policy's rules, in every domain: a fixed window, with a counter for the
// descriptor's entries. Of several limits of one unit for one descriptor the strictest holds. Where several descriptors have limits
// with quota, one of them with room is enough.
package rls
