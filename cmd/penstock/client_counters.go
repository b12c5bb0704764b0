// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/operator"
)

// nobodyError is the error for a client that does not exist.
type nobodyError struct{ text string }

func (e *nobodyError) Error() string { return e.text }
func (e *nobodyError) Unwrap() error { return errNobody }

const clientUsage = "who: KIND:ID as in keys, such as user:u_42, api_key:acme or ip:192.0.2.7"

// clientFlags select a client.
type clientFlags struct{ words operator.Words }

// clientFlags.register adds the flags.
func (c *clientFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.words.Client, "client", "", clientUsage)
	c.registerRest(flags)
}

// registerRest adds all flags except the one that names the client.
func (c *clientFlags) registerRest(flags *pflag.FlagSet) {
	flags.StringVar(&c.words.User, "user", "", "the client's user, if --client names another kind and rules count per user")
	flags.StringVar(&c.words.Tier, "tier", "", "the client's tier, if rules have limits by tier and no keys file contains it")
	flags.StringVar(&c.words.Tenant, "tenant", "", "the client's tenant, if rules count per tenant")
	flags.StringVar(&c.words.Host, "host", "", "the host, if rules count per host")
}

// counterFlags select counters of a client.
type counterFlags struct {
	of           clientFlags
	policy, rule string
}

// counterFlags.register adds the flags, except the one that names the client.
func (c *counterFlags) register(flags *pflag.FlagSet) {
	c.of.registerRest(flags)
	flags.StringVar(&c.policy, "policy", "", "only the policy of this name")
	flags.StringVar(&c.rule, "rule", "", "only the rule of this name")
}

// counterFlags.query returns the flags as the query of a request.
func (c *counterFlags) query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{"client": c.of.words.Client, "user": c.of.words.User, "tier": c.of.words.Tier,
		"tenant": c.of.words.Tenant, "host": c.of.words.Host, "policy": c.policy, "rule": c.rule} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return query
}

// clientCommand returns a command about the counters of one client. Without --json, the command
// calls the function people to print the answer as text.
func (a *admin) clientCommand(name, short string, people func(*usageReport, io.Writer, time.Time) error) *cobra.Command {
	var which counterFlags
	cmd := &cobra.Command{Use: name, Short: short, Args: noArgs, Example: "  penstock " + name + " --client user:u_42"}
	asJSON := cmd.Flags().Bool("json", false, "print JSON, for programs")
	which.register(cmd.Flags())
	cmd.Flags().StringVar(&which.of.words.Client, "client", "", clientUsage)
	if err := cmd.MarkFlagRequired("client"); err != nil {
		panic(err) // the flag is defined above
	}
	method := http.MethodGet
	if name != "client" {
		method = http.MethodPost
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return a.showReport(cmd, method, name, &which, *asJSON, people)
	}
	return cmd
}

// showReport sends a request about the counters of a client, and warns about properties of the
// client that are unknown. If asJSON is true, it prints the answer as it is. Otherwise it calls
// people(...), which prints the answer as text.
func (a *admin) showReport(cmd *cobra.Command, method, path string, which *counterFlags, asJSON bool,
	people func(*usageReport, io.Writer, time.Time) error) error {
	reply, err := a.ask(cmd.Context(), method, path, which.query())
	if err != nil {
		return err
	}
	if err := warnOfGaps(cmd.ErrOrStderr(), reply); err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if asJSON {
		_, err := jsonWriter{out}.Write(reply)
		return err
	}
	var report usageReport
	if err := json.Unmarshal(reply, &report); err != nil {
		return fmt.Errorf("reading the answer about the client: %w", err)
	}
	return people(&report, out, time.Now())
}

// warnOfGaps prints a line for each property of the client that is unknown.
func warnOfGaps(out io.Writer, reply []byte) error {
	var report struct {
		Client   string
		Profiles []operator.Profile
	}
	if err := json.Unmarshal(reply, &report); err != nil {
		return fmt.Errorf("reading the answer about the client: %w", err)
	}
	for _, f := range report.Profiles {
		for _, gap := range f.Unknown {
			fmt.Fprintf(out, "warning: the %s of %s under the policy %q cannot be known: %s\n", quoteUnprintable(gap.What), quoteUnprintable(report.Client), f.Policy,
				quoteUnprintable(gap.Why))
		}
	}
	return nil
}
