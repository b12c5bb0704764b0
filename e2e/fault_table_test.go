// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// allFaults is set by "make faults".
var allFaults = flag.Bool("faults", false, "try all faults, and write what was seen to docs/explanation/faults.md")

// faultsFile is the document that contains the tables. Each table follows its mark. The text before
// the first mark is written by hand.
const faultsFile = "../docs/explanation/faults.md"

// faultsMarks holds the mark of the first table, the mark of the table for runs with an edited
// policy, and the mark that follows both tables.
var faultsMarks = [...]string{
	"<!-- What follows is written by make faults. -->\n",
	"<!-- And this by its second pass. -->\n",
	"<!-- What follows is written by hand. -->\n",
}

// writeFaults writes one of the two tables to the document, if the run covered the whole table. It
// does not change the other table.
func writeFaults(t *testing.T, table []cell, edited bool) {
	t.Helper()
	for _, f := range faults {
		for _, c := range columns {
			if !(edited && f.edits) && cellOf(table, f.name, c.name, edited) == "" {
				t.Logf("%s stays as it is: this run left out %s, %s", faultsFile, c.name, f.name)
				return
			}
		}
	}
	text, err := os.ReadFile(faultsFile)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found := strings.Cut(string(text), faultsMarks[0])
	first, second, foundSecond := strings.Cut(rest, faultsMarks[1])
	second, last, foundLast := strings.Cut(second, faultsMarks[2])
	if !found || !foundSecond || !foundLast {
		t.Fatalf("%s lacks %q", faultsFile, faultsMarks)
	}
	if edited {
		second = describeRun() + tableOf(table, true) + "\n"
	} else {
		first = describeRun() + tableOf(table, false) + "\n## The policy edited in the middle\n\nThe same again, all fronts at once, with the " +
			"policy edited during the fault. The edited policy is in force before the fault is over, unless\nthe fault ends by itself.\n\n"
	}
	whole := head + faultsMarks[0] + first + faultsMarks[1] + second + faultsMarks[2] + last
	if err := os.WriteFile(faultsFile, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
}

// describeRun returns a line that says when, where and at which commit a table was measured.
func describeRun() string {
	// Outside of a checkout, the commit is "".
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	return fmt.Sprintf("\nSeen on %s at commit `%s`, %d cores, %s/%s.\n\n", time.Now().UTC().Format("2006-01-02"),
		strings.TrimSpace(string(commit)), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
}

// tableOf returns a table in Markdown. If edited is set, it shows the runs during which the policy
// was edited, and otherwise the runs without an edit.
func tableOf(table []cell, edited bool) string {
	var text strings.Builder
	text.WriteString("| fault |")
	for _, c := range columns {
		text.WriteString(" " + c.name + " |")
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, f := range faults {
		if edited && f.edits {
			continue
		}
		text.WriteString("| " + f.name + " |")
		for _, c := range columns {
			text.WriteString(" " + cellOf(table, f.name, c.name, edited) + " |")
		}
		text.WriteString("\n")
	}
	return text.String()
}

// cellOf returns the text of one cell, or "" if there is none.
func cellOf(table []cell, fault, column string, edited bool) string {
	for i := range table {
		if c := &table[i]; c.Fault == fault && c.Column == column && c.Edited == edited {
			return c.words()
		}
	}
	return ""
}

// cell.words returns a summary of the cell for users.
func (c *cell) words() string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	say("allow: %s", share(c.Uncounted[allowPath], c.Decided[allowPath], c.Broken[allowPath], "uncounted"))
	say("deny: %s", share(c.Unavailable[denyPath], c.Decided[denyPath], c.Broken[denyPath], "503"))
	say("slowest %d ms", c.SlowestMillis)
	say("over %d, under %d", c.Over[allowPath]+c.Over[denyPath], c.Under[allowPath]+c.Under[denyPath])
	say("normal after %d ms", c.NormalMillis)
	if c.Note != "" {
		say("%s", c.Note)
	}
	return strings.Join(parts, "; ")
}

// share describes which share of the requests was not decided.
func share(undecided, decided, broken int, what string) string {
	all := undecided + decided + broken
	if all == 0 {
		return "no request"
	}
	text := "all decided"
	if undecided > 0 {
		text = fmt.Sprintf("%d %% %s", (100*undecided+all-1)/all, what)
	}
	if broken > 0 {
		text += fmt.Sprintf(", %d %% not answered", (100*broken+all-1)/all)
	}
	return text
}
