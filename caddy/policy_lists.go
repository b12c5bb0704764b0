// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock/penstock/internal/policyfile"
)

// clientList is one field of an entry of "exempt" or "block", such as "user".
type clientList struct {
	word string
	of   func(*policyfile.Listed) *policyfile.Words
	// source returns the setting from which a policy takes the field, in addition to credentials.
	// It is nil for a field that only credentials contain.
	source func(*policyfile.Document) policyfile.Sources
}

var clientLists = []clientList{
	{"user", func(l *policyfile.Listed) *policyfile.Words { return &l.User },
		func(d *policyfile.Document) policyfile.Sources { return d.User }},
	{"api_key", func(l *policyfile.Listed) *policyfile.Words { return &l.APIKey }, nil},
	{"tier", func(l *policyfile.Listed) *policyfile.Words { return &l.Tier },
		func(d *policyfile.Document) policyfile.Sources { return d.Tier }},
	{"tenant", func(l *policyfile.Listed) *policyfile.Words { return &l.Tenant },
		func(d *policyfile.Document) policyfile.Sources { return d.Tenant }},
}

// isKnownTo reports whether the policy has a source for the field.
func (c *clientList) isKnownTo(d *policyfile.Document) bool {
	byKey := slices.ContainsFunc(d.Identify, func(way policyfile.Identify) bool { return way.APIKey != nil })
	byToken := slices.ContainsFunc(d.Identify, func(way policyfile.Identify) bool { return way.JWT != nil })
	return byKey || c.source != nil && (byToken || len(c.source(d)) > 0)
}

// knownLists returns the entries without the fields for which the policy has no source. Such a
// field is not an error in this policy, because the policy of another handler may have a source for
// it.
func knownLists(all policyfile.Lists, d *policyfile.Document) (known policyfile.Lists) {
	for _, entry := range all {
		said, dropped := false, false
		for i := range clientLists {
			words := clientLists[i].of(&entry)
			switch {
			case len(*words) == 0:
			case clientLists[i].isKnownTo(d):
				said = true
			default:
				*words, dropped = nil, true
			}
		}
		if said || !dropped || len(entry.IP) > 0 {
			known = append(known, entry)
		}
	}
	return known
}

// checkSettings checks the settings of an app that has no rules of its own. Such settings apply to
// every handler. The handlers may define how clients are identified, so every field of a client is
// accepted here. checkLists reports the fields for which no policy has a source.
func (a *App) checkSettings() error {
	d := a.document(a.Name)
	d.Identify = append(slices.Clone(d.Identify), policyfile.Identify{
		APIKey: &policyfile.IdentifyAPIKey{KeysFile: "handlers.toml", Header: "Penstock-Checked"}})
	return d.Check()
}

// checkLists returns an error for each field in the app's settings exempt and block for which no
// policy of the configuration has a source.
func (a *App) checkLists() error {
	var problems []error
	policies := a.inForce()
	check := func(at string, entries policyfile.Lists) {
		for i := range entries {
			for k := range clientLists {
				c := &clientLists[k]
				if len(*c.of(&entries[i])) > 0 && !slices.ContainsFunc(policies, func(p *placedPolicy) bool {
					return c.isKnownTo(p.Current().Document)
				}) {
					problems = append(problems, fmt.Errorf("%s[%d].%s: can never be known: no way of identifying a client tells its %s, "+
						"neither here nor in a site; add jwt or api_key to identify", at, i, c.word, c.word))
				}
			}
		}
	}
	check("exempt", a.Exempt)
	check("block", a.Block)
	return errors.Join(problems...)
}
