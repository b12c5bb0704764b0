// SPDX-License-Identifier: Apache-2.0

package ruletable

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a table.
const (
	rowsMax  = 10_000
	bytesMax = 32 << 20
)

// form describes one form of table by its columns.
type form struct {
	name     string
	decides  []string // a table with one of these columns has the form
	columns  []string
	greatest bool // the row with the greatest priority comes first
	read     func(*row) *rule
}

// ignored lists columns of every form that say nothing about requests.
var ignored = []string{"id", "rule_id", "created_at", "updated_at", "created_by", "updated_by"}

var forms = []*form{
	{name: "limit_count and window_seconds", decides: []string{"limit_count"}, read: readCountAndWindow,
		columns: []string{"name", "key_pattern", "scope", "algorithm", "limit_count", "window_seconds", "burst_limit", "refill_rate", "plan_tiers", "endpoints",
			"action", "priority", "enabled"}},
	{name: "requests_per_second to _day", decides: []string{"requests_per_second", "requests_per_minute", "requests_per_hour", "requests_per_day"}, read: readRates,
		greatest: true,
		columns: []string{"rule_name", "priority", "user_tier", "endpoint_pattern", "http_method", "ip_range", "algorithm", "requests_per_second", "requests_per_minute",
			"requests_per_hour", "requests_per_day", "burst_size", "action", "response_status", "response_message", "retry_after_seconds", "enabled"}},
	{name: "limit and window", decides: []string{"resource"}, read: readLimits,
		columns: []string{"name", "resource", "subject_type", "limit", "window", "algorithm", "tier", "action", "response_code", "response_message", "priority", "enabled"}},
}

// row is a row of a table. The row's methods record the problems of its cells.
type row struct {
	line   int
	cells  map[string]string
	errors *[]error
	notes  *[]string
}

func (r *row) addProblem(column, format string, args ...any) {
	*r.errors = append(*r.errors, fmt.Errorf("line %d: %s %.60q %s", r.line, column, r.cells[column], fmt.Sprintf(format, args...)))
}

func (r *row) note(column, format string, args ...any) {
	*r.notes = append(*r.notes, fmt.Sprintf("line %d: %s %.60q %s", r.line, column, r.cells[column], fmt.Sprintf(format, args...)))
}

// row.text returns a cell; "" if it is NULL.
func (r *row) text(column string) string {
	if text := strings.TrimSpace(r.cells[column]); text != `\N` && !strings.EqualFold(text, "NULL") {
		return text
	}
	return ""
}

// row.number returns a cell as a whole number, and whether there is one.
func (r *row) number(column string) (int64, bool) {
	text := r.text(column)
	if text == "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.addProblem(column, "is no whole number")
	}
	return n, err == nil
}

// row.truth returns a cell as true or false; true if it is NULL.
func (r *row) truth(column string) bool {
	switch strings.ToLower(r.text(column)) {
	case "", "t", "true", "1", "yes":
		return true
	case "f", "false", "0", "no":
		return false
	}
	r.addProblem(column, "is neither true nor false")
	return true
}

// row.list returns a cell that is an array of PostgreSQL, such as {free,"pro, plus"}.
func (r *row) list(column string) []string {
	text := r.text(column)
	inner, begun := strings.CutPrefix(text, "{")
	inner, ended := strings.CutSuffix(inner, "}")
	if text == "" || inner == "" && begun && ended {
		return nil
	}
	// In an array, quotes are escaped by a backslash; in CSV they are doubled.
	doubled := strings.ReplaceAll(inner, `\"`, `""`)
	items := csv.NewReader(strings.NewReader(doubled))
	parts, err := items.Read()
	if !begun || !ended || err != nil || strings.Contains(inner, "\n") {
		r.addProblem(column, "is no array of texts: write {a,b}")
		return nil
	}
	if strings.Contains(strings.ReplaceAll(inner, `\"`, ""), `\`) {
		r.addProblem(column, "has a backslash that does not escape a quote: neither paths nor tiers have one")
		return nil
	}
	for i, part := range parts {
		_, at := items.FieldPos(i)
		if strings.EqualFold(strings.TrimSpace(part), "NULL") && !strings.HasPrefix(doubled[at-1:], `"`) {
			r.addProblem(column, "contains NULL, which is no text: leave it out")
			return nil
		}
	}
	return parts
}

// read reads the rows of a table.
func read(from io.Reader) (f *form, rows []*row, problems []error, notes []string) {
	fail := func(format string, args ...any) (*form, []*row, []error, []string) {
		return nil, nil, append(problems, fmt.Errorf(format, args...)), nil
	}
	bounded := &io.LimitedReader{R: from, N: bytesMax + 1}
	lines := csv.NewReader(bounded)
	header, err := lines.Read()
	if err != nil {
		return fail("the header cannot be read: %w; the first line has the names of the columns", err)
	}
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(header[i], "\ufeff")))
	}
	if f = formOf(header); f == nil {
		return fail("the columns %.200q are those of no table that is known: there must be limit_count, one of requests_per_second to _day, or resource", header)
	}
	for i, column := range header {
		if slices.Contains(header[:i], column) || !slices.Contains(f.columns, column) && !slices.Contains(ignored, column) {
			return fail("the column %.60q appears twice or is unknown in a table with %s, which has %s", column, f.name, strings.Join(f.columns, ", "))
		}
	}
	for {
		cells, err := lines.Read()
		if errors.Is(err, io.EOF) && bounded.N > 0 {
			return f, rows, problems, notes
		}
		if bounded.N == 0 || len(rows) == rowsMax {
			return fail("the table has more than %d bytes or %d rows: a policy cannot have more rules", bytesMax, rowsMax)
		}
		if err != nil {
			return fail("%w", err)
		}
		line, _ := lines.FieldPos(0)
		r := &row{line: line, cells: map[string]string{}}
		for i, column := range header {
			r.cells[column] = cells[i]
		}
		rows = append(rows, r)
	}
}

// formOf returns the form of a table with these columns, or nil.
func formOf(header []string) *form {
	for _, f := range forms {
		for _, column := range f.decides {
			if slices.Contains(header, column) {
				return f
			}
		}
	}
	return nil
}
