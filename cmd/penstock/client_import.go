// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock/penstock/internal/directory"
)

// Bounds of an import.
const (
	// importLineBytesMax bounds a line. A record has at most 16 KiB.
	importLineBytesMax = 40 << 10
	// importPartBytes is the length at which a part's records are sent.
	importPartBytes = 16 << 10
	// importLinesMax bounds the lines of a file.
	importLinesMax = 20_000_000
	// importProblemsMax is the number of problems that are printed.
	importProblemsMax = 20
)

// importing is the state of one run of the import command.
type importing struct {
	admin *admin
	part  directory.Import
	file  *os.File
	name  string
	err   io.Writer

	lines         []int // the line of each record in the part
	bytes         int   // the length of the records in the part
	total         directory.Imported
	records       int
	problems      int
	notes         int
	seen          seenNames
	counts        exportCounts
	headed, ended bool
}

// importRecords returns the command that writes the records of an export.
func (c *clientEdits) importRecords() *cobra.Command {
	in := &importing{admin: c.admin}
	cmd := &cobra.Command{Use: "import FILE", Short: "Write the records of an export, or of another file with one JSON object a line", Args: cobra.ExactArgs(1),
		Long: "Write the records of an export to the directory. All lines are checked first, and nothing is written if one of them is wrong.\n" +
			"Records that the directory has already are left as they are, so an import may be repeated. A client or a key that has another\n" +
			"record is a mistake, unless --replace is given. Clients that are not in the file keep their records. Processes that run have the\n" +
			"records within a second. A file of other origin needs neither the first nor the last line of an export.",
		Example: "  penstock client import directory.ndjson --reason \"Redis was emptied\"\n" +
			"  penstock client import directory.ndjson --reason \"back to last night\" --replace"}
	cmd.Flags().StringVar(&in.part.Reason, "reason", "", "why, for the history; required")
	cmd.Flags().StringVar(&in.part.Actor, "actor", currentUser(), "who makes the change, for the history")
	cmd.Flags().BoolVar(&in.part.Replace, "replace", false, "replace records that differ")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		if c.control.given() {
			return errors.New("an import writes to the directory in Redis: leave out --control, or make the records of a table with penstock control " +
				"import-clients")
		}
		in.name, in.err = args[0], cmd.ErrOrStderr()
		if err := in.run(cmd.Context()); err != nil {
			return err
		}
		return c.print(cmd.OutOrStdout(), in.total, func(w io.Writer) {
			fmt.Fprintf(w, "%d records written, %d were in the directory already\n", in.total.Written, in.total.Same)
		})
	}
	return cmd
}

// importing.run checks all lines, and then writes them.
func (in *importing) run(ctx context.Context) (err error) {
	if in.file, err = os.Open(in.name); err != nil {
		return err
	}
	defer in.file.Close()
	if info, err := in.file.Stat(); err != nil || !info.Mode().IsRegular() {
		return errors.Join(err, fmt.Errorf("%q is not a file, and an import reads its lines twice; write them to a file", in.name))
	}
	done, err := in.admin.keepOpen(ctx)
	if err != nil {
		return err
	}
	defer done()
	in.part.Check = true
	if err := in.read(ctx); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if in.problems > 0 {
		return fmt.Errorf("%d of %d records in %q cannot be imported, and nothing was changed; mend their lines and try again", in.problems, in.records,
			in.name)
	}
	in.part.Check, in.total = false, directory.Imported{}
	if _, err := in.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	err = in.read(ctx)
	if err == nil && in.problems > 0 {
		err = fmt.Errorf("%d records were not written", in.problems)
	}
	if err != nil {
		return fmt.Errorf("the import has ended early: %w; %d records were written and are in force, %d were in the directory already; repeat the "+
			"import, which leaves them as they are", err, in.total.Written, in.total.Same)
	}
	return nil
}

// importing.read reads the file once, and sends its records in parts.
func (in *importing) read(ctx context.Context) error {
	in.seen, in.records, in.headed, in.ended, in.counts = seenNames{}, 0, false, false, exportCounts{}
	scanner := bufio.NewScanner(in.file)
	scanner.Buffer(make([]byte, 0, 4<<10), importLineBytesMax)
	line := 0
	for scanner.Scan() {
		if line++; line > importLinesMax {
			return fmt.Errorf("%s:%d: a file has at most %d lines; split it", in.name, line, importLinesMax)
		}
		text := bytes.TrimSpace(scanner.Bytes())
		if len(text) == 0 {
			continue
		}
		if err := in.readLine(ctx, line, text); err != nil {
			return err
		}
	}
	switch err := scanner.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: the line has more than %d bytes", in.name, line+1, importLineBytesMax)
	case err != nil:
		return err
	case in.headed && !in.ended:
		return fmt.Errorf("%s:%d: the export has no last line, so it is not complete; export again", in.name, line)
	case in.records == 0:
		return fmt.Errorf("%q has no records", in.name)
	}
	in.part.Last = true
	return in.send(ctx)
}

// readLine reads one line that is not empty.
func (in *importing) readLine(ctx context.Context, line int, text []byte) error {
	if in.ended {
		return fmt.Errorf("%s:%d: the export has text after its last line", in.name, line)
	}
	var head exportHead
	var end exportEnd
	switch {
	case in.records == 0 && !in.headed && bytes.HasPrefix(text, []byte(`{"export"`)):
		if err := json.Unmarshal(text, &head); err != nil || head.Export == nil || head.Export.Version != exportVersion {
			return fmt.Errorf("%s:%d: the export is of another version than %d; use the release that made it: %.80s", in.name, line, exportVersion, text)
		}
		in.headed = true
		return nil
	case bytes.HasPrefix(text, []byte(`{"end"`)):
		if err := json.Unmarshal(text, &end); err != nil || end.End == nil || *end.End != in.counts && in.problems == 0 {
			return fmt.Errorf("%s:%d: the file has %d records of clients and %d of keys, and its last line is %.80s; export again, or remove the "+
				"first and the last line of a file that was edited", in.name, line, in.counts.Clients, in.counts.Keys, text)
		}
		in.ended = true
		return nil
	}
	in.records++
	one, err := directory.ParseLine(text)
	if err != nil {
		in.problem(line, err.Error())
		return nil
	}
	if in.counts.Keys++; one.Key == "" {
		in.counts.Keys, in.counts.Clients = in.counts.Keys-1, in.counts.Clients+1
	}
	if before := in.seen.addName(one.Name(), line); before > 0 {
		in.problem(line, fmt.Sprintf("%s is in line %d as well; keep one of them", one.Name(), before))
		return nil
	}
	in.part.Lines, in.lines, in.bytes = append(in.part.Lines, *one), append(in.lines, line), in.bytes+len(one.Record)+len(one.Name())
	if len(in.lines) < directory.ImportMax && in.bytes < importPartBytes {
		return nil
	}
	in.part.Last = false
	return in.send(ctx)
}

// importing.send sends the part.
func (in *importing) send(ctx context.Context) error {
	done, err := decodeReply[directory.Imported](in.admin.post(ctx, "import", &in.part))
	if err != nil {
		if len(in.lines) == 0 {
			return err
		}
		return fmt.Errorf("%s:%d to %d: %w", in.name, in.lines[0], in.lines[len(in.lines)-1], err)
	}
	for _, one := range done.Problems {
		if one.Line >= 0 && one.Line < len(in.lines) {
			in.problem(in.lines[one.Line], one.Text)
		}
	}
	for _, one := range done.Notes {
		if in.notes++; in.part.Check && in.notes <= importProblemsMax && one.Line >= 0 && one.Line < len(in.lines) {
			fmt.Fprintf(in.err, "note: %s:%d: %s\n", in.name, in.lines[one.Line], quoteUnprintable(one.Text))
		}
	}
	in.total.Written += done.Written
	in.total.Same += done.Same
	in.part.Lines, in.lines, in.bytes = nil, nil, 0
	return nil
}

// importing.problem prints an error of a line of the file.
func (in *importing) problem(line int, why string) {
	if in.problems++; in.problems <= importProblemsMax {
		fmt.Fprintf(in.err, "%s:%d: %s\n", in.name, line, quoteUnprintable(why))
	}
}
