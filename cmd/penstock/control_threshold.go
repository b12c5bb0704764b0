// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/notify"
	"github.com/penstock/penstock/internal/listen"
)

// webhookFlags are the flags for calls of the receivers of thresholds, as written.
type webhookFlags struct {
	secret string
	allow  []string
}

func (f *webhookFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.secret, "webhook-secret", "", "a `FILE` with the secret that signs notices of usage, made by penstock control threshold secret")
	flags.StringArrayVar(&f.allow, "webhook-allow", nil, "a `NETWORK` such as 10.1.0.0/16 whose receivers may be called, also without https; 127.0.0.0/8 for those of this machine; may be repeated")
}

// webhookFlags.caller returns the caller of receivers, or nil if there is no secret.
func (f *webhookFlags) caller(logger *slog.Logger) (*notify.Caller, error) {
	if f.secret == "" {
		if len(f.allow) > 0 {
			return nil, errors.New("--webhook-allow goes with --webhook-secret: give that as well, or leave it out")
		}
		return nil, nil
	}
	var allowed []netip.Prefix
	for _, text := range f.allow {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--webhook-allow %q is no network: write 10.1.0.0/16", text)
		}
		allowed = append(allowed, prefix.Masked())
	}
	text, err := listen.ReadSecret(f.secret)
	if err != nil {
		return nil, fmt.Errorf("--webhook-secret: %w; make one with penstock control threshold secret FILE", err)
	}
	secrets, err := notify.ParseSecrets(text)
	if err != nil {
		return nil, fmt.Errorf("--webhook-secret %q: %w", f.secret, err)
	}
	if info, err := os.Stat(f.secret); err == nil && info.Mode().Perm()&0o077 != 0 {
		logger.Warn("others on this machine can read the secret that signs notices: chmod 600", "file", f.secret)
	}
	return notify.NewCaller(secrets, allowed), nil
}

// newControlThreshold returns the commands of thresholds. These commands call the API.
func newControlThreshold() *cobra.Command {
	cmd := &cobra.Command{Use: "threshold", Short: "Tell receivers by webhook when clients have used a share of a quota", Args: noArgs,
		Long: "Tell receivers by webhook when clients have used a share of a quota in a calendar month of UTC. Each client, month and share is told\n" +
			"once, by a signed POST that is repeated until it is answered 2xx, for three days. It limits nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newThresholdPut(), newThresholdList(), newThresholdNotices(), newThresholdDelete(), newThresholdSecret())
	return cmd
}

func thresholdPath(name string) string { return "/v1/thresholds/" + url.PathEscape(name) }

func newThresholdPut() *cobra.Command {
	c, t := new(controlCommand), new(ledger.Threshold)
	cmd := c.addReasonFlag(c.command("put NAME", "Make or replace a threshold", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		body := map[string]any{"policy": t.Policy, "rule": t.Rule, "client": t.Client, "tier": t.Tier, "units": t.Units, "percents": t.Percents,
			"url": t.URL, "reason": c.reason}
		var put ledger.Threshold
		if _, err := c.sendJSON(cmd.Context(), http.MethodPut, thresholdPath(args[0]), body, &put); err != nil {
			return err
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "threshold %s: %s is told at %v%% of %d units in a month\n", put.Threshold, put.URL, put.Percents, put.Units)
		return err
	}))
	cmd.Example = "  penstock control threshold put gold --policy shop --rule api --tier gold --units 100000 --percents 80,100 --url https://billing.example.com/hook --reason billing"
	flags := cmd.Flags()
	flags.StringVar(&t.Policy, "policy", "", "the policy; required")
	flags.StringVar(&t.Rule, "rule", "", "the rule whose units count; required")
	flags.StringVar(&t.Client, "client", "", "only this client; without it each client by itself")
	flags.StringVar(&t.Tier, "tier", "", "only usage in this tier")
	flags.Int64Var(&t.Units, "units", 0, "the quota of a month; required")
	flags.IntSliceVar(&t.Percents, "percents", []int{80, 100}, "the shares of the quota that are told")
	flags.StringVar(&t.URL, "url", "", "who is told; required")
	return cmd
}

func newThresholdList() *cobra.Command {
	c := new(controlCommand)
	return c.command("list", "List the thresholds", noArgs, func(cmd *cobra.Command, _ []string) error {
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "THRESHOLD\tPOLICY\tRULE\tCLIENT\tTIER\tUNITS\tPERCENTS\tURL")
		for after := ""; ; {
			var page struct {
				Thresholds []ledger.Threshold
				Next       string
			}
			if _, err := c.send(cmd.Context(), http.MethodGet, "/v1/thresholds?after="+url.QueryEscape(after), nil, &page); err != nil {
				return err
			}
			for _, t := range page.Thresholds {
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%v\t%s\n", quoteUnprintable(t.Threshold), quoteUnprintable(t.Policy), quoteUnprintable(t.Rule), quoteUnprintable(t.Client), quoteUnprintable(t.Tier),
					t.Units, t.Percents, quoteUnprintable(t.URL))
			}
			if after = page.Next; after == "" {
				return table.Flush()
			}
		}
	})
}

func newThresholdNotices() *cobra.Command {
	c := new(controlCommand)
	return c.command("notices NAME", "List what a threshold has told lately", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		var page struct{ Notices []ledger.Notice }
		if _, err := c.send(cmd.Context(), http.MethodGet, thresholdPath(args[0])+"/notices", nil, &page); err != nil {
			return err
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "MADE\tCLIENT\tMONTH\tPERCENT\tUSED\tATTEMPTS\tSTATE")
		for i := range page.Notices {
			n := &page.Notices[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%.0f\t%d\t%s\n", n.MadeAt.Format(time.RFC3339), quoteUnprintable(n.Client), quoteUnprintable(n.Month), n.Percent, n.Used, n.Attempts, noticeState(n))
		}
		return table.Flush()
	})
}

// noticeState returns what has become of a notice, in words.
func noticeState(n *ledger.Notice) string {
	switch {
	case n.Delivered != nil:
		return "delivered " + n.Delivered.UTC().Format(time.RFC3339)
	case n.NextAt == nil:
		return "given up: " + quoteUnprintable(n.Trouble)
	case n.Trouble != "":
		return "again " + n.NextAt.UTC().Format(time.RFC3339) + ": " + quoteUnprintable(n.Trouble)
	}
	return "waits"
}

func newThresholdDelete() *cobra.Command {
	c := new(controlCommand)
	return c.addReasonFlag(c.command("delete NAME", "Remove a threshold", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		_, err := c.send(cmd.Context(), http.MethodDelete, thresholdPath(args[0])+"?reason="+url.QueryEscape(c.reason), nil, nil)
		return err
	}))
}

func newThresholdSecret() *cobra.Command {
	return &cobra.Command{Use: "secret FILE", Short: "Make the secret that signs notices, in a file that only this user reads", Args: cobra.ExactArgs(1),
		Long: "Make a secret in FILE, for penstock control serve --webhook-secret FILE and for the receivers. To replace one, write the new secret into a\n" +
			"second line: messages are signed by both. Give receivers the new one, then remove the first line.",
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("%w: a secret that is in use stays; choose another file", err)
			}
			if err != nil {
				return err
			}
			_, err = file.WriteString(notify.NewSecret() + "\n")
			return errors.Join(err, file.Close())
		}}
}
