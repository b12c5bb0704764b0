// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/netip"
	"strings"
)

// Policy is one policy, already read from its document: what [Compile] turns into a [Ruleset]. The zero Policy limits
// nothing. Every default is a zero value here.
type Policy struct {
	// Name is the namespace of the policy's counters. Stores shared by several processes need one.
	Name     string
	Disabled bool
	Identify []Identify // tried in order; empty means by IP address
	Rules    []Rule
	Exempt   Exempt
	Enforce  Enforce
	OnError  OnError
	Headers  HeaderFamilies
}

// Identify is one way of finding out who is asking. Exactly one of its kinds is set.
type Identify struct {
	Kind IdentifyKind
	// Name is the header or attribute that holds the identifier (IdentifyHeader, IdentifyAttr).
	Name string
	// Unverified must be set for a header: anyone can write it.
	Unverified bool
	// IPv4Prefix and IPv6Prefix are how many leading bits of an address count as one client; 0 means 32 and 64.
	IPv4Prefix, IPv6Prefix int
}

// IdentifyKind names a way of identifying a client.
type IdentifyKind uint8

// The ways of identifying a client in this version.
const (
	IdentifyIP IdentifyKind = iota
	IdentifyHeader
	IdentifyAttr
)

// Rule is one rule of a policy.
type Rule struct {
	Name     string // unique in the policy; part of every key
	Match    Match  // zero: every request
	Per      []Dimension
	PerNone  bool // per: [] was written: one counter for everybody. An empty Per otherwise means per client.
	Limits   []Limit
	Group    string // rules of one group compete, one wins
	Priority int    // within a group the lowest wins
	Disabled bool
	Missing  Missing
	// Unverified must be set when Per names a request header.
	Unverified bool
	Cost       []Cost // the first that matches counts; none, or none matching, is 1
	Action     Action
	OnError    OnError // OnErrorInherit: the policy's
	Expose     bool    // show limits that are hidden by default (per nobody, log_only)
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
}

// HeaderMatch is a request header and the values it may have; no values: it is present. A value may end in "*".
type HeaderMatch struct {
	Name   string
	Values []string
}

// Cost is what a request costs if Match holds.
type Cost struct {
	Match Match
	N     int64 // at least 1
}

// Exempt lists who is never limited by the policy.
type Exempt struct {
	IP []netip.Prefix
}

// DimensionKind names something requests are told apart by.
type DimensionKind uint8

// The dimensions of this version, in the order in which they stand in a key.
const (
	PerClient DimensionKind = iota
	PerIP
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

// The actions of this version.
const (
	ActionReject  Action = iota // refuse what is over the limit
	ActionLogOnly               // count and report, refuse nothing
	ActionAllow                 // exempt from the rule's group
	ActionBlock                 // refuse everything that matches, with 403
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
		fmt.Fprintf(&b, ": %q", p.Value)
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
