// SPDX-License-Identifier: Apache-2.0

package policy

// Document is a policy as people write it. Every word is optional. The zero Document limits nothing.
//
// The fields are the words of a policy file, of Caddy's JSON and, as subdirectives, of the Caddyfile. A Document is not
// safe for concurrent use while it is changed.
type Document struct {
	// The namespace of the policy's counters. Proxies that share a store and this name share their counters. Required
	// when the store is shared.
	Name string `json:"name,omitempty"`

	// Whether the policy is in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How to find out who is asking, tried in order: the first that finds someone names the client. Default: by IP
	// address.
	Identify []Identify `json:"identify,omitempty"`

	// The proxies in front of this one, as addresses or CIDR ranges: the client's address is the right-most one of
	// X-Forwarded-For and the peer that is not in the list. Default: the client's address as the proxy knows it.
	TrustedProxies Words `json:"trusted_proxies,omitempty"`

	// How many proxies stand in front of this one: the client's address is the one so many places left of the peer in
	// X-Forwarded-For and the peer, and the peer itself when the chain is shorter. Instead of `trusted_proxies`.
	TrustedHops *int `json:"trusted_hops,omitempty"`

	// Where the user is taken from of clients whose credential names none: one source, or a list tried in order.
	User Sources `json:"user,omitempty"`

	// Where the tenant of clients is taken from whose credential names none: one source, or a list tried in order.
	Tenant Sources `json:"tenant,omitempty"`

	// Where the tier of clients is taken from whose credential names none: one source, or a list tried in order.
	Tier Sources `json:"tier,omitempty"`

	// The rules. Every enabled rule that matches a request is enforced, together with the others.
	Rules []Rule `json:"rules,omitempty"`

	// Who is never limited by this policy: one block of words, or a list of them.
	Exempt Lists `json:"exempt,omitempty"`

	// Who is refused with 403, whatever the rules say: one block of words, or a list of them.
	Block Lists `json:"block,omitempty"`

	// Makes clients that keep running into their limits wait longer each time. Default: nobody does.
	Penalty *Penalty `json:"penalty,omitempty"`

	// The time zone of calendar windows, such as `Europe/Berlin`. Default: UTC.
	Timezone string `json:"timezone,omitempty"`

	// Whether every matching rule counts (`all`, the default) or only the first one (`first`).
	Enforce string `json:"enforce,omitempty"`

	// What happens when the store cannot answer: `allow` (the default) lets requests through, `deny` answers 503.
	OnError string `json:"on_error,omitempty"`

	// Whether units of hot counters are taken from a shared store in advance (`auto`), so that most requests are decided
	// without asking it, or not (`off`, the default). Rules may say otherwise.
	Lease string `json:"lease,omitempty"`

	// Which response header fields tell the client about its limits: `x-ratelimit`, `ietf`, or both as a list (the
	// default), or `none`.
	Headers Words `json:"headers,omitempty"`

	tree   *Node  // what was read, for the places of problems found later; nil for a Document made in Go
	folder string // of the file it was read from; "" if it was not
}

// Rule is one rule of a policy.
type Rule struct {
	// The rule's name, unique in its policy. It is part of the keys of the rule's counters, and it is shown to clients.
	Name string `json:"name,omitempty"`

	// Which requests the rule is for. Default: every request.
	Match *Match `json:"match,omitempty"`

	// What shares a counter: one or several of `client`, `user`, `api_key`, `tenant`, `tier`, `ip`, `host`, `method`,
	// `endpoint`, `header:NAME`, `attr:NAME`. An empty list means one counter for everybody. Default: `client`.
	Per *Words `json:"per,omitempty"`

	// How much is allowed: one or several of `COUNT/WINDOW [burst N] [ALGORITHM]`, such as `100/1m`. A request must pass
	// every one of them. A window may be a calendar's: `5000/day`, `week`, `month`, `year`.
	Limit Words `json:"limit,omitempty"`

	// Other limits for clients of a tier, by the tier's name: one or several limits, or the word `unlimited`. Clients of a
	// tier that is not named have `limit`.
	Tiers Tiers `json:"tiers,omitempty"`

	// The names of rules that do not count where this one does.
	Replaces Words `json:"replaces,omitempty"`

	// Rules with the same group compete, and only one of them counts.
	Group string `json:"group,omitempty"`

	// Within a group, the rule with the lowest priority wins. Default: 0.
	Priority int `json:"priority,omitempty"`

	// Whether the rule is in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// What stands in for something that `per` names and the request lacks: `client` (the default), `share` (all who lack
	// it share one counter), `skip` (the rule does not apply) or `deny`.
	Missing string `json:"missing,omitempty"`

	// Must be true when `per` names a request header. It says that you know that anyone can write one.
	Unverified bool `json:"unverified,omitempty"`

	// How many units a request takes: a number, or a list of `match` and `n` of which the first that matches counts.
	// Default: 1.
	Cost Costs `json:"cost,omitempty"`

	// The cost as the response says it. Until then an estimate is charged. Default: the cost is known before.
	CostAfter *CostAfter `json:"cost_after,omitempty"`

	// The request counts only if its response has one of these statuses: `401`, `5xx`. Default: it counts.
	CountIf *Statuses `json:"count_if,omitempty"`

	// The request does not count if its response has one of these statuses: `401`, `5xx`. Default: it counts.
	RefundOn *Statuses `json:"refund_on,omitempty"`

	// What the rule does: `reject` (the default) refuses what is over the limit, `throttle` lets it wait for a while and
	// refuses it after that, `log_only` counts and reports but refuses nothing, `allow` exempts from the rule's group,
	// `block` refuses everything that matches.
	Action string `json:"action,omitempty"`

	// How long and how many requests may wait. Only with `action: throttle`.
	Throttle *Throttle `json:"throttle,omitempty"`

	// What happens to the requests of this rule when the store cannot answer: `allow` or `deny`. Default: as the policy
	// says.
	OnError string `json:"on_error,omitempty"`

	// Whether units of the rule's hot counters are taken from a shared store in advance: `auto` or `off`. Default: as the
	// policy says.
	Lease string `json:"lease,omitempty"`

	// Over how many counters each counter of the rule is spread, 2 to 64, which a Redis cluster keeps in different slots. Each
	// has its part of the limit, so counts and bursts are multiples of it. Default: one counter.
	Shards *int `json:"shards,omitempty"`

	// Whether clients are told about limits that are hidden by default: those for everybody (an empty `per`) and those
	// that are only logged. Default: false.
	Expose bool `json:"expose,omitempty"`

	// Whether the rule's limits are one of several ways to go on: of the descriptors of a request of Envoy's rate limit
	// protocol that have such a limit, one with room is enough. Elsewhere such a rule refuses like any other. Default: false.
	Quota bool `json:"quota,omitempty"`

	// What a refused client is answered. Default: a problem document that says which limit it was, and how long to wait.
	Response *Response `json:"response,omitempty"`

	// How long a refused client is told to wait at least, such as `30s`. Default: as long as it takes.
	RetryAfter string `json:"retry_after,omitempty"`

	// Refused clients are told to wait up to this much longer, each another span, so that they do not come back together.
	// Default: nothing.
	RetryJitter string `json:"retry_jitter,omitempty"`
}

// Match says which requests are meant. Every word that is there must hold; of a list, any one entry.
type Match struct {
	// Patterns of the original request path, such as `/api/*`.
	Path Words `json:"path,omitempty"`

	// Request methods. `GET` also matches HEAD.
	Method Words `json:"method,omitempty"`

	// Host names without port, exact or `*.example.com`.
	Host Words `json:"host,omitempty"`

	// Request headers by name, each with one value or a list of values. A value may end in `*`; an empty list means that
	// the header is there.
	Header map[string]Words `json:"header,omitempty"`

	// IP addresses of clients, single or as CIDR ranges.
	IP Words `json:"ip,omitempty"`

	// The tiers of clients, exactly as they are called.
	Tier Words `json:"tier,omitempty"`

	// The users, as the token or the key's owner names them.
	User Words `json:"user,omitempty"`

	// The names of API keys, never the keys themselves.
	APIKey Words `json:"api_key,omitempty"`

	// The tenants of clients, exactly as they are called.
	Tenant Words `json:"tenant,omitempty"`

	// Values that the proxy knows of the request, by name, each with one value or a list of values; an empty list means
	// that it is there. In Caddy they are placeholders, behind Envoy's rate limit filter the entries of a descriptor. A `*`
	// in a value stands for any run of characters.
	Attr map[string]Words `json:"attr,omitempty"`

	// Whether upper and lower case make two paths. Default: false.
	CaseSensitive bool `json:"case_sensitive,omitempty"`

	// `strict` makes `/a` and `/a/` two paths. By default they are one.
	TrailingSlash string `json:"trailing_slash,omitempty"`
}

// Cost is one entry of a rule's cost.
type Cost struct {
	// Which requests cost this much. Default: every request.
	Match *Match `json:"match,omitempty"`

	// How many units, at least 1. With a header, what a request costs if the header does not say.
	N int64 `json:"n"`

	// A request header that says how many units. It is believed from the peers in `trusted` only.
	Header string `json:"header,omitempty"`

	// The peers whose header is believed, as IP addresses or CIDR ranges. Required with `header`: clients would write
	// their own price.
	Trusted Words `json:"trusted,omitempty"`

	// The most that the header may say; more is not believed. Default: 2^40.
	Max *int64 `json:"max,omitempty"`
}
