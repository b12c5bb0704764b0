// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/penstock/penstock/internal/directory"
)

// writeKeys prints keys for people. Only a control plane knows when keys were used.
func (k *keyEdits) writeKeys(w io.Writer, shown *directory.KeysShown) {
	if len(shown.Keys) == 0 {
		fmt.Fprintln(w, "there are no keys")
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	used := ""
	if k.control.given() {
		used = "LAST USED\t"
	}
	fmt.Fprintln(table, "NAME\tHASH\tSTATE\tCLIENT\tTIER\tEXPIRES\t"+used+"REVOKED")
	for _, key := range shown.Keys {
		r := cmp.Or(key.Record, new(directory.KeyRecord))
		if used != "" {
			used = timeOr(key.LastUsedAt, "-") + "\t"
		}
		revoked := "-"
		if r.Revoked != nil {
			revoked = fmt.Sprintf("%s by %s: %s", r.Revoked.At.UTC().Format(time.RFC3339), r.Revoked.By, r.Revoked.Reason)
		}
		fmt.Fprintf(table, "%s\t%.12s\t%s\t%s\t%s\t%s\t%s%s\n", quoteUnprintable(r.Name), quoteUnprintable(key.Hash), quoteUnprintable(string(key.State)), quoteUnprintable(r.Client),
			quoteUnprintable(r.Tier), timeOr(r.ExpiresAt, "never"), used, quoteUnprintable(revoked))
	}
	_ = table.Flush()
}

// timeOr returns a time as text for people, or the text none if the time is zero.
func timeOr(at time.Time, none string) string {
	if at.IsZero() {
		return none
	}
	return at.UTC().Format(time.RFC3339)
}
