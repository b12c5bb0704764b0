// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"time"
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
	line("decision", "%s", a.Decision.String())
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
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(out, "  limit %s of %s, cost %d\n    key %s\n", c.Limit, r.Whose, c.Cost, c.Key)
		switch {
		case c.WaitMillis == nil:
			fmt.Fprintf(out, "    %d of %d left: the cost can never pass\n", c.Remaining, c.Capacity)
		case c.Refuses:
			fmt.Fprintf(out, "    %d of %d left: passes in %s\n", c.Remaining, c.Capacity, span(c.WaitMillis))
		case looked && c.Remaining < c.Capacity:
			fmt.Fprintf(out, "    %d of %d left, reset in %s\n", c.Remaining, c.Capacity, span(c.ResetMillis))
		case looked:
			fmt.Fprintf(out, "    %d of %d left\n", c.Remaining, c.Capacity)
		}
	}
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
