// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/ledger"
)

// newControlTier returns the commands of the tiers that clients may have. These commands call the
// API.
func newControlTier() *cobra.Command {
	cmd := &cobra.Command{Use: "tier", Short: "List, make and delete the tiers that clients may have", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newTierList(), newTierPut(), newTierDelete())
	return cmd
}

func tierPath(name string) string { return "/v1/tiers/" + url.PathEscape(name) }

func newTierList() *cobra.Command {
	c := new(controlCommand)
	return c.command("list", "List the tiers", noArgs, func(cmd *cobra.Command, _ []string) error {
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "TIER\tNAME\tPRICE\tUPDATED\tNOTE")
		for after := ""; ; {
			var page struct {
				Tiers []ledger.Tier
				Next  string
			}
			if _, err := c.send(cmd.Context(), http.MethodGet, "/v1/tiers?after="+url.QueryEscape(after), nil, &page); err != nil {
				return err
			}
			for _, t := range page.Tiers {
				price := "-"
				if t.Currency != "" {
					price = fmt.Sprintf("%d.%02d %s", t.PriceCents/100, t.PriceCents%100, quoteUnprintable(t.Currency))
				}
				fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", quoteUnprintable(t.Tier), quoteUnprintable(cmp.Or(t.DisplayName, "-")), price, t.UpdatedAt.Format(time.RFC3339), quoteUnprintable(t.Note))
			}
			if after = page.Next; after == "" {
				return table.Flush()
			}
		}
	})
}

func newTierPut() *cobra.Command {
	c, tier := new(controlCommand), ledger.Tier{}
	cmd := c.addReasonFlag(c.command("put NAME", "Make a tier, or replace its note and what it is sold as", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		_, err := c.sendJSON(cmd.Context(), http.MethodPut, tierPath(args[0]), struct {
			Note string `json:"note,omitempty"`
			ledger.Sold
			Reason string `json:"reason"`
		}{tier.Note, tier.Sold, c.reason}, nil)
		return err
	}))
	flags := cmd.Flags()
	flags.StringVar(&tier.Note, "note", "", "a note")
	flags.StringVar(&tier.DisplayName, "display-name", "", "the name for people")
	flags.Int64Var(&tier.PriceCents, "price-cents", 0, "the price a month, in hundredths of the currency")
	flags.StringVar(&tier.Currency, "currency", "", "the currency of the price, such as USD")
	return cmd
}

func newTierDelete() *cobra.Command {
	c := new(controlCommand)
	return c.addReasonFlag(c.command("delete NAME", "Delete a tier that no client has", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		_, err := c.send(cmd.Context(), http.MethodDelete, tierPath(args[0])+"?reason="+url.QueryEscape(c.reason), nil, nil)
		return err
	}))
}
