// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/policyfile"
)

// rulesReply holds what the command rules prints of a reply with the policies in force.
type rulesReply struct {
	Policies []struct {
		Name, Version, Place, File string
		Policy                     struct{ Rules []shownRule }
	}
}

// shownRule is the part of a rule that the command rules prints. The rule may be of a later
// release, so unknown fields are ignored.
type shownRule struct {
	Name, Action string
	Enabled      *bool
	Match        map[string]any
	Limit        policyfile.Words
	Tiers        map[string]policyfile.Words
}

// rulesCommand returns the command that prints the policies in force.
func (a *admin) rulesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Print the policies and rules in force", Args: noArgs,
		Long: "Print the policies in force with their versions and files, and their rules with their limits. With --json, print the whole\n" +
			"policies without their secrets."}
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.show(cmd, "rules", nil, *asJSON, printRules)
	}
	return cmd
}

// printRules prints the reply as two tables: the policies, and their rules.
func printRules(out io.Writer, reply []byte) error {
	var told rulesReply
	if err := json.Unmarshal(reply, &told); err != nil {
		return fmt.Errorf("reading the policies in force: %w", err)
	}
	if len(told.Policies) == 0 {
		_, err := fmt.Fprintln(out, "no policy is in force")
		return err
	}
	policies, rules := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0), tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(policies, "POLICY\tVERSION\tFILE")
	fmt.Fprintln(rules, "POLICY\tRULE\tACTION\tMATCH\tLIMIT\tTIERS")
	for i := range told.Policies {
		p := &told.Policies[i]
		name := quoteUnprintable(p.Name)
		if p.Place != "" {
			name += " at " + quoteUnprintable(p.Place)
		}
		fmt.Fprintf(policies, "%s\t%s\t%s\n", name, quoteUnprintable(p.Version), quoteUnprintable(p.File))
		for j := range p.Policy.Rules {
			r := &p.Policy.Rules[j]
			fmt.Fprintf(rules, "%s\t%s\t%s\t%s\t%s\t%s\n", name, quoteUnprintable(r.Name), quoteUnprintable(r.action()),
				quoteUnprintable(r.matches()), quoteUnprintable(strings.Join(r.Limit, ", ")), quoteUnprintable(r.limitsOfTiers()))
		}
	}
	if err := policies.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	return rules.Flush()
}

// shownRule.action returns what the rule does.
func (r *shownRule) action() string {
	if r.Enabled != nil && !*r.Enabled {
		return "off"
	}
	return cmp.Or(r.Action, "reject")
}

// shownRule.matches returns the conditions of the rule, or "" if it applies to every request.
func (r *shownRule) matches() string {
	var all []string
	for _, field := range slices.Sorted(maps.Keys(r.Match)) {
		all = append(all, field+" "+formatValue(r.Match[field]))
	}
	return strings.Join(all, "; ")
}

// formatValue formats a value of a condition. The value is a text, a list of texts, or a map of
// such values.
func formatValue(value any) string {
	switch value := value.(type) {
	case []any:
		var all []string
		for _, one := range value {
			all = append(all, formatValue(one))
		}
		return strings.Join(all, ", ")
	case map[string]any:
		var all []string
		for _, name := range slices.Sorted(maps.Keys(value)) {
			all = append(all, strings.TrimSuffix(name+"="+formatValue(value[name]), "="))
		}
		return strings.Join(all, ", ")
	}
	return fmt.Sprint(value)
}

// limitsOfTiers returns the limits of clients that have a tier.
func (r *shownRule) limitsOfTiers() string {
	var all []string
	for _, tier := range slices.Sorted(maps.Keys(r.Tiers)) {
		all = append(all, tier+" "+strings.Join(r.Tiers[tier], ", "))
	}
	return strings.Join(all, "; ")
}
