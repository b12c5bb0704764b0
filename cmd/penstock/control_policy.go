// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// policyCommand holds what the commands for policies have in common.
type policyCommand struct {
	controlCommand
	name string
}

// newControlPolicy returns the commands for policies. These commands call the API.
func newControlPolicy() *cobra.Command {
	cmd := &cobra.Command{Use: "policy", Short: "Write, compare and publish policies", Args: noArgs,
		Long: "Write, compare and publish the policies of a control plane, through its API. A write makes a revision and publishes nothing.\n" +
			"If the control plane has one policy, --name may be left out.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newPolicyPut(), newPolicyGet(), newPolicyList(), newPolicyDiff(), newPolicyRollBack(), newPolicyPublish(), newPolicyExplain(),
		newControlPolicyKey())
	return cmd
}

// policyCommand.command returns a command whose flags name the control plane and the policy.
func (p *policyCommand) command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := p.controlCommand.command(use, short, args, run)
	cmd.Flags().StringVar(&p.name, "name", "", "the name of the policy")
	return cmd
}

// policyCommand.path returns the path of the policy in the API.
func (p *policyCommand) path(ctx context.Context) (string, error) {
	if p.name == "" {
		var all struct{ Policies []ledger.Policy }
		if _, err := p.send(ctx, http.MethodGet, "/v1/policies?limit=2", nil, &all); err != nil {
			return "", err
		}
		switch len(all.Policies) {
		case 0:
			return "", errors.New("the control plane has no policy: write --name NAME")
		case 1:
			p.name = all.Policies[0].Policy
		default:
			return "", errors.New("the control plane has several policies: write --name NAME")
		}
	}
	return "/v1/policies/" + url.PathEscape(p.name), nil
}

func newPolicyPut() *cobra.Command {
	p := new(policyCommand)
	var revision int64
	cmd := p.command("put FILE", "Write a revision of a policy, which is not published yet", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		format, ok := syntax.FormatOf(args[0])
		if !ok {
			return fmt.Errorf("policy file %q: the extension must be .yaml, .yml, .toml or .json", args[0])
		}
		text, err := readInput(args[0], nil)
		if err != nil {
			return err
		}
		base := filepath.Base(args[0])
		d, err := policyfile.Decode(base, format, text)
		if err != nil {
			return err
		}
		if p.name = cmp.Or(p.name, d.Name); p.name == "" {
			return fmt.Errorf("policy file %q has no name: write name: shop in it, or --name shop", args[0])
		}
		path, err := p.path(cmd.Context())
		if err != nil {
			return err
		}
		body := map[string]string{"text": string(text), "format": [...]string{"yaml", "toml", "json"}[format], "file": base, "reason": p.reason}
		if revision < 0 {
			if revision, err = p.head(cmd.Context(), path); err != nil {
				return err
			}
		}
		header := []string{"If-Match", strconv.Quote(strconv.FormatInt(revision, 10))}
		if revision == 0 {
			header = []string{"If-None-Match", "*"}
		}
		var put ledger.Revision
		if _, err := p.sendJSON(cmd.Context(), http.MethodPut, path, body, &put, header...); err != nil {
			return err
		}
		return printRevision(cmd.OutOrStdout(), &put)
	})
	p.addReasonFlag(cmd)
	cmd.Flags().Int64Var(&revision, "if-revision", -1, "the `REVISION` that must be the latest, 0 for none; without it, the one that is the latest now")
	return cmd
}

// policyCommand.head returns the latest revision, or 0 if there is no policy.
func (p *policyCommand) head(ctx context.Context, path string) (int64, error) {
	var found struct{ Head int64 }
	status, err := p.send(ctx, http.MethodGet, path, nil, &found)
	if status == http.StatusNotFound {
		return 0, nil
	}
	return found.Head, err
}

func printRevision(w io.Writer, r *ledger.Revision) error {
	what := "is written, and not published yet"
	if r.Unchanged {
		what = "has this content already"
	}
	_, err := fmt.Fprintf(w, "revision %d of %s %s (version %s)\n", r.Revision, r.Policy, what, r.Version)
	return err
}

func newPolicyGet() *cobra.Command {
	p := new(policyCommand)
	var revision int64
	cmd := p.command("get", "Print a revision of a policy, as a policy file in JSON", noArgs, func(cmd *cobra.Command, _ []string) error {
		path, err := p.path(cmd.Context())
		if err != nil {
			return err
		}
		if revision != 0 {
			path += fmt.Sprintf("?revision=%d", revision)
		}
		var found struct{ Document json.RawMessage }
		if _, err := p.send(cmd.Context(), http.MethodGet, path, nil, &found); err != nil {
			return err
		}
		return printJSON(cmd.OutOrStdout(), found.Document)
	})
	cmd.Flags().Int64Var(&revision, "revision", 0, "the revision (the latest)")
	return cmd
}

func newPolicyList() *cobra.Command {
	p := new(policyCommand)
	return p.command("list", "List policies, or with --name the revisions of one", noArgs, func(cmd *cobra.Command, _ []string) error {
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
		if p.name != "" {
			path, err := p.path(cmd.Context())
			if err != nil {
				return err
			}
			var all struct{ Revisions []ledger.Revision }
			if _, err := p.send(cmd.Context(), http.MethodGet, path+"/revisions", nil, &all); err != nil {
				return err
			}
			fmt.Fprintln(table, "REVISION\tVERSION\tTIME\tACTOR\tCHANGE\tREASON")
			for _, r := range all.Revisions {
				fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", r.Revision, r.Version, r.At.Format(time.RFC3339), quoteUnprintable(r.Actor), r.Action,
					quoteUnprintable(r.Reason))
			}
			return table.Flush()
		}
		fmt.Fprintln(table, "POLICY\tLATEST\tIN FORCE\tCANDIDATE")
		for after := ""; ; {
			var page struct {
				Policies []ledger.Policy
				Next     string
			}
			if _, err := p.send(cmd.Context(), http.MethodGet, "/v1/policies?after="+url.QueryEscape(after), nil, &page); err != nil {
				return err
			}
			for i := range page.Policies {
				one := &page.Policies[i]
				fmt.Fprintf(table, "%s\t%d\t%s\t%s\n", one.Policy, one.Head, orDash(one.Revision), candidateText(one))
			}
			if after = page.Next; after == "" {
				return table.Flush()
			}
		}
	})
}

// candidateText describes the candidate of a policy.
func candidateText(p *ledger.Policy) string {
	text := fmt.Sprintf("%d on %v of the nodes", p.Candidate, p.Share)
	switch {
	case p.Candidate == 0:
		return "-"
	case p.Step == ledger.StepShadow:
		return fmt.Sprintf("%d in shadow", p.Candidate)
	case p.ClientShare > 0:
		text = fmt.Sprintf("%d for %v of the clients", p.Candidate, p.ClientShare)
	}
	if p.DenialsMax > 0 {
		text += fmt.Sprintf(", up to %v denials", p.DenialsMax)
	}
	return text + promotionText(p)
}

// promotionText returns a text that says when a candidate is published to all nodes automatically,
// or "" for never.
func promotionText(p *ledger.Policy) string {
	if p.PromoteAfterSeconds == 0 {
		return ""
	}
	after := ", to all after " + policyfile.SpanText(counter.Micros(p.PromoteAfterSeconds*1e6))
	switch m := p.Promotion; {
	case m == nil:
		return after
	case m.At != nil:
		return ", to all at " + m.At.Format(time.RFC3339)
	default:
		return fmt.Sprintf("%s, of which %v are over: %s", after, time.Duration(m.ObservedSeconds)*time.Second, quoteUnprintable(m.Obstacle))
	}
}

func newPolicyDiff() *cobra.Command {
	p := new(policyCommand)
	return p.command("diff FROM [TO]", "Compare two revisions, and name the counters that start at zero", cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
		path, err := p.path(cmd.Context())
		if err != nil {
			return err
		}
		path += "/diff?from=" + url.QueryEscape(args[0])
		if len(args) > 1 {
			path += "&to=" + url.QueryEscape(args[1])
		}
		var diff struct{ Words, Added, Removed, Changed, Anew []string }
		if _, err := p.send(cmd.Context(), http.MethodGet, path, nil, &diff); err != nil {
			return err
		}
		same := true
		for _, part := range []struct {
			what string
			list []string
		}{{"changed", diff.Words}, {"rules added", diff.Added}, {"rules removed", diff.Removed}, {"rules changed", diff.Changed},
			{"counters that start at zero", diff.Anew}} {
			if len(part.list) > 0 {
				same = false
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", part.what, strings.Join(part.list, ", "))
			}
		}
		if same {
			fmt.Fprintln(cmd.OutOrStdout(), "nothing differs")
		}
		return nil
	})
}

func newPolicyRollBack() *cobra.Command {
	p := new(policyCommand)
	cmd := p.command("rollback REVISION", "Write a revision with the content of an earlier one, and publish it to all nodes", cobra.ExactArgs(1),
		func(cmd *cobra.Command, args []string) error {
			revision, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("%q is no revision: write a number of penstock control policy list --name NAME", args[0])
			}
			path, err := p.path(cmd.Context())
			if err != nil {
				return err
			}
			var put ledger.Revision
			if _, err := p.sendJSON(cmd.Context(), http.MethodPost, path+"/rollback", map[string]any{"revision": revision, "reason": p.reason}, &put); err != nil {
				return err
			}
			return p.publish(cmd, path, map[string]any{"step": ledger.StepAll, "revision": put.Revision, "reason": p.reason})
		})
	p.addReasonFlag(cmd)
	return cmd
}

func newPolicyPublish() *cobra.Command {
	p := new(policyCommand)
	var shadow, all, withdraw bool
	var share, clients, denials, promote string
	cmd := p.command("publish [REVISION]", "Publish a revision to nodes, the latest if none is named", cobra.MaximumNArgs(1), func(cmd *cobra.Command, args []string) error {
		body := map[string]any{"reason": p.reason}
		steps := 0
		for _, one := range []struct {
			step  ledger.Step
			given bool
		}{{ledger.StepShadow, shadow}, {ledger.StepAll, all}, {ledger.StepWithdraw, withdraw}, {ledger.StepShare, share != ""}, {ledger.StepShare, clients != ""}} {
			if one.given {
				body["step"] = one.step
				steps++
			}
		}
		if steps != 1 {
			return errors.New("write one of --shadow, --share 10%, --client-share 10%, --all and --withdraw")
		}
		for _, flag := range [][3]string{{"share", share, "share_percent"}, {"client-share", clients, "client_share_percent"},
			{"denials-max", denials, "denials_max_percent"}} {
			name, text, field := flag[0], flag[1], flag[2]
			if text == "" {
				continue
			}
			percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
			if err != nil || !strings.HasSuffix(text, "%") {
				return fmt.Errorf("--%s %q is no share: write 10%%", name, text)
			}
			body[field] = percent
		}
		if promote != "" {
			after, err := parseSpan("promote-after", promote)
			if err != nil {
				return err
			}
			body["promote_after_seconds"] = max(1, int64(after/time.Second)) // 0 would mean never
		}
		if len(args) > 0 {
			revision, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil {
				return fmt.Errorf("%q is no revision: write a number of penstock control policy list --name NAME", args[0])
			}
			body["revision"] = revision
		}
		path, err := p.path(cmd.Context())
		if err != nil {
			return err
		}
		return p.publish(cmd, path, body)
	})
	p.addReasonFlag(cmd)
	flags := cmd.Flags()
	flags.BoolVar(&shadow, "shadow", false, "nodes compare the revision with the policy in force")
	flags.StringVar(&share, "share", "", "a `SHARE` of the nodes enforces the revision: 10%")
	flags.StringVar(&clients, "client-share", "", "all nodes enforce the revision for a `SHARE` of the clients: 10%")
	flags.StringVar(&denials, "denials-max", "", "with a share: withdraw the revision if it denies a greater `SHARE` of requests: 5%")
	flags.StringVar(&promote, "promote-after", "", "with --denials-max: publish the revision to all by itself if it stays within its bound for a `TIME`: 24h")
	flags.BoolVar(&all, "all", false, "all nodes enforce the revision")
	flags.BoolVar(&withdraw, "withdraw", false, "no node enforces or compares the candidate any more")
	return cmd
}

// policyCommand.publish makes a step of a publication, and prints the result.
func (p *policyCommand) publish(cmd *cobra.Command, path string, body map[string]any) error {
	var after ledger.Policy
	if _, err := p.sendJSON(cmd.Context(), http.MethodPost, path+"/publication", body, &after); err != nil {
		return err
	}
	text := fmt.Sprintf("revision %d of %s is published to all nodes", after.Revision, after.Policy)
	if after.Candidate != 0 {
		text += ", and revision " + candidateText(&after)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s (generation %d)\n", text, after.Generation)
	return err
}
