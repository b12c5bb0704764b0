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
// `identify`, `exempt`, `on_error` and `headers` holds for every handler's as well. All that unless they say otherwise
// themselves.
type PolicyWords struct {
	// Whether the rules of this block and of its policy file are in force. Default: true.
	Enabled *bool `json:"enabled,omitempty"`

	// How to find out who is asking, tried in order: the first that finds someone names the client. Default: by IP
	// address.
	Identify []policy.Identify `json:"identify,omitempty"`

	// The rules. Every enabled rule that matches a request is enforced, together with the others. A rule without a name
	// is called `default`, a further one `default-2`, and so on.
	Rules []policy.Rule `json:"rules,omitempty"`

	// Who is never limited by these rules.
	Exempt *policy.Exempt `json:"exempt,omitempty"`

	// Whether every matching rule counts (`all`, the default) or only the first one (`first`).
	Enforce string `json:"enforce,omitempty"`

	// What happens when the store cannot answer: `allow` (the default) lets requests through, `deny` answers 503.
	OnError string `json:"on_error,omitempty"`

	// Which response header fields tell the client about its limits: `x-ratelimit`, `ietf`, or both as a list (the
	// default), or `none`.
	Headers policy.Words `json:"headers,omitempty"`
}

// wordsOf takes a document apart; its name is the block's.
func wordsOf(d *policy.Document) PolicyWords {
	return PolicyWords{Enabled: d.Enabled, Identify: d.Identify, Rules: d.Rules, Exempt: d.Exempt, Enforce: d.Enforce,
		OnError: d.OnError, Headers: d.Headers}
}

// document returns the words as a policy of that name. It shares no slice of rules with the words, so that naming them
// does not change the configuration.
func (w *PolicyWords) document(name string) *policy.Document {
	return &policy.Document{Name: name, Enabled: w.Enabled, Identify: w.Identify,
		Rules: append([]policy.Rule(nil), w.Rules...), Exempt: w.Exempt, Enforce: w.Enforce, OnError: w.OnError,
		Headers: w.Headers}
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
	if d.Exempt == nil {
		d.Exempt = from.Exempt
	}
	if d.OnError == "" {
		d.OnError = from.OnError
	}
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
