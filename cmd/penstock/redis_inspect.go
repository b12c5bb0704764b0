// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/operator"
	"github.com/penstock/penstock/internal/store/redisadmin"
)

// inspection holds the arguments of inspect: a key, or a policy with a client.
type inspection struct {
	redisFlags
	key                string
	policy, name, rule string
	region             regionFlag
	client             clientFlags
}

func newRedisInspect() *cobra.Command {
	in := new(inspection)
	cmd := &cobra.Command{
		Use:   "inspect KEY --redis URL",
		Short: "Print the contents of a counter or a penalty, and its slot",
		Long: "Print the contents of a counter or a penalty, its slot and its server. Nothing is changed. Keys are those that\n" +
			"penstock client, penstock explain and redis-cli --scan print. Instead of a KEY, a policy file and a client select\n" +
			"counters, and their limits are evaluated. The exit status is 1 if a counter cannot be read.",
		Example: "  penstock redis inspect 'rl1:shop:api:{user:u_42}:60s:sw' --redis redis://localhost:6379\n" +
			"  penstock redis inspect --policy policy.yaml --client user:u_42 --redis redis://localhost:6379",
		Args: func(cmd *cobra.Command, args []string) error { return in.read(args) },
		RunE: in.runWithDeployment(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			if in.key != "" {
				return inspectOne(ctx, cmd.OutOrStdout(), servers, in.key, nil)
			}
			return in.inspectClient(ctx, cmd, servers)
		}),
	}
	in.addFlags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&in.policy, "policy", "", "the policy file of the counters; - is YAML on the standard input")
	flags.StringVar(&in.name, "name", "", "the namespace of counters, if the policy file does not name it but the Caddyfile does")
	flags.StringVar(&in.rule, "rule", "", "only the rule of this name")
	in.region.register(flags)
	in.client.register(flags)
	return cmd
}

// inspection.read checks that either a key is given, or a policy with a client.
func (in *inspection) read(args []string) error {
	switch {
	case len(args) == 1 && in.policy == "" && in.name == "" && in.rule == "" && in.region == "" && in.client == clientFlags{}:
		in.key = args[0]
		return nil
	case len(args) == 1:
		return fmt.Errorf("the key %q selects the counter, so --policy, --client and the flags that go with them have no effect; "+
			"leave them out, or the key", args[0])
	case len(args) == 0 && in.policy != "" && in.client.words.Client != "":
		return nil
	case in.policy != "":
		return errors.New("--policy without --client; write --client user:u_42")
	}
	return errors.New("inspect takes one KEY, in quotes, or --policy FILE with --client; write penstock redis inspect " +
		"'rl1:shop:api:{user:u_42}:60s:sw' --redis URL")
}

// inspectOne prints one counter and reports whether it could be read.
func inspectOne(ctx context.Context, out io.Writer, servers *redisadmin.Deployment, key string, check *counter.Check) (bool, error) {
	ctr, err := servers.Inspect(ctx, key, check)
	if err != nil {
		return false, err
	}
	return !ctr.Wrong, ctr.Print(out)
}

// inspectClient prints all counters of the client under the policy.
func (in *inspection) inspectClient(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (ok bool, err error) {
	client, err := operator.Parse(in.client.words)
	if err != nil {
		return false, fmt.Errorf("--client: %w", err)
	}
	document, err := readRedisPolicy(in.policy, in.name, in.region, cmd.InOrStdin())
	if err != nil {
		return false, err
	}
	policy, closer, err := openUnwatched(document, in.policy)
	if err != nil {
		return false, err
	}
	defer closer.Close() //nolint:errcheck // nothing was written
	if err := in.checkRule(policy.Ruleset); err != nil {
		return false, err
	}
	checks, profile, err := client.Checks(policy, in.rule)
	if err != nil {
		return false, err
	}
	warnOfUnknown(cmd.ErrOrStderr(), client.String(), profile)
	if document.Directory {
		fmt.Fprintf(cmd.ErrOrStderr(), "note: limits are those of the policy, without the record of %s; penstock usage %[1]s --redis URL applies it\n",
			quoteUnprintable(client.String()))
	}
	ok = true
	for i := range checks {
		if i > 0 {
			fmt.Fprintln(cmd.OutOrStdout())
		}
		fine, err := inspectOne(ctx, cmd.OutOrStdout(), servers, string(checks[i].Key), &checks[i])
		if err != nil {
			return false, err
		}
		ok = ok && fine
	}
	if len(checks) == 0 {
		return false, fmt.Errorf("no rule of the policy counts %s by its known properties; add --user, --tier, --tenant or --host",
			client)
	}
	return ok, nil
}

// checkRule returns an error if the policy has no rule of the given name.
func (in *inspection) checkRule(rules *core.Ruleset) error {
	var names []string
	for i := range rules.Len() {
		names = append(names, rules.RuleName(i))
	}
	if in.rule == "" || slices.Contains(names, in.rule) {
		return nil
	}
	return fmt.Errorf("the policy has no rule %q; there are: %q", in.rule, names)
}
