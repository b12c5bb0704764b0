// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/penstock/penstock/core"
)

// printExplanation prints what one policy makes of a request, for people.
func printExplanation(out io.Writer, e *core.Explanation) {
	line := func(label, format string, args ...any) {
		fmt.Fprintf(out, "%-10s%s\n", label, fmt.Sprintf(format, args...))
	}
	line("policy", "%s", orNone(e.Policy))
	if e.Disabled {
		line("", "disabled: nothing is limited")
		return
	}
	line("client", "%s", describe(&e.Client))
	for _, m := range e.Methods {
		line("", "%s: %s", m.Method, m.Fate)
	}
	line("address", "%s", e.Address)
	if e.Listed != "" {
		line("listed", "%s", e.Listed)
	}
	if e.Refused != "" {
		line("refused", "%s", e.Refused)
	}
	if len(e.Rules) == 0 {
		line("rules", "none matches")
	}
	for i := range e.Rules {
		printRule(out, &e.Rules[i])
	}
	if e.Penalty != nil {
		fmt.Fprintf(out, "penalty\n  key %s\n", e.Penalty.Check.Key)
	}
}

func printRule(out io.Writer, r *core.RuleExplanation) {
	fmt.Fprintf(out, "rule      %s: %s\n", r.Name, r.Fate)
	if r.Unlimited {
		fmt.Fprintf(out, "  unlimited, by %s\n", r.Limits)
	}
	for i := range r.Checks {
		c := &r.Checks[i]
		fmt.Fprintf(out, "  limit %s of %s, cost %d\n    key %s\n", c.Limit, r.Limits, c.Cost, c.Key)
	}
}

// describe names a client with all that is known of it.
func describe(who *core.Identity) string {
	if who.Kind == "" {
		return "nobody"
	}
	text := who.Kind + ":" + who.ID
	var known []string
	for _, part := range []struct{ label, value string }{{"user", who.User}, {"tier", who.Tier}, {"tenant", who.Tenant}} {
		if part.value != "" {
			known = append(known, part.label+" "+part.value)
		}
	}
	if who.Overrides != nil {
		known = append(known, "limits of its own")
	}
	if len(known) > 0 {
		text += " (" + strings.Join(known, ", ") + ")"
	}
	return text
}

func orNone(text string) string {
	if text == "" {
		return "(no name)"
	}
	return text
}
