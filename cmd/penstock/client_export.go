// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// An export begins with a line {"export":{"version":1}} and ends with a line {"end":{…}} that
// counts its records. A file that begins with the first line but does not end with the last line is
// incomplete.
type exportHead struct {
	Export *struct {
		Version int `json:"version"`
	} `json:"export"`
}

type exportEnd struct {
	End *exportCounts `json:"end"`
}

// exportCounts counts the records of an export.
type exportCounts struct {
	Clients int `json:"clients"`
	Keys    int `json:"keys"`
}

const exportVersion = 1

// seenNames holds the names of records, by the beginning of their SHA-256, with the lines that name
// them.
type seenNames map[[16]byte]int32

// addName adds a name, and returns the line that already contains the name, or 0.
func (s seenNames) addName(name string, line int) (before int) {
	sum := sha256.Sum256([]byte(name))
	short := [16]byte(sum[:16])
	if at, twice := s[short]; twice {
		return int(at)
	}
	s[short] = int32(line)
	return 0
}

// clientEdits.export returns the command that prints all records.
func (c *clientEdits) export() *cobra.Command {
	return &cobra.Command{Use: "export", Short: "Print all records of the directory, clients and API keys, one JSON object a line", Args: noArgs,
		Long: "Print all records of the directory, of clients and of API keys, one JSON object a line, for penstock client import. The last\n" +
			"line counts them. Records that are changed meanwhile may be in the export as they were before. All keys of Redis are looked\n" +
			"at: its user needs the right +scan. API keys are exported by their SHA-256. With --json the output is the same.",
		Example: "  penstock client export > directory.ndjson",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.control.given() {
				return errors.New("an export reads the directory in Redis, to which the control plane writes: leave out --control, and name a Caddy, " +
					"a bridge or Redis")
			}
			done, err := c.admin.keepOpen(cmd.Context())
			if err != nil {
				return err
			}
			defer done()
			out := bufio.NewWriter(cmd.OutOrStdout())
			e := &exporting{c: c, out: out, err: cmd.ErrOrStderr(), seen: seenNames{}}
			if err := e.run(cmd.Context()); err != nil {
				return errors.Join(err, out.Flush())
			}
			return out.Flush()
		}}
}

// exporting is the state of one run of the export command.
type exporting struct {
	c       *clientEdits
	out     io.Writer
	err     io.Writer
	seen    seenNames
	counts  exportCounts
	leftOut int
}

func (e *exporting) run(ctx context.Context) error {
	head := exportHead{Export: &struct {
		Version int `json:"version"`
	}{exportVersion}}
	if err := e.line(head); err != nil {
		return err
	}
	if err := e.clients(ctx); err != nil {
		return fmt.Errorf("the export is not complete: %w", err)
	}
	if err := e.keys(ctx); err != nil {
		return fmt.Errorf("the export is not complete: %w", err)
	}
	if err := e.line(exportEnd{&e.counts}); err != nil {
		return err
	}
	if e.leftOut > 0 {
		return fmt.Errorf("%d records cannot be read and are not in the export; the others are", e.leftOut)
	}
	return nil
}

func (e *exporting) line(value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		_, err = e.out.Write(append(text, '\n'))
	}
	return err
}

// exporting.clients prints the records of all clients.
func (e *exporting) clients(ctx context.Context) error {
	query := directory.ListQuery{Most: directory.ListMax}
	for {
		page, err := e.c.page(ctx, query)
		if err != nil {
			return err
		}
		for i := range page.Clients {
			if err := e.client(ctx, &page.Clients[i]); err != nil {
				return err
			}
		}
		if query.After = page.After; page.After == "" {
			return nil
		}
	}
}

// exporting.client prints the record of a client. A listing may name a client twice. If it has many
// long records, it names clients without their records, and the method requests the record.
func (e *exporting) client(ctx context.Context, one *directory.Listed) error {
	record := one.Record
	if record == nil {
		entry, err := decodeReply[operator.ClientEntry](e.c.admin.ask(ctx, http.MethodGet, "record", url.Values{"client": {one.Client}, "n": {"1"}}))
		if err != nil {
			e.problem(one.Client, one.Problem)
			return nil
		}
		if record = entry.Record; record == nil {
			return nil // removed meanwhile
		}
	}
	text := record.Text()
	if text == nil || e.seen.addName(one.Client, 1) != 0 {
		return nil
	}
	e.counts.Clients++
	return e.line(directory.Line{Client: one.Client, Record: text})
}

// exporting.problem reports a record that is left out.
func (e *exporting) problem(name, why string) {
	e.leftOut++
	fmt.Fprintf(e.err, "left out: %s: %s\n", quoteUnprintable(name), quoteUnprintable(why))
}

// exporting.keys prints the records of all keys.
func (e *exporting) keys(ctx context.Context) error {
	query := url.Values{"n": {fmt.Sprint(directory.KeyPageMax)}}
	for {
		page, err := decodeReply[directory.KeysShown](e.c.admin.ask(ctx, http.MethodGet, "keys", query))
		if err != nil {
			return err
		}
		for _, key := range page.Keys {
			if key.Record == nil {
				e.problem("the key "+key.Hash, "its record has no force")
				continue
			}
			e.counts.Keys++
			if err := e.line(directory.Line{Key: key.Hash, Record: key.Record.Text()}); err != nil {
				return err
			}
		}
		if query.Set("after", page.After); page.After == "" {
			return nil
		}
	}
}
