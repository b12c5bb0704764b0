// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/directory"
)

// The columns of a table of clients. The ignored columns contain what clients have used.
var (
	clientColumns  = []string{"user_id", "tier", "custom_limit_per_hour", "custom_limit_per_day", "custom_burst_size", "is_blocked", "block_reason", "blocked_until"}
	ignoredColumns = []string{
		"total_requests_today", "total_requests_month", "last_request_at", "quota_reset_at", "quota_exceeded_count", "upgraded_at",
		"created_at", "updated_at",
	}
)

// clientImport is the import of a table of clients.
type clientImport struct {
	controlCommand
	kind  string
	now   time.Time
	tiers map[string]bool
	made  int
	known int
	ended int
}

// newControlImport returns the command that imports a table of clients.
func newControlImport() *cobra.Command {
	c := &clientImport{}
	cmd := c.command("import-clients FILE", "Make records of the clients in a table, as CSV", cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
		from, err := openInput(args[0], cmd.InOrStdin())
		if err != nil {
			return err
		}
		defer from.Close()
		c.now = time.Now()
		if err := c.read(cmd.Context(), from); err != nil {
			return fmt.Errorf("%s: %w; %d clients before it have records now, %d had one already", args[0], err, c.made, c.known)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d clients have records now, %d had one already and keep it; %d blocks have ended and are left out\n", c.made, c.known, c.ended)
		return err
	})
	cmd.Long = "Make records of the clients in a table, such as PostgreSQL's COPY … TO … WITH (FORMAT csv, HEADER) writes it. The columns are " +
		strings.Join(clientColumns, ", ") + ";\nthose that say what clients used are ignored. A client that has a record keeps it, so an import that was interrupted may be repeated.\n" +
		"Tiers that are missing are made. Custom limits apply to every rule that counts the client. Times without a zone are UTC."
	c.addReasonFlag(cmd)
	cmd.Flags().StringVar(&c.kind, "kind", "user", "the kind of the clients: user, api_key, or header.x-user for those that a header names")
	return cmd
}

// clientImport.read imports the rows.
func (c *clientImport) read(ctx context.Context, from io.Reader) error {
	rows := csv.NewReader(from)
	header, err := rows.Read()
	if err != nil {
		return fmt.Errorf("the header cannot be read: %w; the first line names the columns: %s", err, strings.Join(clientColumns, ", "))
	}
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(header[i], "\ufeff")))
		if slices.Contains(header[:i], header[i]) || !slices.Contains(clientColumns, header[i]) && !slices.Contains(ignoredColumns, header[i]) {
			return fmt.Errorf("the column %.60q appears twice or is unknown; there are: %s", header[i], strings.Join(clientColumns, ", "))
		}
	}
	if !slices.Contains(header, "user_id") {
		return errors.New("the column user_id is missing; name it in the first line")
	}
	for {
		cells, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		line, _ := rows.FieldPos(0)
		row := map[string]string{}
		for i, column := range header {
			if text := strings.TrimSpace(cells[i]); text != `\N` && !strings.EqualFold(text, "NULL") {
				row[column] = text
			}
		}
		record, err := c.record(row)
		if err == nil {
			err = c.put(ctx, c.kind+":"+row["user_id"], record)
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
	}
}

// clientImport.record returns the record of a row.
func (c *clientImport) record(row map[string]string) (*directory.Record, error) {
	r := &directory.Record{Tier: row["tier"]}
	burst := ""
	if text := row["custom_burst_size"]; text != "" {
		burst = " burst " + text
	}
	var limits []string
	for _, column := range []struct{ name, window string }{{"custom_limit_per_hour", "1h"}, {"custom_limit_per_day", "1d"}} {
		text := row[column.name]
		if text == "" {
			continue
		}
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			return nil, fmt.Errorf("%s %.40q is no whole number: write 500, or leave it empty", column.name, text)
		}
		limits = append(limits, text+"/"+column.window+burst)
		burst = "" // only the shortest window has the burst
	}
	if burst != "" {
		return nil, fmt.Errorf("custom_burst_size %.40q goes with custom_limit_per_hour or _per_day", row["custom_burst_size"])
	}
	if limits != nil {
		r.Limits = map[string]directory.Limits{"*": {Limits: limits, Reason: c.reason}}
	}
	blocked := strings.ToLower(row["is_blocked"])
	switch blocked {
	case "f", "false", "0", "no":
		return r, nil
	case "", "t", "true", "1", "yes":
	default:
		return nil, fmt.Errorf("is_blocked %.40q is neither true nor false: write one of them", row["is_blocked"])
	}
	until, err := instantOf(row["blocked_until"])
	switch {
	case err != nil:
		return nil, fmt.Errorf("blocked_until %.40q is no time: write 2026-11-23T12:00:00Z", row["blocked_until"])
	case blocked == "" && until.After(c.now):
		return nil, fmt.Errorf("is_blocked is empty, and blocked_until %.40q has not passed: write true or false", row["blocked_until"])
	case blocked == "":
		return r, nil
	}
	if !until.IsZero() && !until.After(c.now) {
		c.ended++
		return r, nil
	}
	r.Block = &directory.Mark{Until: until, Reason: row["block_reason"]}
	return r, nil
}

// instantOf parses a time as PostgreSQL writes it. A time without a zone is in UTC. The zero time
// stands for an empty text.
func instantOf(text string) (t time.Time, err error) {
	if text == "" {
		return t, nil
	}
	for _, form := range []string{time.RFC3339, "2006-01-02 15:04:05Z07", "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05", "2006-01-02T15:04:05", time.DateOnly} {
		if t, err = time.Parse(form, text); err == nil {
			return t.UTC(), nil
		}
	}
	return t, err
}

// clientImport.put makes a record, unless the client has one.
func (c *clientImport) put(ctx context.Context, client string, record *directory.Record) error {
	if record.Text() == nil {
		return nil // a row that says nothing
	}
	if err := c.hasTier(ctx, record.Tier); err != nil {
		return err
	}
	var after json.RawMessage
	status, err := c.sendJSON(ctx, http.MethodPut, clientPath(client), map[string]any{"record": record, "reason": c.reason}, &after, "If-None-Match", "*")
	switch {
	case status == http.StatusPreconditionFailed:
		c.known++
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", client, err)
	}
	c.made++
	return nil
}

// hasTier creates a tier unless one with that name exists.
func (c *clientImport) hasTier(ctx context.Context, tier string) error {
	if tier == "" || c.tiers[tier] {
		return nil
	}
	if c.tiers == nil {
		c.tiers = map[string]bool{}
		for after := ""; ; {
			var page struct {
				Tiers []struct{ Tier string }
				Next  string
			}
			if _, err := c.send(ctx, http.MethodGet, "/v1/tiers?limit=1000&after="+url.QueryEscape(after), nil, &page); err != nil {
				return err
			}
			for _, t := range page.Tiers {
				c.tiers[t.Tier] = true
			}
			if after = page.Next; after == "" {
				break
			}
		}
	}
	if c.tiers[tier] {
		return nil
	}
	var made json.RawMessage
	c.tiers[tier] = true
	_, err := c.sendJSON(ctx, http.MethodPut, "/v1/tiers/"+url.PathEscape(tier), map[string]any{"reason": c.reason}, &made)
	return err
}
