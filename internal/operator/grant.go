// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
)

// checkGrant returns an error if a grant would have no effect under any policy.
func (d *Desk) checkGrant(ctx context.Context, editor *directory.Editor, edit *directory.Edit, policies []Policy) error {
	if err := checkRule(edit.Rule, policies); err != nil {
		return err
	}
	_, r, err := editor.Look(ctx, edit.Client)
	if err != nil {
		return err
	}
	return grantable(&directory.Grant{Rule: edit.Rule, Window: edit.Window}, r, policies)
}

// grantable returns an error if the grant raises no limit. A grant can raise the limits of a rule,
// for any tier, and the limits in the client's record, if they have a fixed or calendar window.
func grantable(g *directory.Grant, r *directory.Record, policies []Policy) error {
	label, err := g.WindowLabel()
	if err != nil {
		return &selectionError{kind: ErrSelection, text: err.Error()}
	}
	windows, sharded, known := ownWindows(g.Rule, r), false, false
	for i := range policies {
		rs := policies[i].Ruleset
		for j := range rs.Len() {
			known = known || rs.RuleName(j) == g.Rule
		}
		of, shards := rs.GrantWindows(g.Rule)
		windows, sharded = append(windows, of...), sharded || shards
	}
	slices.Sort(windows)
	windows = slices.Compact(windows)
	text := ""
	switch {
	case !known:
		text = fmt.Sprintf("a grant for the rule %q has no force: no policy in force has this rule", g.Rule)
	case sharded:
		text = fmt.Sprintf("a grant for the rule %q has no force: the rule has shards; set limits with an end instead", g.Rule)
	case len(windows) == 0:
		text = fmt.Sprintf("a grant for the rule %q has no force: it has no limit with a fixed or calendar window; set limits with an end instead", g.Rule)
	case label != "" && !slices.Contains(windows, label):
		text = fmt.Sprintf("a grant for the window %q of the rule %q has no force: the fixed and calendar windows are %q", g.Window, g.Rule, windows)
	default:
		return nil
	}
	return &selectionError{kind: ErrSelection, text: text}
}

// ownWindows returns the labels of the fixed and calendar windows that a record has for a rule.
func ownWindows(rule string, r *directory.Record) (windows []string) {
	if r == nil {
		return nil
	}
	for _, name := range []string{rule, policy.EveryRule} {
		set, err := policy.ParseLimitSet(r.Limits[name].Limits)
		if err != nil {
			continue // the record has no limits of this name
		}
		for i := range set.Limits {
			if l := &set.Limits[i]; l.Algorithm() == counter.FixedWindow {
				windows = append(windows, l.WindowLabel())
			}
		}
	}
	return windows
}
