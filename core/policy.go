// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Policy is one policy, already read from its document: what [Compile] turns into a [Ruleset]. The zero Policy limits
// nothing. Every default is a zero value here.
type Policy struct {
	// Name is the namespace of the policy's counters. Stores shared by several processes need one.
	Name     string
	Disabled bool
	Identify []Identify // tried in order; empty means by IP address
	Rules    []Rule
	Exempt   []Listed // who is never limited
	Block    []Listed // who is refused with 403, whatever the rules say
	Enforce  Enforce
	OnError  OnError
	Headers  HeaderFamilies
	// TrustedProxies and TrustedHops say whose word about a client's address is believed; at most one of them is set.
	// With neither it is the front's: [Attributes.Peer].
	TrustedProxies []netip.Prefix
	TrustedHops    int
	// User, Tenant and Tier are where these are taken from when the identity has none, tried in order.
	User, Tenant, Tier []Source
	Penalty            *Penalty       // nil: refusals have no consequence
	Timezone           *time.Location // of calendar windows; nil means UTC
	Lease              Lease          // of rules that do not say; LeaseInherit means off
}

// Identify is one way of finding out who is asking. Exactly one of its kinds is set.
type Identify struct {
	Kind IdentifyKind
	// Name is the header, cookie or attribute that holds the identifier (IdentifyHeader, IdentifyCookie, IdentifyAttr).
	Name string
	// Unverified must be set for a header or cookie: anyone can write it.
	Unverified bool
	// IPv4Prefix and IPv6Prefix are how many leading bits of an address count as one client; 0 means 32 and 64.
	IPv4Prefix, IPv6Prefix int
	// From says where a request carries the credential, tried in order (IdentifyJWT, IdentifyAPIKey); none means the
	// bearer token, for API keys also the header X-API-Key, which is tried first.
	From []CredentialSource
	// Verifier says whose a credential is (IdentifyJWT, IdentifyAPIKey).
	Verifier Verifier
	// DenyInvalid refuses a request with 401 if its credential does not verify, where otherwise the next way is tried.
	DenyInvalid bool
}

// CredentialSource is a place in a request where a credential can be.
type CredentialSource struct {
	Kind CredentialPlace
	Name string // of the header, query parameter or cookie; a bearer token has none
}

// CredentialPlace names the places where a credential can be.
type CredentialPlace uint8

// The places where a credential can be.
const (
	FromBearer CredentialPlace = iota // the header Authorization: Bearer …
	FromHeader                        // the whole value of a header
	FromQuery                         // a query parameter
	FromCookie
)

// Source is where a user, a tenant or a tier is taken from.
type Source struct {
	Kind SourceKind
	Name string // of the header or attribute
	// Label is which label of the host's name, counted from the left from 1 (SourceHost).
	Label int
	// Unverified must be set for a header: anyone can write it.
	Unverified bool
}

// SourceKind names the kinds of sources.
type SourceKind uint8

// The kinds of sources.
const (
	SourceAttr SourceKind = iota
	SourceHeader
	SourceHost
)

// IdentifyKind names a way of identifying a client.
type IdentifyKind uint8

// The ways of identifying a client.
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
	Name    string // unique in the policy; part of every key
	Match   Match  // zero: every request
	Per     []Dimension
	PerNone bool // per: [] was written: one counter for everybody. An empty Per otherwise means per client.
	Limits  []Limit
	// Replaces names rules that are out of play where this one is in play, be they in a group or not.
	Replaces []string
	Group    string // rules of one group compete, one wins
	Priority int    // within a group the lowest wins
	Disabled bool
	Missing  Missing
	// Unverified must be set when Per names a request header. Beside attributes only a front knows whether it must.
	Unverified bool
	Cost       []Cost // the first that matches counts; none, or none matching, is 1
	Action     Action
	OnError    OnError // OnErrorInherit: the policy's
	Lease      Lease   // LeaseInherit: the policy's
	// Shards is how many counters each of the rule's is spread over, 2 to ShardsMax; 0: none is.
	Shards int
	Expose bool // show limits that are hidden by default (per nobody, log_only)
	// Quota makes the rule's limits one of several ways to go on for a request with descriptors: of those with quota, one with
	// room is enough. A request without descriptors is refused by each.
	Quota bool
	// Tiers are the limits of clients of a tier, in place of Limits. A client of a tier that is not named has Limits.
	Tiers     map[string]LimitSet
	CostAfter *CostAfter // the cost as the response says it; nil: it is known before
	CountIf   []Statuses // the request counts only if the response has one of these; none: always
	RefundOn  []Statuses // the request does not count if the response has one of these
	Throttle  *Throttle  // ActionThrottle
	Response  *Response  // what a refused client is answered; nil: the problem of docs/policy.md
	// RetryAfter is what a refused client is told to wait at least, in place of the true wait if that is shorter;
	// RetryJitter spreads clients over that much more.
	RetryAfter, RetryJitter Micros
}

// LimitSet is limits, or none at all.
type LimitSet struct {
	Limits    []Limit
	Unlimited bool // then Limits is empty
}

// CostAfter says how to learn from a response what the request cost. Until then Estimate is charged; then the difference
// is charged or given back. Exactly one of Header and JSON is set.
type CostAfter struct {
	Header string // a response header
	JSON   string // a number in the body's JSON by path: usage.total_tokens; of an event stream the last that has it
	// Estimate is reserved before the request goes on; Default is charged if the response does not say a cost between 0
	// and Max. All are 1 to CountMax; Default 0 means Estimate, Max 0 means CountMax.
	Estimate, Default, Max int64
	// Unread is charged if the cost could not be read for a reason that a client can bring about, or what was read of it if
	// that is more: 0 to CountMax; 0 means Max, or Default if that is not set either.
	Unread int64
}

// Statuses is a range of response statuses, both ends included: 401 to 401, 500 to 599.
type Statuses struct{ From, To int }

// Throttle says how long requests may wait instead of being refused.
type Throttle struct {
	MaxDelay   Micros // at least 1 ms, at most 1 min
	MaxWaiting int    // for one counter on one node, 1 to 100,000
}

// Response is what a refused client is answered in place of the problem document. The zero value of each field leaves
// that part as it is.
type Response struct {
	Status      int // 400 to 599
	Message     string
	Body        string // at most 64 KiB; with it, Message is not set
	ContentType string
	Headers     []Field
}

// Field is a header field that a response gets besides.
type Field struct{ Name, Value string }

// Penalty makes clients that keep running into their limits wait longer each time.
type Penalty struct {
	Window      Micros  // how long a violation is remembered
	Threshold   int64   // violations from which on there is a penalty
	Multipliers []int64 // of the wait, by how far beyond the threshold; the last one holds for all further
	Max         Micros  // the longest penalty; 0 means Window
}

// Match says which requests a rule is for: every condition that is set must hold, and of a list any one entry.
type Match struct {
	Path   []string // patterns; see docs/policy.md
	Method []string // upper case; GET also matches HEAD
	Host   []string // exact or "*.example.com", without port, any case
	Header []HeaderMatch
	IP     []netip.Prefix
	// CaseSensitive makes Path compare letters exactly.
	CaseSensitive bool
	// StrictSlash makes /a and /a/ two paths.
	StrictSlash bool
	// Tier, User, APIKey and Tenant are those of the client: "premium". Exact.
	Tier, User, APIKey, Tenant []string
	Attr                       []AttrMatch
}

// HeaderMatch is a request header and the values it may have; no values: it is present. A value may end in "*".
type HeaderMatch struct {
	Name   string
	Values []string
}

// AttrMatch is an attribute, by the name that [Attributes] knows it by, and the values it may have; no values: it is present.
// A star in a value stands for any run of characters. The case of letters counts.
type AttrMatch struct {
	Name   string
	Values []string
}

// Cost is what a request costs if Match holds.
type Cost struct {
	Match Match
	N     int64 // at least 1
	// Header is a request header with the cost, believed from the peers in Trusted only (see [Attributes.Remote]); from
	// others, and when it says no whole number from 1 to Max, N is the cost. "" means N always.
	Header  string
	Trusted []netip.Prefix
	Max     int64 // 0 means CountMax
}

// Listed is an entry of a list of clients: everybody of whom one of its lists tells.
type Listed struct {
	IP                         []netip.Prefix
	User, APIKey, Tier, Tenant []string
	Reason                     string // for logs, metrics and explain; never for clients
	Until                      Micros // when the entry ends; 0 is never
}

// DimensionKind names something requests are told apart by.
type DimensionKind uint8

// The dimensions, in the order in which they stand in a key: what tells clients apart comes first, so that one client's
// counters share a slot.
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

// Dimension is one entry of a rule's per.
type Dimension struct {
	Kind DimensionKind
	Name string // PerHeader, PerAttr
}

// Missing says what stands in for a dimension that a request lacks.
type Missing uint8

// What can stand in for a missing dimension.
const (
	MissingClient Missing = iota // the client as identified: leaving a header out wins nothing
	MissingShare                 // everybody who lacks it shares one counter
	MissingSkip                  // the rule does not apply
	MissingDeny                  // the request is refused
)

// Action says what a rule does.
type Action uint8

// The actions.
const (
	ActionReject   Action = iota // refuse what is over the limit
	ActionLogOnly                // count and report, refuse nothing
	ActionAllow                  // exempt from the rule's group
	ActionBlock                  // refuse everything that matches, with 403
	ActionThrottle               // let what is over the limit wait for a while, and refuse it after
)

// Enforce says whether all matching rules count or the first only.
type Enforce uint8

// The ways to enforce.
const (
	EnforceAll   Enforce = iota
	EnforceFirst         // all rules are one group
)

// OnError says what happens when the store cannot answer.
type OnError uint8

// What can happen when the store cannot answer. Of the limits that a request is under, the strictest holds.
const (
	OnErrorInherit OnError = iota // the policy's; for a policy: allow
	OnErrorAllow
	OnErrorDeny
	OnErrorLocal // this process counts by itself, for its share of the limit
)

// HeaderFamilies is a set of response header families. The zero set means both.
type HeaderFamilies uint8

// The families of response headers.
const (
	HeadersX    HeaderFamilies = 1 << iota // X-RateLimit-*
	HeadersIETF                            // RateLimit and RateLimit-Policy
	HeadersNone
)

// Problem is one thing that is wrong with a policy, said so that its author can mend it.
type Problem struct {
	Path   string // where: rules[2].limit[0]
	Value  string // what was found there, as written; "" if nothing was
	Why    string // what is wrong with it
	Remedy string // what to write instead; may be empty
	Place  string // file and line, where known: policy.yaml:12
}

// String returns the problem in one line.
func (p Problem) String() string {
	var b strings.Builder
	if p.Place != "" {
		b.WriteString(p.Place + ": ")
	}
	b.WriteString(p.Path)
	if p.Value != "" {
		b.WriteString(": " + strconv.Quote(p.Value))
	}
	b.WriteString(": " + p.Why)
	if p.Remedy != "" {
		b.WriteString("; " + p.Remedy)
	}
	return b.String()
}

// Problems is every problem found in a policy; as an error it prints one a line.
type Problems []Problem

// Error lists the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}
