// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/control/archive"
)

// errEnough ends a query after the wanted number of rows.
var errEnough = errors.New("enough rows")

// newArchiveQuery returns the command that prints rows of a month of the archive.
func newArchiveQuery() *cobra.Command {
	c, filters, most := newArchiving(), map[string]*string{}, 0
	cmd := c.command("query MONTH", "Print rows of a month of the archive, without restoring it", cobra.ExactArgs(1), nil)
	cmd.Long = "Print rows of a month of the archive, the oldest events first, as one JSON object for each row. The month is read from the bucket as a\n" +
		"whole, and nothing is written to the database. To ask more often, or by SQL, restore the month."
	cmd.Example = "  penstock control archive query rate_limit_events_2026_01 --client user:ann --archive s3://events/penstock"
	flags := cmd.Flags()
	for name, help := range map[string]string{"client": "only this `CLIENT`", "rule": "only this `RULE`", "policy": "only this `POLICY`"} {
		filters[name] = flags.String(name, "", help)
	}
	flags.IntVarP(&most, "number", "n", 0, "how many at most (all)")
	c.archive.register(flags)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		columns, err := archive.Columns(args[0])
		if err != nil {
			return err
		}
		wanted := map[string]string{}
		for name, value := range filters {
			if *value != "" {
				wanted[name] = *value
			}
		}
		return c.runWithArchive(cmd.Context(), true, func(a *archive.Archiver) error {
			out, rows := bufio.NewWriter(cmd.OutOrStdout()), 0
			err := a.Query(cmd.Context(), args[0], wanted, func(values []any) error {
				if rows++; most > 0 && rows > most {
					return errEnough
				}
				return printRow(out, columns, values)
			})
			if errors.Is(err, errEnough) {
				err = nil
			}
			return errors.Join(err, out.Flush())
		})
	}
	return cmd
}

// fieldOf maps a column to its name in the API, if the two names differ.
var fieldOf = map[string]string{"limited": "limit", "events": "count"}

// printRow prints the values of a row that are not empty, under the names of the API.
func printRow(to io.Writer, columns []string, values []any) error {
	var line strings.Builder
	for i, column := range columns {
		value := values[i]
		switch v := value.(type) {
		case nil:
			continue
		case string:
			if v == "" {
				continue
			}
		case *int64:
			if v == nil {
				continue
			}
		case netip.Prefix:
			if value = v; v.IsSingleIP() {
				value = v.Addr()
			}
		case time.Time:
			if column == "day" {
				value = v.Format(time.DateOnly)
			}
		}
		text, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if field, ok := fieldOf[column]; ok {
			column = field
		}
		fmt.Fprintf(&line, `,%q:%s`, column, text)
	}
	_, err := fmt.Fprintf(to, "{%s}\n", strings.TrimPrefix(line.String(), ","))
	return err
}
