// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/penstock/penstock/internal/control/archive"
	"github.com/penstock/penstock/internal/control/retain"
)

// Bounds of the days for which events and usage are kept. Batches come up to 30 days late.
const keepDaysMin, keepDaysMax = 31, 36_500

// By default, events are kept for keepEventsDefault, and usage and daily sums for keepUsageDefault.
const keepEventsDefault, keepUsageDefault = "90d", "2562d"

// archiveFlags are the flags for the place of the archive and for the retention times, as written.
type archiveFlags struct {
	place         archive.Place
	events, usage string
}

func (f *archiveFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.place.URL, "archive", "", "where months of events and usage go before they are dropped: s3://BUCKET/PREFIX; the keys are those of "+
		"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, of ~/.aws/credentials, or of the machine's role")
	flags.StringVar(&f.place.Endpoint, "archive-endpoint", "", "the `URL` of the S3 server (that of AWS)")
	flags.StringVar(&f.place.Region, "archive-region", "", "its `REGION`; without it, the server is asked")
	flags.StringVar(&f.events, "keep-events", keepEventsDefault, "how long events are kept in the database, at least 31d")
	flags.StringVar(&f.usage, "keep-usage", keepUsageDefault, "how long usage and daily sums are kept in the database, at least 31d")
}

// archiveFlags.keep returns how long rows are kept.
func (f *archiveFlags) keep() (k retain.Keep, err error) {
	for _, flag := range []struct {
		name, text string
		span       *time.Duration
	}{{"keep-events", f.events, &k.Events}, {"keep-usage", f.usage, &k.Days}} {
		days, wrong := strconv.Atoi(strings.TrimSuffix(flag.text, "d"))
		if wrong != nil || !strings.HasSuffix(flag.text, "d") || days < keepDaysMin || days > keepDaysMax {
			return k, fmt.Errorf("--%s %q is not a number of days from %d to %d: write 90d; less is not possible, because batches of nodes come up to 30 days late",
				flag.name, flag.text, keepDaysMin, keepDaysMax)
		}
		*flag.span = time.Duration(days) * 24 * time.Hour
	}
	return k, nil
}

// archiveFlags.bucket returns the bucket, or nil if none is named.
func (f *archiveFlags) bucket() (*archive.Bucket, error) {
	if f.place.URL == "" {
		if f.place.Endpoint != "" || f.place.Region != "" {
			return nil, errors.New("--archive-endpoint and --archive-region go with --archive: give that as well, or leave them out")
		}
		return nil, nil
	}
	return archive.OpenBucket(f.place)
}

// archiving is a command of the archive. An archiving uses the database and the bucket directly,
// without the API.
type archiving struct {
	controlFlags
	asJSON bool
}

// newArchiving returns a command with the default retention times, for commands that have no flags
// for these times.
func newArchiving() *archiving {
	c := new(archiving)
	c.archive.events, c.archive.usage = keepEventsDefault, keepUsageDefault
	return c
}

// runWithArchive calls do(...) with the archive. If the parameter needed is true, there must be a
// bucket.
func (c *archiving) runWithArchive(ctx context.Context, needed bool, do func(*archive.Archiver) error) error {
	bucket, err := c.archive.bucket()
	if err != nil {
		return err
	}
	if bucket == nil && needed {
		return errors.New("no archive is named: write --archive s3://BUCKET/PREFIX")
	}
	keep, err := c.archive.keep()
	if err != nil {
		return err
	}
	return c.withDatabase(ctx, func(pool *pgxpool.Pool) error {
		return do(&archive.Archiver{Pool: pool, Bucket: bucket, Keep: keep, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	})
}

// newControlArchive returns the commands of the archive.
func newControlArchive() *cobra.Command {
	cmd := &cobra.Command{Use: "archive", Short: "Move old months of events and usage to Parquet files on S3, and bring them back", Args: noArgs,
		Long: "Move months of events and usage that are older than they are kept to Parquet files in a bucket of S3, and bring them back.\n" +
			"penstock control serve --archive does the same every hour. These commands use the database and the bucket themselves.\n" +
			"A partition is dropped only after its files were read back whole and have its rows.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(newArchiveList(), newArchiveRun(), newArchiveVerify(), newArchiveQuery(), newArchiveRestore(), newArchiveOff())
	return cmd
}

func (c *archiving) command(use, short string, args cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: args, RunE: run}
	c.registerDatabase(cmd)
	return cmd
}

func newArchiveList() *cobra.Command {
	c := newArchiving()
	cmd := c.command("list", "List the months of the archive", noArgs, nil)
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.runWithArchive(cmd.Context(), false, func(a *archive.Archiver) error {
			months, err := a.List(cmd.Context())
			if err != nil {
				return err
			}
			if c.asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(append([]archive.Month{}, months...))
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "MONTH\tSTATE\tOBJECTS\tROWS\tBYTES\tVERIFIED\tUNTIL")
			for _, m := range months {
				fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", m.Partition, m.State, m.Objects, m.Rows, m.Bytes, timeOrDash(m.Verified), timeOrDash(m.Until))
			}
			return table.Flush()
		})
	}
	return cmd
}

func newArchiveRun() *cobra.Command {
	c := newArchiving()
	cmd := c.command("run", "Archive the months that are older than they are kept, and drop their partitions", noArgs, func(cmd *cobra.Command, _ []string) error {
		return c.runWithArchive(cmd.Context(), true, func(a *archive.Archiver) error {
			done, err := a.Round(cmd.Context(), time.Now())
			for _, partition := range done {
				fmt.Fprintf(cmd.OutOrStdout(), "%s is in the archive, and its partition is dropped\n", partition)
			}
			if err == nil && len(done) == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "no month is older than it is kept")
			}
			return err
		})
	})
	c.archive.register(cmd.Flags())
	return cmd
}

func newArchiveVerify() *cobra.Command {
	c := newArchiving()
	cmd := c.command("verify [MONTH]", "Read a month of the archive back whole, or all months, and compare with what was written", cobra.MaximumNArgs(1), nil)
	cmd.Long = "Read a month of the archive back whole, or all months, and compare with what was written: bytes, SHA-256, rows and sums of each\n" +
		"object, and the manifest. The exit status is 1 if anything differs or could not be read."
	c.archive.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.runWithArchive(cmd.Context(), true, func(a *archive.Archiver) error {
			if len(args) == 0 {
				months, err := a.List(cmd.Context())
				if err != nil {
					return err
				}
				for _, m := range months {
					if m.Verified != nil {
						args = append(args, m.Partition)
					}
				}
			}
			var problems []error
			for _, partition := range args {
				totals, err := a.Verify(cmd.Context(), partition)
				if err != nil {
					problems = append(problems, fmt.Errorf("%s: %w", partition, err))
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s is as it was written: %d rows\n", partition, totals.Rows)
			}
			return errors.Join(problems...)
		})
	}
	return cmd
}

func newArchiveRestore() *cobra.Command {
	c := newArchiving()
	var span string
	cmd := c.command("restore MONTH", "Bring a month of the archive back to the database for a while", cobra.ExactArgs(1), nil)
	cmd.Long = "Bring a month of the archive back to the database, as a partition of its table, until a time. It stays in the archive. If the\n" +
		"database does not know the month, because it was restored from a backup, the manifest in the bucket says what it is."
	cmd.Example = "  penstock control archive restore rate_limit_events_2026_01 --for 30d --archive s3://events/penstock"
	cmd.Flags().StringVar(&span, "for", "30d", "how long it stays in the database, at most 366d")
	c.archive.register(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		life, err := parseSpan("for", span)
		if err != nil {
			return err
		}
		return c.runWithArchive(cmd.Context(), true, func(a *archive.Archiver) error {
			now := time.Now()
			totals, err := a.Restore(cmd.Context(), args[0], now, now.Add(life))
			if err == nil {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is in the database until %s: %d rows\n", args[0], now.Add(life).UTC().Format(time.RFC3339), totals.Rows)
			}
			return err
		})
	}
	return cmd
}

func newArchiveOff() *cobra.Command {
	c := newArchiving()
	return c.command("off", "Let months be dropped that are not in the archive, from now on", noArgs, func(cmd *cobra.Command, _ []string) error {
		return c.runWithArchive(cmd.Context(), false, func(a *archive.Archiver) error {
			err := a.Off(cmd.Context())
			if err == nil {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "months are dropped without an archive; penstock control archive run, or serve --archive, turns it on again")
			}
			return err
		})
	})
}
