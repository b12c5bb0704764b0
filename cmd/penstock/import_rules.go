// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/ruletable"
)

func newImportRules() *cobra.Command {
	var name, into, enforce string
	var o ruletable.Options
	var strict bool
	cmd := &cobra.Command{
		Use:   "import-rules FILE",
		Short: "Turn a table of rate limit rules, as CSV, into a policy",
		Long: "Print a policy, in JSON, with the rules of a table in a database, such as PostgreSQL's COPY … TO … WITH (FORMAT csv, HEADER)\n" +
			"writes it. The columns say which of three forms it has: limit_count and window_seconds, requests_per_second to _day, or resource,\n" +
			"limit and window. The file - is the standard input. What could not be carried over is printed to standard error. The exit status is 1,\n" +
			"and no policy is printed, if a column or a value is not known; and with --strict if anything could not be carried over: the policy is\n" +
			"printed all the same then. A table does not say how clients are identified: --into names a policy file that does.",
		Example: "  penstock import-rules rules.csv --into base.yaml --enforce first > policy.json\n" +
			"  penstock control policy put policy.json --reason \"from the table\"",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if enforce != "all" && enforce != "first" {
				return fmt.Errorf("--enforce %q is neither all nor first", enforce)
			}
			o.First = enforce == "first"
			d, err := policyToFill(into, name)
			if err != nil {
				return err
			}
			from, err := openInput(args[0], cmd.InOrStdin())
			if err != nil {
				return err
			}
			defer from.Close()
			notes, err := ruletable.Import(d, from, o)
			for _, note := range notes {
				fmt.Fprintln(cmd.ErrOrStderr(), "not carried over:", note)
			}
			if err == nil {
				err = d.Check()
			}
			if err != nil {
				for _, line := range linesOf(err) {
					fmt.Fprintln(cmd.ErrOrStderr(), "error:", line)
				}
				return errSaid
			}
			if err := printJSON(cmd.OutOrStdout(), d); err != nil {
				return err
			}
			if strict && len(notes) > 0 {
				return errSaid
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "the name of the policy, which is the namespace of its counters")
	flags.StringVar(&into, "into", "", "a policy `FILE` with all but the rules: how clients are identified, and so on")
	flags.StringVar(&enforce, "enforce", "all", "all: every rule that matches counts; first: only the one with the first priority")
	flags.StringVar(&o.MaxDelay, "max-delay", "", "how long a request waits under the action throttle, such as 2s; without it, it is denied")
	flags.BoolVar(&strict, "strict", false, "fail if anything could not be carried over")
	return cmd
}

// policyToFill returns a copy of the policy in a file, or an empty policy if path is "". The policy
// gets the name if that is not "".
func policyToFill(path, name string) (*policyfile.Document, error) {
	d := new(policyfile.Document)
	if path != "" {
		loaded, err := policyfile.Load(path)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(loaded) // drops the positions in the file, because the rules that are added later have none
		if err == nil {
			err = json.Unmarshal(text, d)
		}
		if err != nil {
			return nil, fmt.Errorf("--into %q: %w", path, err)
		}
	}
	if name != "" {
		d.Name = name
	}
	return d, nil
}
