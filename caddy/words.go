// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/penstock/penstock/internal/policy"
)

// PolicyWords are the words of a policy that stand in the app and in handlers themselves, with the meaning they have in
// a policy file. What a block says besides its rules holds for its own rules and its policy file. What the app says by
// its words of clients (`identify`, `trusted_proxies`, `trusted_hops`, `user`, `tenant`, `tier`, `exempt`, `block`), by
// `penalty`, `timezone`, `on_error`, `lease` and `headers` holds for every handler's as well. All that unless they say otherwise
// themselves.
type PolicyWords struct {
	// Whether the rules of this block and of its policy file are in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How to find out who is asking, tried in order: the first that finds someone names the client. Default: by IP
	// address.
	Identify []policy.Identify `json:"identify,omitempty"`

	// The proxies in front of this one, as addresses or CIDR ranges: the client's address is the right-most one of
	// X-Forwarded-For and the peer that is not in the list. Default: Caddy's own `client_ip`.
	TrustedProxies policy.Words `json:"trusted_proxies,omitempty"`

	// How many proxies stand in front of this one: the client's address is the one so many places left of the peer in
	// X-Forwarded-For and the peer, and the peer itself when the chain is shorter. Instead of `trusted_proxies`.
	TrustedHops *int `json:"trusted_hops,omitempty"`

	// Where the user is taken from of clients whose credential names none: one source, or a list tried in order.
	User policy.Sources `json:"user,omitempty"`

	// Where the tenant of clients is taken from whose credential names none: one source, or a list tried in order.
	Tenant policy.Sources `json:"tenant,omitempty"`

	// Where the tier of clients is taken from whose credential names none: one source, or a list tried in order.
	Tier policy.Sources `json:"tier,omitempty"`

	// The rules. Every enabled rule that matches a request is enforced, together with the others. A rule without a name
	// is called `default`, a further one `default-2`, and so on.
	Rules []policy.Rule `json:"rules,omitempty"`

	// Who is never limited by these rules: one block of words, or a list of them.
	Exempt policy.Lists `json:"exempt,omitempty"`

	// Who is refused with 403, whatever the rules say: one block of words, or a list of them.
	Block policy.Lists `json:"block,omitempty"`

	// Makes clients that keep running into their limits wait longer each time. Default: nobody does.
	Penalty *policy.Penalty `json:"penalty,omitempty"`

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
	Headers policy.Words `json:"headers,omitempty"`
}

// wordsOf takes a document apart; its name is the block's.
func wordsOf(d *policy.Document) PolicyWords {
	return PolicyWords{Enabled: d.Enabled, Identify: d.Identify, TrustedProxies: d.TrustedProxies, TrustedHops: d.TrustedHops,
		User: d.User, Tenant: d.Tenant, Tier: d.Tier, Rules: d.Rules, Exempt: d.Exempt, Block: d.Block, Penalty: d.Penalty,
		Timezone: d.Timezone, Enforce: d.Enforce, OnError: d.OnError, Lease: d.Lease, Headers: d.Headers}
}

// document returns the words as a policy of that name. It shares no slice of rules with the words, so that naming them
// does not change the configuration.
func (w *PolicyWords) document(name string) *policy.Document {
	return &policy.Document{Name: name, Enabled: w.Enabled, Identify: w.Identify, TrustedProxies: w.TrustedProxies,
		TrustedHops: w.TrustedHops, User: w.User, Tenant: w.Tenant, Tier: w.Tier, Rules: append([]policy.Rule(nil), w.Rules...),
		Exempt: w.Exempt, Block: w.Block, Penalty: w.Penalty, Timezone: w.Timezone, Enforce: w.Enforce, OnError: w.OnError,
		Lease: w.Lease, Headers: w.Headers}
}

// empty reports whether nothing is said.
func (w *PolicyWords) empty() bool { return reflect.ValueOf(*w).IsZero() }

// govern fills in what the policy file of a block does not say with what the block says.
func (w *PolicyWords) govern(d *policy.Document) {
	if d.Enabled == nil {
		d.Enabled = w.Enabled
	}
	d.Enforce = cmp.Or(d.Enforce, w.Enforce)
	inherit(d, w)
}

// inherit fills in what a policy does not say with what is said for everybody.
func inherit(d *policy.Document, from *PolicyWords) {
	if d.Identify == nil {
		d.Identify = from.Identify
	}
	if d.TrustedProxies == nil && d.TrustedHops == nil { // two ways to say one thing
		d.TrustedProxies, d.TrustedHops = from.TrustedProxies, from.TrustedHops
	}
	if d.User == nil {
		d.User = from.User
	}
	if d.Tenant == nil {
		d.Tenant = from.Tenant
	}
	if d.Tier == nil {
		d.Tier = from.Tier
	}
	if d.Exempt == nil {
		d.Exempt = from.Exempt
	}
	if d.Block == nil {
		d.Block = from.Block
	}
	// What is said for everybody has an effect on some only; what a policy itself says must have one.
	if d.Penalty == nil && d.CountsClients() {
		d.Penalty = from.Penalty
	}
	if d.Timezone == "" && d.CountsByCalendar() {
		d.Timezone = from.Timezone
	}
	if d.OnError == "" {
		d.OnError = from.OnError
	}
	d.Lease = cmp.Or(d.Lease, from.Lease)
	if d.Headers == nil {
		d.Headers = from.Headers
	}
}

// nameRules gives rules without a name one that is not taken.
func nameRules(d *policy.Document, taken func(string) bool) {
	own := make(map[string]bool, len(d.Rules))
	for i := range d.Rules {
		own[d.Rules[i].Name] = true
	}
	for i, n := 0, 1; i < len(d.Rules); i++ {
		if d.Rules[i].Name != "" {
			continue
		}
		for name := defaultName(n); ; name = defaultName(n) {
			n++
			if !own[name] && !taken(name) {
				d.Rules[i].Name = name
				break
			}
		}
	}
}

// defaultName is the name of the n-th rule without one, from 1.
func defaultName(n int) string {
	if n == 1 {
		return "default"
	}
	return fmt.Sprintf("default-%d", n)
}
