// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"cmp"
	"fmt"
	"reflect"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
)

// PolicyWords are the policy settings that may be written directly in the app and in handlers.
// These settings have the same meaning as in a policy file.
//
// The settings of a block apply to its own rules and to its policy file. Some of the app's settings
// also apply to every handler: `identify`, `trusted_proxies`, `trusted_hops`, `user`, `tenant`,
// `tier`, `exempt`, `block`, `penalty`, `timezone`, `on_error`, `lease`, `regions`, `across`,
// `headers` and `events`. A setting in a handler or a policy file takes precedence.
type PolicyWords struct {
	// Whether the rules of this block and of its policy file are in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How clients are identified. Methods are tried in order, and the first that succeeds
	// identifies the client. Default: by IP address.
	Identify []policyfile.Identify `json:"identify,omitempty"`

	// The proxies in front of this server, as addresses or CIDR ranges. In the chain of
	// X-Forwarded-For followed by the peer's address, the client's address is the right-most one
	// that is not in this list. Default: Caddy's own `client_ip`.
	TrustedProxies policyfile.Words `json:"trusted_proxies,omitempty"`

	// The number of proxies in front of this server. In the chain of X-Forwarded-For followed by
	// the peer's address, the client's address is that many places to the left of the peer's. If
	// the chain is shorter, the client's address is that of the peer. Use this instead of
	// `trusted_proxies`.
	TrustedHops *int `json:"trusted_hops,omitempty"`

	// The source of the user if the credential names none: one source, or a list tried in order.
	User policyfile.Sources `json:"user,omitempty"`

	// The source of the tenant if the credential names none: one source, or a list tried in order.
	Tenant policyfile.Sources `json:"tenant,omitempty"`

	// The source of the tier if the credential names none: one source, or a list tried in order.
	Tier policyfile.Sources `json:"tier,omitempty"`

	// The rules. Every enabled rule that matches a request is enforced. Rules without a name are
	// called `default`, `default-2` and so on.
	Rules []policyfile.Rule `json:"rules,omitempty"`

	// Clients that these rules never limit: one set of conditions, or a list of them.
	Exempt policyfile.Lists `json:"exempt,omitempty"`

	// Clients that always receive 403: one set of conditions, or a list of them.
	Block policyfile.Lists `json:"block,omitempty"`

	// Makes clients that keep exceeding their limits wait longer each time. Default: no penalty.
	Penalty *policyfile.Penalty `json:"penalty,omitempty"`

	// The time zone of calendar windows, such as `Europe/Berlin`. Default: UTC.
	Timezone string `json:"timezone,omitempty"`

	// Whether every matching rule counts (`all`, the default) or only the first one (`first`).
	Enforce string `json:"enforce,omitempty"`

	// What happens while the store does not answer. With `allow` (the default), this node counts in
	// its own memory and allows up to the limit. With `local`, it allows only its share of the
	// limit. With `deny`, it answers 503.
	OnError string `json:"on_error,omitempty"`

	// Whether a process takes units of busy counters from a shared store in advance. With `auto`,
	// it does, and decides most requests without a store call. With `off` (the default), it does
	// not. Rules may override it.
	Lease string `json:"lease,omitempty"`

	// The regions in which the policy is enforced, each with its share of the limits, relative to
	// the shares of the others. The setting `region` of the app names the server's own region.
	// Default: none.
	Regions policyfile.Regions `json:"regions,omitempty"`

	// How limits hold over all regions. With `share`, each region has its part of a limit. With
	// `lease`, regions also borrow units from each other. With `gossip`, each region has the whole
	// limit, and the regions tell each other what they have counted. Rules may override it.
	// Required with `regions`, here or in each rule with a limit.
	Across string `json:"across,omitempty"`

	// The response header fields that report limits to the client: `x-ratelimit`, `ietf`, a list of
	// both (the default), or `none`.
	Headers policyfile.Words `json:"headers,omitempty"`

	// Which decisions are reported as events to the log `penstock.events`, and which parts of a
	// request an event shows. An empty block reports every denial. Default: none.
	Events *policyfile.Events `json:"events,omitempty"`
}

// wordsOf returns the settings of a document, except its name.
func wordsOf(d *policyfile.Document) PolicyWords {
	return PolicyWords{Enabled: d.Enabled, Identify: d.Identify, TrustedProxies: d.TrustedProxies, TrustedHops: d.TrustedHops,
		User: d.User, Tenant: d.Tenant, Tier: d.Tier, Rules: d.Rules, Exempt: d.Exempt, Block: d.Block, Penalty: d.Penalty,
		Timezone: d.Timezone, Enforce: d.Enforce, OnError: d.OnError, Lease: d.Lease, Regions: d.Regions,
		Across: d.Across, Headers: d.Headers, Events: d.Events}
}

// PolicyWords.document returns the settings as a policy with the given name. It copies the rules,
// so that naming them does not change the configuration.
func (w *PolicyWords) document(name string) *policyfile.Document {
	return &policyfile.Document{Name: name, Enabled: w.Enabled, Identify: w.Identify, TrustedProxies: w.TrustedProxies,
		TrustedHops: w.TrustedHops, User: w.User, Tenant: w.Tenant, Tier: w.Tier, Rules: append([]policyfile.Rule(nil), w.Rules...),
		Exempt: w.Exempt, Block: w.Block, Penalty: w.Penalty, Timezone: w.Timezone, Enforce: w.Enforce, OnError: w.OnError,
		Lease: w.Lease, Regions: w.Regions, Across: w.Across, Headers: w.Headers, Events: w.Events}
}

// PolicyWords.empty reports whether w has no settings.
func (w *PolicyWords) empty() bool { return reflect.ValueOf(*w).IsZero() }

// fillFromBlock copies to d, the policy file of a block, those settings of the block that d omits.
func (w *PolicyWords) fillFromBlock(d *policyfile.Document) {
	if d.Enabled == nil {
		d.Enabled = w.Enabled
	}
	d.Enforce = cmp.Or(d.Enforce, w.Enforce)
	fillFromApp(d, w)
}

// fillFromApp copies to the policy d those settings of the app that d omits.
func fillFromApp(d *policyfile.Document, from *PolicyWords) {
	if d.Identify == nil {
		d.Identify = from.Identify
	}
	if d.TrustedProxies == nil && d.TrustedHops == nil { // alternatives: either of them replaces both of the app's
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
	// Inherited settings that have no effect on this policy are left out. A policy that contained
	// them would be invalid.
	if d.Exempt == nil {
		d.Exempt = knownLists(from.Exempt, d)
	}
	if d.Block == nil {
		d.Block = knownLists(from.Block, d)
	}
	if d.Penalty == nil && lint.CountsClients(d) {
		d.Penalty = from.Penalty
	}
	if d.Timezone == "" && lint.CountsByCalendar(d) {
		d.Timezone = from.Timezone
	}
	if d.OnError == "" {
		d.OnError = from.OnError
	}
	d.Lease = cmp.Or(d.Lease, from.Lease)
	if d.Regions == nil {
		d.Regions = from.Regions
	}
	d.Across = cmp.Or(d.Across, from.Across)
	if d.Headers == nil {
		d.Headers = from.Headers
	}
	if d.Events == nil {
		d.Events = from.Events
	}
}

// nameRules gives each unnamed rule a name for which the function named taken returns false.
func nameRules(d *policyfile.Document, taken func(string) bool) {
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

// defaultName returns the name of the n-th unnamed rule, counting from 1.
func defaultName(n int) string {
	if n == 1 {
		return "default"
	}
	return fmt.Sprintf("default-%d", n)
}
