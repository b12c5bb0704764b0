// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"encoding/json"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Events defines which decisions are reported as events, and which parts of a request an event
// shows. Every field is optional: an empty block reports every denial.
type Events struct {
	// Which denials are reported: `all` (the default) or `none`.
	Denied string `json:"denied,omitempty"`

	// The share of admitted requests that are reported, drawn at random: a decimal number from `0`
	// (the default) to `1`, with six decimals at most.
	Admitted Share `json:"admitted,omitempty"`

	// How much of a client's address is shown: `full` (the default), `prefix` (24 bits of an IPv4
	// address, 48 of an IPv6 address) or `none`.
	IP string `json:"ip,omitempty"`

	// What is shown of the path: `pattern` (the default; the pattern of the deciding rule that the
	// path matches), `full` (the path as sent, without the query) or `none`.
	Path string `json:"path,omitempty"`
}

// Share is a decimal number from 0 to 1, as written.
type Share json.Number

// MarshalJSON writes the number as written.
func (s Share) MarshalJSON() ([]byte, error) { return json.Marshal(json.Number(s)) }

// UnmarshalJSON reads the settings as strictly as a policy file is read. The error is
// [policy.Problems].
func (e *Events) UnmarshalJSON(data []byte) error { return unmarshal(data, e) }

// shareDecimals is the greatest number of decimals of a share.
const shareDecimals = 6

// Share.ppm returns the share in millionths. The result ok is false if it is not a share.
func (s Share) ppm() (n int64, ok bool) {
	whole, decimals, dotted := strings.Cut(string(s), ".")
	if whole != "0" && whole != "1" || dotted && decimals == "" || len(decimals) > shareDecimals {
		return 0, false
	}
	for _, c := range decimals {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(whole+decimals+strings.Repeat("0", shareDecimals-len(decimals)), 10, 64)
	return n, err == nil && n <= policy.EventsPPMMax
}

// decoder.share decodes a share.
func (d *decoder) share(n *syntax.Node, path string) Share {
	if n.Kind == syntax.KindNumber || n.Kind == syntax.KindText {
		if _, ok := Share(n.Text).ppm(); ok {
			return Share(n.Text)
		}
		d.found.At(n, path, "is not a decimal number from 0 to 1 with six decimals at most", "write 0.001 for one of a thousand requests")
		return ""
	}
	d.found.At(n, path, "is "+n.Kind.String()+" where a number from 0 to 1 belongs", "write 0.001 for one of a thousand requests")
	return ""
}

var (
	deniedShown    = []choice[bool]{{"all", true}, {"none", false}}
	addressesShown = []choice[policy.AddressShown]{{"full", policy.AddressFull}, {"prefix", policy.AddressPrefix},
		{"none", policy.AddressNone}}
	pathsShown = []choice[policy.PathShown]{{"pattern", policy.PathPattern}, {"full", policy.PathFull}, {"none", policy.PathNone}}
)

// EventSettings returns which decisions the policy reports as events, and the settings of the rules
// that have their own, by the rule's name. An invalid value counts as its default; [Document.Check]
// reports it.
func (d *Document) EventSettings() (of policy.Events, rules map[string]policy.Events) {
	c := converter{tree: d.tree}
	return c.events(d)
}

// ReportsEvents reports whether the policy reports events of any kind.
func (d *Document) ReportsEvents() bool {
	of, rules := d.EventSettings()
	for _, one := range rules {
		if one.Reports() {
			return true
		}
	}
	return of.Reports()
}

// converter.events converts the settings of the policy and those of its rules, and finds settings
// that report nothing.
func (c *converter) events(d *Document) (of policy.Events, rules map[string]policy.Events) {
	of = c.eventsOf("events", d.Events, policy.Events{Denied: true})
	if d.Events == nil {
		of = policy.Events{}
	}
	reporting := false
	for i := range d.Rules {
		own := d.Rules[i].Events
		if own == nil {
			continue
		}
		path := Index("rules", i) + ".events"
		base := of
		if d.Events == nil {
			base = policy.Events{Denied: true}
		}
		settings := c.eventsOf(path, own, base)
		switch {
		case settings.Reports():
			reporting = true
		case !of.Reports():
			c.problem(path, "", "reports nothing", "leave it out, or write denied: all")
		}
		if rules == nil {
			rules = make(map[string]policy.Events)
		}
		rules[d.Rules[i].Name] = settings
	}
	if d.Events != nil && !of.Reports() && !reporting {
		c.problem("events", "", "reports nothing", "leave it out, or write denied: all")
	}
	return of, rules
}

// eventsOf converts one block of settings. Fields that the block omits have the values of base.
func (c *converter) eventsOf(path string, d *Events, base policy.Events) (e policy.Events) {
	if e = base; d == nil {
		return e
	}
	if d.Denied != "" {
		e.Denied = choose(c, path+".denied", d.Denied, deniedShown)
	}
	if d.Admitted != "" {
		var ok bool
		if e.AdmittedPPM, ok = d.Admitted.ppm(); !ok {
			c.problem(path+".admitted", string(d.Admitted), "is not a decimal number from 0 to 1 with six decimals at most",
				"write 0.001 for one of a thousand requests")
		}
	}
	if d.IP != "" {
		e.Address = choose(c, path+".ip", d.IP, addressesShown)
	}
	if d.Path != "" {
		e.Path = choose(c, path+".path", d.Path, pathsShown)
	}
	return e
}
