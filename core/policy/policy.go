// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/counter"
)

// Policy is a parsed policy. core.Compile turns it into a core.Ruleset. Every default is a zero
// value. The zero Policy limits nothing.
type Policy struct {
	// Name is the namespace of the policy's counters. A store that several processes share requires
	// a name.
	Name     string
	Disabled bool
	Identify []Identify // the methods are tried in order; an empty list means by IP address
	Rules    []Rule
	Exempt   []Listed // clients that are never limited
	Block    []Listed // clients that are denied with 403, regardless of the rules
	Enforce  Enforce
	OnError  counter.OnError
	Headers  HeaderFamilies
	// TrustedProxies and TrustedHops select the proxies whose forwarded addresses are trusted. At
	// most one of them is set. With neither, the front determines the address: [Attributes.Peer].
	TrustedProxies []netip.Prefix
	TrustedHops    int
	// User, Tenant and Tier list the sources of these values for an identity without them, tried in
	// order.
	User, Tenant, Tier []Source
	Penalty            *counter.Penalty // nil: denials have no consequence
	Timezone           *Zone            // the time zone of calendar windows; nil means UTC
	Lease              Lease            // the setting for rules that do not set Lease; LeaseInherit means off
	// Directory reports whether clients can have records in a directory. A record can name a tier
	// and a tenant.
	Directory bool
	// Traced reports whether a front that delegates decisions also sends the trace of each
	// request. If so, [core.InputsOf] lists the header traceparent.
	Traced bool
}

// Identify is one way to identify a client.
type Identify struct {
	Kind IdentifyKind
	// Name is the header, cookie or attribute that contains the identifier (IdentifyHeader,
	// IdentifyCookie, IdentifyAttr).
	Name string
	// Unverified must be set for a header or cookie, because any client can send one.
	Unverified bool
	// IPv4Prefix and IPv6Prefix are the lengths of the address prefixes that count as one client.
	// If IPv4Prefix and IPv6Prefix are 0, the lengths are 32 and 64.
	IPv4Prefix, IPv6Prefix int
	// From lists where a request carries the credential, tried in order (IdentifyJWT,
	// IdentifyAPIKey). An empty list means the bearer token; for API keys, the header X-API-Key is
	// tried before the bearer token.
	From []CredentialSource
	// Verifier validates the credential (IdentifyJWT, IdentifyAPIKey).
	Verifier Verifier
	// DenyInvalid denies a request with 401 if its credential is not valid. Otherwise the next way
	// to identify the client is tried.
	DenyInvalid bool
}

// CredentialSource is a place in a request that may hold a credential.
type CredentialSource struct {
	Kind CredentialPlace
	Name string // name of the header, query parameter or cookie; empty for a bearer token
}

// CredentialPlace is a kind of place that may hold a credential.
type CredentialPlace uint8

// The places that may hold a credential.
const (
	FromBearer CredentialPlace = iota // the header Authorization: Bearer …
	FromHeader                        // the whole value of a header
	FromQuery                         // a query parameter
	FromCookie
)

// Source is the origin of a user, a tenant or a tier.
type Source struct {
	Kind SourceKind
	Name string // name of the header or attribute
	// Label is the index of a label in the host name, counted from 1 from the left (SourceHost).
	Label int
	// Unverified must be set for a header, because any client can send one.
	Unverified bool
}

// SourceKind is a kind of Source.
type SourceKind uint8

// The kinds of sources.
const (
	SourceAttr SourceKind = iota
	SourceHeader
	SourceHost
)

// IdentifyKind is a way to identify a client.
type IdentifyKind uint8

// The ways to identify a client.
const (
	IdentifyIP IdentifyKind = iota
	IdentifyHeader
	IdentifyAttr
	IdentifyCookie
	IdentifyJWT
	IdentifyAPIKey
)

// Rule is one rule of a policy.
type Rule struct {
	Name  string // unique in the policy; part of every key
	Match Match  // the zero Match selects every request
	Per   []Dimension
	// per: [] was written, so all clients share a counter; an empty Per otherwise means per client
	PerNone bool
	Limits  []counter.Limit
	// Replaces names the rules that do not apply to a request if this rule does, whether they are
	// in a group or not.
	Replaces []string
	Group    string // only one rule of a group applies
	Priority int    // within a group the lowest value wins
	Disabled bool
	Missing  Missing
	// Unverified must be set when Per names a request header. For an attribute, that depends on the
	// front.
	Unverified bool
	Cost       []Cost // the first entry that matches applies; if none does, the cost is 1
	Action     Action
	OnError    counter.OnError // OnErrorInherit selects the policy's setting
	Lease      Lease           // LeaseInherit selects the policy's setting
	// Shards is the number of shards of each of the rule's counters, 2 to ShardsMax. If Shards is
	// 0, there are no shards.
	Shards int
	// Region is set if Limits and Tiers are the parts of one region. Filters do not use it.
	Region InRegion
	Expose bool // whether to show limits that are hidden by default (PerNone, log_only)
	// Quota makes the rule's limits an alternative for a request with descriptors: the request
	// passes if at least one rule with Quota has room. For a request without descriptors, each of
	// these rules denies on its own.
	Quota bool
	// Tiers holds the limits of tiers, which replace Limits for the clients of these tiers. Clients
	// of other tiers have Limits.
	Tiers     map[string]LimitSet
	CostAfter *CostAfter // how to read the cost from the response; nil if the cost is known in advance
	CountIf   []Statuses // the request counts only if the response has one of these; if empty, the request always counts
	RefundOn  []Statuses // the request does not count if the response has one of these
	Throttle  *Throttle  // for ActionThrottle
	// the response to a denied client; nil means the problem document of docs/reference/policy.md
	Response *Response
	// RetryAfter is the minimum value of Retry-After in a denial; if the actual wait is longer,
	// the actual wait is sent. RetryJitter is the upper bound of a random addition that spreads the
	// clients' retries.
	RetryAfter, RetryJitter counter.Micros
}

// LimitSet is a list of limits, or no limit at all.
type LimitSet struct {
	Limits    []counter.Limit
	Unlimited bool // if set, Limits is empty
}

// CostAfter describes how to read a request's cost from its response. Estimate is charged before
// the request goes on. When the cost is known, the difference is charged or refunded. Exactly one
// of Header and JSON is set.
type CostAfter struct {
	Header string // a response header
	// path of a number in a JSON body, such as usage.total_tokens; in an event stream, the last one
	// counts
	JSON string
	// Estimate is charged before the request goes on. Default is charged if the response has no
	// cost between 0 and Max. All three are between 1 and CountMax. A Default of 0 means Estimate,
	// and a Max of 0 means CountMax.
	Estimate, Default, Max int64
	// Unread is charged if the cost could not be read for a reason that a client can cause. If the
	// part of the response that was read contains a greater cost, that cost is charged instead.
	// Unread is between 0 and CountMax. If Unread is 0, it defaults to Max, or to Default if Max is
	// 0 too.
	Unread int64
}

// Statuses is a range of response statuses, both ends included: 401 to 401, 500 to 599.
type Statuses struct{ From, To int }

// Throttle bounds how many requests may wait instead of being denied, and for how long.
type Throttle struct {
	MaxDelay   counter.Micros // at least 1 ms, at most 1 min
	MaxWaiting int            // for one counter on one node, 1 to 100,000
}

// Response replaces the problem document in the response to a denied client. If a field has its
// zero value, that part of the response is the default.
type Response struct {
	Status      int // 400 to 599
	Message     string
	Body        string // at most 64 KiB; Message must then be empty
	ContentType string
	Headers     []Field
}

// Field is an additional header field of a response.
type Field struct{ Name, Value string }

// Match selects the requests that a rule applies to. Every condition that is set must hold. A list
// is satisfied if one of its entries is.
type Match struct {
	Path   []string // patterns; see docs/reference/policy.md
	Method []string // in upper case; GET also matches HEAD
	Host   []string // exact or like "*.example.com", without port; case is ignored
	Header []HeaderMatch
	IP     []netip.Prefix
	// CaseSensitive makes Path compare letters exactly.
	CaseSensitive bool
	// StrictSlash makes /a and /a/ different paths.
	StrictSlash bool
	// Tier, User, APIKey and Tenant are exact values of the client, such as "premium".
	Tier, User, APIKey, Tenant []string
	Attr                       []AttrMatch
}

// HeaderMatch is a request header and its permitted values. Without values, the header must be
// present. A value may end in "*".
type HeaderMatch struct {
	Name   string
	Values []string
}

// AttrMatch is an attribute, named as in [Attributes], and its permitted values. Without values,
// the attribute must be present. A star in a value matches any run of characters. Letter case is
// significant.
type AttrMatch struct {
	Name   string
	Values []string
}

// Cost is the cost of a request that satisfies Match.
type Cost struct {
	Match Match
	N     int64 // at least 1
	// Header is a request header that holds the cost. Header is read only if the peer is in Trusted
	// (see [Attributes.Remote]). For other peers, or if the header is not a whole number from 1 to
	// Max, the cost is N. If Header is "", the cost is always N.
	Header  string
	Trusted []netip.Prefix
	Max     int64 // 0 means CountMax
}

// Listed is an entry of Exempt or Block. A Listed applies to every client that one of its lists
// names.
type Listed struct {
	IP                         []netip.Prefix
	User, APIKey, Tier, Tenant []string
	Reason                     string         // for logs, metrics and explain; never for clients
	Until                      counter.Micros // when the entry ends; 0 means never
}

// DimensionKind is a property of requests. A rule that counts by it has one counter for each value.
type DimensionKind uint8

// The dimensions, in the order of their values in a key. The dimensions of a client come first, so
// that the counters of a client share a hash slot.
const (
	PerClient DimensionKind = iota
	PerUser
	PerAPIKey
	PerIP
	PerTenant
	PerTier
	PerHost
	PerMethod
	PerEndpoint
	PerHeader
	PerAttr
)

// Dimension is one property by which a rule counts.
type Dimension struct {
	Kind DimensionKind
	Name string // PerHeader, PerAttr
}

// Missing selects what happens when a request lacks a dimension.
type Missing uint8

// The alternatives for a missing dimension.
const (
	MissingClient Missing = iota // use the identified client, so omitting a header gains nothing
	MissingShare                 // all clients without the dimension share one counter
	MissingSkip                  // the rule does not apply
	MissingDeny                  // the request is denied
)

// Action is the effect of a rule.
type Action uint8

// The actions.
const (
	ActionReject   Action = iota // deny requests over the limit
	ActionLogOnly                // count and report, but deny nothing
	ActionAllow                  // exempt the matching requests from the rule's group
	ActionBlock                  // deny every matching request with 403
	ActionThrottle               // let requests over the limit wait for a while, then deny them
)

// Enforce selects whether all matching rules apply or only the first.
type Enforce uint8

// The ways to enforce.
const (
	EnforceAll   Enforce = iota
	EnforceFirst         // only the first matching rule applies, as in one group of all rules
)

// HeaderFamilies is a set of response header families. The zero set stands for both families.
type HeaderFamilies uint8

// The families of response headers.
const (
	HeadersX    HeaderFamilies = 1 << iota // X-RateLimit-*
	HeadersIETF                            // RateLimit and RateLimit-Policy
	HeadersNone
)

// Problem is one error in a policy, described so that its author can fix it.
type Problem struct {
	Path   string // location, such as rules[2].limit[0]
	Value  string // the value found there, as written; "" if none
	Why    string // what is wrong with it
	Remedy string // what to write instead; may be empty
	Place  string // file and line, where known: policy.yaml:12
	Rule   string // the name of the rule that contains Path, where known
}

// String returns the problem in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Place != "" {
		b.WriteString(p.Place + ": ")
	}
	rule, rest, _ := strings.Cut(p.Path, "]")
	if p.Rule != "" && strings.HasPrefix(rule, "rules[") {
		b.WriteString(rule + "] " + strconv.Quote(p.Rule) + rest)
	} else {
		b.WriteString(p.Path)
	}
	if p.Value != "" {
		b.WriteString(": " + strconv.Quote(p.Value))
	}
	b.WriteString(": " + p.Why)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// Problems is a list of errors in a policy. As an error it prints one problem per line.
type Problems []Problem

// Error lists the problems, one per line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// DimensionLabels holds the names of the dimensions in policies and keys.
var DimensionLabels = [...]string{PerClient: "client", PerUser: "user", PerAPIKey: "api_key", PerTenant: "tenant",
	PerTier: "tier", PerIP: "ip", PerHost: "host", PerMethod: "method",
	PerEndpoint: "endpoint"}

// Lease selects whether a node may charge units of a rule's limits in advance and then decide
// without the store. A Lease does not weaken a limit, because the units are charged first.
type Lease uint8

// The ways to lease.
const (
	LeaseInherit Lease = iota // the policy's setting; in a policy: off
	LeaseOff
	LeaseAuto // lease the limits that are leasable ([counter.Limit.Leasable]) and often used
)

// Leasable reports whether units of a limit of the rule may be leased. A token bucket cannot be
// leased if the response settles the charge, because refunds of leased units would restore too
// little of a bucket that is used frequently.
func (r *Rule) Leasable(l *counter.Limit) bool {
	return l.LeasableWhen(r.CostAfter != nil || len(r.CountIf)+len(r.RefundOn) > 0)
}

// Clients returns the number of clients and address ranges that the entry names.
func (e *Listed) Clients() int {
	return len(e.IP) + len(e.User) + len(e.APIKey) + len(e.Tier) + len(e.Tenant)
}

// The content types of responses to denied requests.
const (
	ContentProblem = "application/problem+json"
	ContentJSON    = "application/json"
	ContentText    = "text/plain; charset=utf-8"
)

// Covers reports whether one of the ranges contains the status.
func Covers(list []Statuses, status int) bool {
	for _, s := range list {
		if status >= s.From && status <= s.To {
			return true
		}
	}
	return false
}

// IdentifyWords holds the names of the ways to identify a client in a policy.
var IdentifyWords = [...]string{IdentifyIP: "ip", IdentifyHeader: "header", IdentifyAttr: "attr",
	IdentifyCookie: "cookie", IdentifyJWT: "jwt", IdentifyAPIKey: "api_key"}
