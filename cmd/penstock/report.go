// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
)

// print prints the answer for people.
func (a *answer) print(out io.Writer) error {
	var text strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&text, "%-10s%s\n", label, fmt.Sprintf(format, args...))
	}
	if a.Policy == "" {
		a.Policy = "(no name)"
	}
	line("policy", "%s", a.Policy)
	if a.Disabled {
		line("", "disabled: nothing is limited")
		_, err := io.WriteString(out, text.String())
		return err
	}
	line("client", "%s", a.Client)
	for _, m := range a.Methods {
		if m.Reason != "" {
			m.Fate += ": " + m.Reason
		}
		line("", "%s: %s", m.Method, m.Fate)
	}
	if strings.HasPrefix(a.Address, "unknown") {
		a.Address += "; --ip says it"
	}
	line("address", "%s", a.Address)
	if a.Listed != "" {
		line("listed", "%s", a.Listed)
	}
	if p := a.Penalty; p != nil {
		line("penalty", "%s", p.state(a.Store != ""))
		line("", "key %s", p.Key)
	}
	switch {
	case len(a.Rules) == 0 && a.Decision.Why != "":
		line("rules", "not looked at")
	case len(a.Rules) == 0:
		line("rules", "none matches")
	}
	for i := range a.Rules {
		a.Rules[i].print(&text, a.Store != "")
	}
	decision := a.Decision.String()
	if a.Decision.Status == 0 && slices.ContainsFunc(a.Rules, ruleAnswer.mayRefuse) {
		decision += "; refused if it is the turn of a shard that refuses"
	}
	line("decision", "%s", decision)
	if a.Store == "" {
		line("store", "not asked: counters are taken as fresh; add --redis URL to look at them")
	} else {
		line("store", "%s, looked at: nothing was charged", a.Store)
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (p *penaltyAnswer) state(looked bool) string {
	switch {
	case p.InForce:
		return fmt.Sprintf("in force for %s more, after %s", span(p.WaitMillis), plural(int(p.Violations), "violation"))
	case looked:
		return "not in force, " + plural(int(p.Violations), "violation")
	default:
		return "is asked about"
	}
}

func (r *ruleAnswer) print(out io.Writer, looked bool) {
	action := ""
	if r.Action != "reject" {
		action = " (" + r.Action + ")"
	}
	fmt.Fprintf(out, "rule      %s%s: %s\n", r.Name, action, r.Fate)
	if r.Unlimited {
		fmt.Fprintf(out, "  unlimited, by %s\n", r.Whose)
	}
	if r.Shards > 0 {
		fmt.Fprintf(out, "  %s\n", r.turns(looked))
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(out, "  limit %s of %s, cost %d\n    key %s\n", c.Limit, r.Whose, c.Cost, c.Key)
		left := fmt.Sprintf("%d of %d left", c.Remaining, c.Capacity)
		if r.Shards > 0 && looked {
			left += fmt.Sprintf(", %d used", c.Used)
		}
		switch {
		case c.WaitMillis == nil:
			fmt.Fprintf(out, "    %s: the cost can never pass\n", left)
		case c.Refuses:
			fmt.Fprintf(out, "    %s: passes in %s\n", left, span(c.WaitMillis))
		case looked && c.Used > 0:
			fmt.Fprintf(out, "    %s, reset in %s\n", left, span(c.ResetMillis))
		case looked:
			fmt.Fprintf(out, "    %s\n", left)
		}
	}
}

// turns says what the shards of the rule's counters are, and what they would do.
func (r *ruleAnswer) turns(looked bool) string {
	text := fmt.Sprintf("%d shards take turns", r.Shards)
	switch {
	case r.Refusing == r.Shards:
		text += ", and all would refuse"
	case r.Refusing > 0:
		text += fmt.Sprintf(", and %d of them would refuse", r.Refusing)
	}
	if text += ": the key is of one"; looked {
		text += ", the numbers are of all"
	}
	return text
}

// mayRefuse reports whether the rule refuses the request if it comes at the turn of some of its shards, though not of all.
func (r ruleAnswer) mayRefuse() bool {
	return r.Refusing > 0 && r.Action != actionWords[core.ActionLogOnly]
}

// String says what becomes of the request.
func (d *decisionAnswer) String() string {
	by := ""
	if d.Rule != "" {
		by = " by " + d.Rule
	}
	switch {
	case d.Status == 0 && d.Outcome == "none":
		return "goes on: no rule is for it"
	case d.Status == 0 && d.Outcome == "exempt":
		return "goes on: exempt"
	case d.Status == 0:
		return "goes on"
	case d.DelayMillis > 0:
		return fmt.Sprintf("waits %s for %s, unless too many wait already", span(&d.DelayMillis), d.Rule)
	case d.Why != "":
		return fmt.Sprintf("refused with %d: %s", d.Status, d.Why)
	case d.Outcome == "penalized":
		return fmt.Sprintf("refused with %d for a penalty, retry after %s", d.Status, span(d.RetryAfterMillis))
	case d.RetryAfterMillis == nil:
		return fmt.Sprintf("refused with %d%s: its cost can never pass", d.Status, by)
	default:
		return fmt.Sprintf("refused with %d%s, retry after %s", d.Status, by, span(d.RetryAfterMillis))
	}
}

// String names a client with all that is known of it.
func (c *clientAnswer) String() string {
	if c == nil {
		return "nobody"
	}
	text := "nobody"
	if c.Kind != "" {
		text = c.Kind + ":" + c.ID
	}
	var known []string
	for _, part := range []struct{ label, value string }{{"user", c.User}, {"tier", c.Tier}, {"tenant", c.Tenant}} {
		if part.value != "" {
			known = append(known, part.label+" "+part.value)
		}
	}
	if len(c.Limits) > 0 {
		known = append(known, "limits of its own for "+strings.Join(c.Limits, ", "))
	}
	if len(known) > 0 {
		text += " (" + strings.Join(known, ", ") + ")"
	}
	return text
}

// span writes milliseconds as durations are read.
func span(millis *int64) string {
	if millis == nil {
		return "never"
	}
	return (time.Duration(*millis) * time.Millisecond).String()
}
