// SPDX-License-Identifier: Apache-2.0

package policyfile

import "github.com/penstock/penstock/internal/policyfile/syntax"

// Document is a policy as written in a file. Every field is optional. The zero Document limits
// nothing.
//
// The struct's fields are those of a policy file, of Caddy's JSON and, as subdirectives, of the
// Caddyfile. A Document is not safe for concurrent use while it is changed.
type Document struct {
	// The namespace of the policy's counters. Proxies with the same name and the same store share
	// their counters. Required when the store is shared.
	Name string `json:"name,omitempty"`

	// Whether the policy is in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How clients are identified. The ways are tried in order, and the first one that finds a
	// client is used. Default: by IP address.
	Identify []Identify `json:"identify,omitempty"`

	// The proxies in front of this one, as addresses or CIDR ranges. The client's address is the
	// right-most one that is not in this list, in the chain of the addresses in X-Forwarded-For and
	// the peer. Default: the client's address as determined by the proxy.
	TrustedProxies Words `json:"trusted_proxies,omitempty"`

	// The number of proxies in front of this one. The client's address is that many places to the
	// left of the peer, in the chain of the addresses in X-Forwarded-For and the peer. If the chain
	// is shorter, the client's address is the peer's. Use this instead of `trusted_proxies`.
	TrustedHops *int `json:"trusted_hops,omitempty"`

	// Where the user comes from if the client's credential names none: one source, or a list tried
	// in order.
	User Sources `json:"user,omitempty"`

	// Where the tenant comes from if the client's credential names none: one source, or a list
	// tried in order.
	Tenant Sources `json:"tenant,omitempty"`

	// Where the tier comes from if the client's credential names none: one source, or a list tried
	// in order.
	Tier Sources `json:"tier,omitempty"`

	// The rules. All enabled rules that match a request are enforced together.
	Rules []Rule `json:"rules,omitempty"`

	// Clients that this policy never limits: one block of fields, or a list of them.
	Exempt Lists `json:"exempt,omitempty"`

	// Clients that are denied with 403, regardless of the rules: one block of fields, or a list of
	// them.
	Block Lists `json:"block,omitempty"`

	// Makes clients that repeatedly exceed their limits wait longer each time. Default: no penalty.
	Penalty *Penalty `json:"penalty,omitempty"`

	// The time zone of calendar windows, such as `Europe/Berlin`. Default: UTC.
	Timezone string `json:"timezone,omitempty"`

	// Whether every matching rule counts (`all`, the default), or only one of them, as in a group
	// (`first`).
	Enforce string `json:"enforce,omitempty"`

	// What happens when the store cannot answer: `allow` (the default) counts in the memory of
	// this node and allows up to the limit, `local` allows only this node's share of the limit,
	// `deny` answers with 503.
	OnError string `json:"on_error,omitempty"`

	// Whether units of busy counters are taken from a shared store in advance (`auto`), so that
	// most requests are decided without a store call, or not (`off`, the default). Rules can
	// override this setting.
	Lease string `json:"lease,omitempty"`

	// The regions in which the policy is enforced, each with its share of the limits. Shares are
	// proportions: `{us: 50, eu: 30, ap: 20}`. Each process names its own region in its
	// configuration. Default: none.
	Regions Regions `json:"regions,omitempty"`

	// How limits hold over all regions: `share` gives each region its part of a limit, and with
	// `lease` regions also borrow units from each other. With `gossip`, each region has the whole
	// limit, and the regions tell each other what they have counted. Rules can override this
	// setting. Required with `regions`, here or in each rule with a limit.
	Across string `json:"across,omitempty"`

	// Which response header fields tell the client about its limits: `x-ratelimit`, `ietf`, or both
	// as a list (the default), or `none`.
	Headers Words `json:"headers,omitempty"`

	// Whether clients can have tiers, tenants and limits from the directory of the process that
	// enforces the policy. A process without a directory rejects the policy. Default: false; if the
	// configuration of the process has a directory, that directory applies to every policy.
	Directory bool `json:"directory,omitempty"`

	// Which decisions are reported as events, and which parts of a request an event shows. An empty
	// block reports every denial. Default: none.
	Events *Events `json:"events,omitempty"`

	// the parsed file, for the positions of problems found later; nil for a Document made in Go
	tree   *syntax.Node
	folder string // folder of the file from which it was read, or ""
	region string // the region for whose parts of the limits it is compiled; "" for whole limits
	origin string // the version that was published, or ""
	// byClient reports whether the front that has the document can decide by the candidate
	byClient  bool
	candidate *Candidate // decides the requests of a share of the clients; nil for none
}

// Rule is one rule of a policy.
type Rule struct {
	// The rule's name, unique in its policy. Name is part of the keys of the rule's counters, and
	// it is shown to clients.
	Name string `json:"name,omitempty"`

	// Which requests the rule applies to. Default: every request.
	Match *Match `json:"match,omitempty"`

	// What requests must have in common to share a counter: one or more of `client`, `user`,
	// `api_key`, `tenant`, `tier`, `ip`, `host`, `method`, `endpoint`, `header:NAME`, `attr:NAME`.
	// An empty list means one counter for all clients. Default: `client`.
	Per *Words `json:"per,omitempty"`

	// How much is allowed: one or several of `COUNT/WINDOW [burst N] [ALGORITHM]`, such as
	// `100/1m`. A request must pass all of them. A window can be a calendar unit: `5000/day`,
	// `week`, `month`, `year`.
	Limit Words `json:"limit,omitempty"`

	// Other limits for clients of a tier, by the tier's name: one or several limits, or the word
	// `unlimited`. Clients of a tier that is not listed have `limit`.
	Tiers Tiers `json:"tiers,omitempty"`

	// The names of rules that do not apply to requests to which this rule applies.
	Replaces Words `json:"replaces,omitempty"`

	// Rules with the same group compete, and only one of them counts.
	Group string `json:"group,omitempty"`

	// Within a group, the rule with the lowest priority wins. Default: 0.
	Priority int `json:"priority,omitempty"`

	// Whether the rule is in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How to treat a request that lacks a dimension of `per`: `client` (the default), `share` (all
	// requests without it share one counter), `skip` (the rule does not apply) or `deny`.
	Missing string `json:"missing,omitempty"`

	// Must be true when `per` names a request header. Unverified confirms that the author knows
	// that clients can forge the header.
	Unverified bool `json:"unverified,omitempty"`

	// How many units a request costs: a number, or a list of entries with `match` and `n`, of which
	// the first that matches counts. Default: 1.
	Cost Costs `json:"cost,omitempty"`

	// Reads the cost from the response. Until then an estimate is charged. Default: the cost does
	// not depend on the response.
	CostAfter *CostAfter `json:"cost_after,omitempty"`

	// The request counts only if its response has one of these statuses: `401`, `5xx`. Default: it
	// counts.
	CountIf *Statuses `json:"count_if,omitempty"`

	// The request does not count if its response has one of these statuses: `401`, `5xx`. Default:
	// it counts.
	RefundOn *Statuses `json:"refund_on,omitempty"`

	// What the rule does: `reject` (the default) denies requests over the limit, `throttle` delays
	// them for a while and then denies them, `log_only` counts and reports but denies nothing,
	// `allow` exempts from the rule's group, `block` denies every request that matches.
	Action string `json:"action,omitempty"`

	// How many requests may wait, and for how long. Only with `action: throttle`.
	Throttle *Throttle `json:"throttle,omitempty"`

	// What happens to the requests of this rule when the store cannot answer: `allow`, `local` or
	// `deny`. Default: as the policy says.
	OnError string `json:"on_error,omitempty"`

	// Whether units of the rule's busy counters are taken from a shared store in advance: `auto`
	// or `off`. Default: as the policy says.
	Lease string `json:"lease,omitempty"`

	// How the rule's limits hold over all regions: `share`, `lease` or `gossip`. Default: as the
	// policy says.
	Across string `json:"across,omitempty"`

	// The interval at which the regions tell each other what they have counted, such as `10s`. Only
	// with `across: gossip`. Default: 1s.
	Gossip string `json:"gossip,omitempty"`

	// The number of counters that replace each counter of the rule, 2 to 64. A Redis cluster keeps
	// them in different slots. Each shard has an equal part of the limit, so counts and bursts must
	// be multiples of this number. Default: one counter.
	Shards *int `json:"shards,omitempty"`

	// Whether clients see limits that are hidden by default: those for all clients (an empty `per`)
	// and those that are only logged. Default: false.
	Expose bool `json:"expose,omitempty"`

	// Whether the rule's limits are a quota. In Envoy's rate limit protocol, if several descriptors
	// of a request have a quota, the request passes if one of the quotas has room. In other fronts,
	// the rule denies like any other rule. Default: false.
	Quota bool `json:"quota,omitempty"`

	// The answer to a denied client. Default: a problem document with the limit and the time to
	// wait.
	Response *Response `json:"response,omitempty"`

	// The minimum time in Retry-After, such as `30s`. Default: until the limit has room.
	RetryAfter string `json:"retry_after,omitempty"`

	// The maximum random addition to Retry-After, such as `10s`, so that denied clients do not
	// return at the same time. Default: nothing.
	RetryJitter string `json:"retry_jitter,omitempty"`

	// Which decisions of this rule are reported as events, and which parts of a request they show.
	// Default: as the policy says.
	Events *Events `json:"events,omitempty"`
}

// Match selects requests. Every field that is set must match. A list matches if any of its entries
// does.
type Match struct {
	// Patterns of the original request path, such as `/api/*`.
	Path Words `json:"path,omitempty"`

	// Request methods. `GET` also matches HEAD.
	Method Words `json:"method,omitempty"`

	// Host names without port, exact or `*.example.com`.
	Host Words `json:"host,omitempty"`

	// Request headers by name, each with one value or a list of values. A value can end in `*`; an
	// empty list means that the header must be present.
	Header map[string]Words `json:"header,omitempty"`

	// IP addresses of clients, single or as CIDR ranges.
	IP Words `json:"ip,omitempty"`

	// The tiers of clients, as exact names.
	Tier Words `json:"tier,omitempty"`

	// The users, named as in the token or as the key's owner.
	User Words `json:"user,omitempty"`

	// The names of API keys, never the keys themselves.
	APIKey Words `json:"api_key,omitempty"`

	// The tenants of clients, as exact names.
	Tenant Words `json:"tenant,omitempty"`

	// Attributes that the proxy provides for the request, by name, each with one value or a list;
	// an empty list means that the attribute must be present. In Caddy they are placeholders,
	// behind Envoy's rate limit filter the entries of a descriptor. A `*` in a value matches any
	// characters.
	Attr map[string]Words `json:"attr,omitempty"`

	// Whether paths are case-sensitive. Default: false.
	CaseSensitive bool `json:"case_sensitive,omitempty"`

	// `strict` makes `/a` and `/a/` different paths. By default they are the same.
	TrailingSlash string `json:"trailing_slash,omitempty"`
}

// Cost is one entry of a rule's list of costs.
type Cost struct {
	// Which requests cost this much. Default: every request.
	Match *Match `json:"match,omitempty"`

	// How many units, at least 1. With `header`, the cost if the header has no valid number.
	N int64 `json:"n"`

	// A request header that contains the number of units. Header counts only if the peer is in
	// `trusted`.
	Header string `json:"header,omitempty"`

	// The peers whose header is used, as IP addresses or CIDR ranges. Required with `header`,
	// because otherwise clients could set their own cost.
	Trusted Words `json:"trusted,omitempty"`

	// The highest cost that the header can set; a higher number is ignored. Default: 2^40.
	Max *int64 `json:"max,omitempty"`
}
