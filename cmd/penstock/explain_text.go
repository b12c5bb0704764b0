// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/explain"
)

// printExplanation prints an explanation for people. The parameter flag is the flag to add so that
// the command reads counters.
func printExplanation(out io.Writer, a *explain.Explanation, flag string) error {
	var text strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&text, "%-10s%s\n", label, fmt.Sprintf(format, args...))
	}
	if a.Policy == "" {
		a.Policy = "(no name)"
	}
	line("policy", "%s", quoteUnprintable(a.Policy))
	if a.Disabled {
		line("", "disabled: nothing is limited")
		_, err := io.WriteString(out, text.String())
		return err
	}
	line("client", "%s", describeExplained(a.Client))
	for _, m := range a.Methods {
		if m.Reason != "" {
			m.Fate += ": " + m.Reason
		}
		line("", "%s: %s", quoteUnprintable(m.Method), quoteUnprintable(m.Fate))
	}
	if strings.HasPrefix(a.Address, "unknown") {
		a.Address += "; --ip sets it"
	}
	line("address", "%s", quoteUnprintable(a.Address))
	if a.Listed != "" {
		line("listed", "%s", quoteUnprintable(a.Listed))
	}
	if p := a.Penalty; p != nil {
		line("penalty", "%s", stateOfPenalty(p, a.Store != ""))
		line("", "key %s", quoteUnprintable(p.Key))
	}
	switch {
	case len(a.Rules) == 0 && a.Decision.Why != "":
		line("rules", "not checked")
	case len(a.Rules) == 0:
		line("rules", "none matches")
	}
	for i := range a.Rules {
		printRule(&text, &a.Rules[i], a.Store != "")
	}
	decision := describeDecision(&a.Decision)
	if a.Decision.Status == 0 && slices.ContainsFunc(a.Rules, mayDeny) {
		decision += "; denied if the chosen shard has no room"
	}
	line("decision", "%s", quoteUnprintable(decision))
	if a.RecordsUnread {
		line("records", "not read: add --redis URL to apply the blocks, tiers, limits and keys of the directory")
	}
	if a.Store == "" {
		line("store", "not checked: counters count as unused; add %s to read them", flag)
	} else {
		line("store", "%s: read, nothing was charged", quoteUnprintable(a.Store))
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func stateOfPenalty(p *explain.ExplainedPenalty, looked bool) string {
	switch {
	case p.InForce:
		return fmt.Sprintf("in force for %s more, after %s", span(p.WaitMillis), plural(int(p.Violations), "violation"))
	case looked:
		return "not in force, " + plural(int(p.Violations), "violation")
	default:
		return "checked with the store"
	}
}

func printRule(out io.Writer, r *explain.ExplainedRule, looked bool) {
	action := ""
	if r.Action != "reject" {
		action = " (" + quoteUnprintable(r.Action) + ")"
	}
	fmt.Fprintf(out, "rule      %s%s: %s\n", quoteUnprintable(r.Name), action, quoteUnprintable(r.Fate))
	if r.Unlimited {
		fmt.Fprintf(out, "  unlimited, by %s\n", quoteUnprintable(r.Whose))
	}
	if r.Shards > 0 {
		fmt.Fprintf(out, "  %s\n", describeShards(r, looked))
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(out, "  limit %s of %s, cost %d\n    key %s\n", quoteUnprintable(c.Limit), quoteUnprintable(r.Whose), c.Cost, quoteUnprintable(c.Key))
		left := fmt.Sprintf("%d of %d left", c.Remaining, c.Capacity)
		if r.Shards > 0 && looked {
			left += fmt.Sprintf(", %d used", c.Used)
		}
		switch {
		case c.WaitMillis == nil:
			fmt.Fprintf(out, "    %s: the cost can never pass\n", left)
		case c.Denies:
			fmt.Fprintf(out, "    %s: passes in %s\n", left, span(c.WaitMillis))
		case looked && c.Used > 0:
			fmt.Fprintf(out, "    %s, reset in %s\n", left, span(c.ResetMillis))
		case looked:
			fmt.Fprintf(out, "    %s\n", left)
		}
	}
}

// describeShards describes the shards of a rule's counters, and their decisions.
func describeShards(r *explain.ExplainedRule, looked bool) string {
	text := fmt.Sprintf("%d shards, used in rotation", r.Shards)
	switch {
	case r.Denying == r.Shards:
		text += ", all without room"
	case r.Denying > 0:
		text += fmt.Sprintf(", %d of them without room", r.Denying)
	}
	if text += ": the key is that of one"; looked {
		text += ", the numbers are those of all"
	}
	return text
}

// mayDeny reports whether a shard of the rule would deny the request. A rule that only logs denies
// nothing.
func mayDeny(r explain.ExplainedRule) bool {
	return r.Denying > 0 && r.Action != "log_only"
}

// describeDecision describes the decision.
func describeDecision(d *explain.ExplainedDecision) string {
	by := ""
	if d.Rule != "" {
		by = " by " + d.Rule
	}
	switch {
	case d.Status == 0 && d.Outcome == "none":
		return "allowed: no rule applies"
	case d.Status == 0 && d.Outcome == "exempt":
		return "allowed: exempt"
	case d.Status == 0:
		return "allowed"
	case d.DelayMillis > 0:
		return fmt.Sprintf("waits %s for %s, unless too many wait already", span(&d.DelayMillis), d.Rule)
	case d.Why != "":
		return fmt.Sprintf("denied with %d: %s", d.Status, d.Why)
	case d.Outcome == "penalized":
		return fmt.Sprintf("denied with %d for a penalty, retry after %s", d.Status, span(d.RetryAfterMillis))
	case d.RetryAfterMillis == nil:
		return fmt.Sprintf("denied with %d%s: its cost can never pass", d.Status, by)
	default:
		return fmt.Sprintf("denied with %d%s, retry after %s", d.Status, by, span(d.RetryAfterMillis))
	}
}

// describeExplained describes a client.
func describeExplained(c *explain.ExplainedClient) string {
	if c == nil {
		return "none"
	}
	text := "none"
	if c.Kind != "" {
		text = quoteUnprintable(c.Kind + ":" + c.ID)
	}
	var known []string
	for _, part := range []struct{ label, value string }{{"user", c.User}, {"tier", c.Tier}, {"tenant", c.Tenant}} {
		if part.value != "" {
			known = append(known, part.label+" "+quoteUnprintable(part.value))
		}
	}
	if len(c.Limits) > 0 {
		known = append(known, "limits of its own for "+quoteUnprintable(strings.Join(c.Limits, ", ")))
	}
	if len(known) > 0 {
		text += " (" + strings.Join(known, ", ") + ")"
	}
	return text
}

// span formats milliseconds as a duration.
func span(millis *int64) string {
	if millis == nil {
		return "never"
	}
	return (time.Duration(*millis) * time.Millisecond).String()
}
