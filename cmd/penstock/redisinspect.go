// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/named"
	"github.com/penstock/penstock/internal/redisadmin"
)

// inspection is what inspect is asked about: a key, or the counters of a client under a policy.
type inspection struct {
	redisFlags
	key                string
	policy, name, rule string
	client             named.Words
}

func newRedisInspect() *cobra.Command {
	in := new(inspection)
	cmd := &cobra.Command{
		Use:   "inspect KEY --redis URL",
		Short: "Print what a counter or a penalty holds, in words, and its slot",
		Long: "Print what a counter or a penalty holds, in words, with its slot and who has it. Nothing is changed. Keys are what\n" +
			"penstock client, penstock explain and redis-cli --scan print. In place of a KEY a policy file and a client say whose\n" +
			"counters are meant, and what their limits make of them. The exit status is 1 if a counter cannot be read.",
		Example: "  penstock redis inspect 'rl1:shop:api:{user:u_42}:60s:sw' --redis redis://localhost:6379\n" +
			"  penstock redis inspect --policy policy.yaml --client user:u_42 --redis redis://localhost:6379",
		Args: func(cmd *cobra.Command, args []string) error { return in.read(args) },
		RunE: in.looking(func(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (bool, error) {
			if in.key != "" {
				return inspectOne(ctx, cmd.OutOrStdout(), servers, in.key, nil)
			}
			return in.inspectClient(ctx, cmd, servers)
		}),
	}
	in.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&in.policy, "policy", "", "the policy file whose counters are meant; - is YAML on the standard input")
	flags.StringVar(&in.name, "name", "", "the namespace of counters, if the policy file does not name it but the Caddyfile does")
	flags.StringVar(&in.rule, "rule", "", "only the rule of this name")
	flags.StringVar(&in.client.Client, "client", "", "who: KIND:ID as in keys, such as user:u_42, api_key:acme or ip:192.0.2.7")
	flags.StringVar(&in.client.User, "user", "", "the client's user, if it is known by something else and rules count per user")
	flags.StringVar(&in.client.Tier, "tier", "", "the client's tier, if rules have limits by tier")
	flags.StringVar(&in.client.Tenant, "tenant", "", "the client's tenant, if rules count per tenant")
	flags.StringVar(&in.client.Host, "host", "", "the host, if rules count per host")
	return cmd
}

// read checks that either a key is given, or a policy with a client.
func (in *inspection) read(args []string) error {
	switch {
	case len(args) == 1 && in.policy == "" && in.name == "" && in.rule == "" && in.client == named.Words{}:
		in.key = args[0]
		return nil
	case len(args) == 1:
		return fmt.Errorf("the key %q says which counter is meant, so --policy, --client and the flags that go with them mean nothing; "+
			"leave them out, or the key", args[0])
	case len(args) == 0 && in.policy != "" && in.client.Client != "":
		return nil
	case in.policy != "":
		return errors.New("--policy without --client; write --client user:u_42")
	}
	return errors.New("inspect takes one KEY, in quotes, or --policy FILE with --client; write penstock redis inspect " +
		"'rl1:shop:api:{user:u_42}:60s:sw' --redis URL")
}

// inspectOne prints one counter and reports whether it could be read.
func inspectOne(ctx context.Context, out io.Writer, servers *redisadmin.Deployment, key string, check *core.Check) (bool, error) {
	counter, err := servers.Inspect(ctx, key, check)
	if err != nil {
		return false, err
	}
	return !counter.Wrong, counter.Print(out)
}

// inspectClient prints all counters of the client under the policy.
func (in *inspection) inspectClient(ctx context.Context, cmd *cobra.Command, servers *redisadmin.Deployment) (ok bool, err error) {
	client, err := named.Parse(in.client)
	if err != nil {
		return false, fmt.Errorf("--client: %w", err)
	}
	rules, err := in.rules(cmd.InOrStdin())
	if err != nil {
		return false, err
	}
	ok = true
	printed := 0
	var plan core.Plan
	for from, more := 0, true; more; more = from != 0 {
		plan.Reset()
		from = plan.AddAllOf(rules, client.In(rules), client, from)
		checks := plan.Checks()
		for i := range checks {
			if counter := plan.Counter(i); in.rule != "" && (counter.Rule < 0 || rules.RuleName(counter.Rule) != in.rule) {
				continue
			}
			if printed++; printed > 1 {
				fmt.Fprintln(cmd.OutOrStdout())
			}
			fine, err := inspectOne(ctx, cmd.OutOrStdout(), servers, string(checks[i].Key), &checks[i])
			if err != nil {
				return false, err
			}
			ok = ok && fine
		}
	}
	if printed == 0 {
		return false, fmt.Errorf("no rule of the policy counts %s by what is known of it; say more, by --user, --tier, --tenant or --host",
			client)
	}
	return ok, nil
}

// rules reads the policy.
func (in *inspection) rules(input io.Reader) (*core.Ruleset, error) {
	document, err := readPolicy(in.policy, input)
	if err != nil {
		return nil, err
	}
	switch {
	case in.name != "" && document.Name != "" && in.name != document.Name:
		return nil, fmt.Errorf("--name %q is not the name %q that stands in the policy file, which is the one that counts; leave it out",
			in.name, document.Name)
	case in.name == "" && document.Name == "":
		return nil, errors.New("the policy file has no name, so its counters cannot be found in Redis; add --name with the name that " +
			"stands in the Caddyfile")
	}
	document.Name = cmp.Or(document.Name, in.name)
	rules, err := document.Compile()
	if err != nil || in.rule == "" {
		return rules, err
	}
	var names []string
	for i := range rules.Len() {
		if rules.RuleName(i) == in.rule {
			return rules, nil
		}
		names = append(names, rules.RuleName(i))
	}
	return nil, fmt.Errorf("the policy has no rule %q; there are: %q", in.rule, names)
}
