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

	// The rules. Every enabled rule that matches a request is enforced, together with the others.
	Rules []Rule `json:"rules,omitempty"`

	// Who is never limited by this policy.
	Exempt *Exempt `json:"exempt,omitempty"`

	// Whether every matching rule counts (`all`, the default) or only the first one (`first`).
	Enforce string `json:"enforce,omitempty"`

	// What happens when the store cannot answer: `allow` (the default) lets requests through, `deny` answers 503.
	OnError string `json:"on_error,omitempty"`

	// Which response header fields tell the client about its limits: `x-ratelimit`, `ietf`, or both as a list (the
	// default), or `none`.
	Headers Words `json:"headers,omitempty"`

	tree *Node // what was read, for the places of problems found later; nil for a Document made in Go
}

// Identify is one way of finding out who is asking. It has exactly one of its words; the plain word `ip` is short for
// an `ip` with nothing in it.
type Identify struct {
	// By IP address.
	IP *IdentifyIP `json:"ip,omitempty"`

	// By the value of a request header.
	Header *IdentifyHeader `json:"header,omitempty"`

	// By a value that the proxy itself knows: in Caddy the name of a placeholder without its braces, such as
	// `http.auth.user.id`.
	Attr string `json:"attr,omitempty"`
}

// IdentifyIP says how much of an IP address is one client.
type IdentifyIP struct {
	// How many leading bits of an IPv4 address are one client: 1 to 32. Default: 32.
	IPv4Prefix *int `json:"ipv4_prefix,omitempty"`

	// How many leading bits of an IPv6 address are one client: 1 to 128. Default: 64, the least a household is given.
	IPv6Prefix *int `json:"ipv6_prefix,omitempty"`
}

// IdentifyHeader names a request header that says who is asking.
type IdentifyHeader struct {
	// The name of the header.
	Name string `json:"name,omitempty"`

	// Must be true. It says that you know that anyone can write a request header, and so pretend to be anyone.
	Unverified bool `json:"unverified,omitempty"`
}

// Rule is one rule of a policy.
type Rule struct {
	// The rule's name, unique in its policy. It is part of the keys of the rule's counters, and it is shown to clients.
	Name string `json:"name,omitempty"`

	// Which requests the rule is for. Default: every request.
	Match *Match `json:"match,omitempty"`

	// What shares a counter: one or several of `client`, `ip`, `host`, `method`, `endpoint`, `header:NAME`, `attr:NAME`.
	// An empty list means one counter for everybody. Default: `client`.
	Per *Words `json:"per,omitempty"`

	// How much is allowed: one or several of `COUNT/WINDOW [burst N] [ALGORITHM]`, such as `100/1m`. A request must pass
	// every one of them.
	Limit Words `json:"limit,omitempty"`

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

	// What the rule does: `reject` (the default) refuses what is over the limit, `log_only` counts and reports but
	// refuses nothing, `allow` exempts from the rule's group, `block` refuses everything that matches.
	Action string `json:"action,omitempty"`

	// What happens to the requests of this rule when the store cannot answer: `allow` or `deny`. Default: as the policy
	// says.
	OnError string `json:"on_error,omitempty"`

	// Whether clients are told about limits that are hidden by default: those for everybody (an empty `per`) and those
	// that are only logged. Default: false.
	Expose bool `json:"expose,omitempty"`
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

	// Whether upper and lower case make two paths. Default: false.
	CaseSensitive bool `json:"case_sensitive,omitempty"`

	// `strict` makes `/a` and `/a/` two paths. By default they are one.
	TrailingSlash string `json:"trailing_slash,omitempty"`
}

// Cost is one entry of a rule's cost.
type Cost struct {
	// Which requests cost this much. Default: every request.
	Match *Match `json:"match,omitempty"`

	// How many units, at least 1.
	N int64 `json:"n"`
}

// Exempt lists who is never limited.
type Exempt struct {
	// IP addresses, single or as CIDR ranges.
	IP Words `json:"ip,omitempty"`
}
