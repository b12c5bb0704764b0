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

// allFaults is what make faults sets.
var allFaults = flag.Bool("faults", false, "try all faults, and write what was seen to docs/faults.md")

// faultsFile is where the table stands; what is before the mark is written by hand.
const (
	faultsFile = "../docs/faults.md"
	faultsMark = "<!-- What follows is written by make faults. -->\n"
)

// writeFaults writes the table.
func writeFaults(t *testing.T, table []cell) {
	t.Helper()
	for _, f := range faults {
		for _, c := range columns {
			if cellOf(table, f.name, c.name, false) == "" || !f.edits && cellOf(table, f.name, c.name, true) == "" {
				t.Logf("%s stays as it is: this run left out %s, %s", faultsFile, c.name, f.name)
				return
			}
		}
	}
	before, err := os.ReadFile(faultsFile)
	if err != nil {
		t.Fatal(err)
	}
	head, _, found := strings.Cut(string(before), faultsMark)
	if !found {
		t.Fatalf("%s lacks %q", faultsFile, faultsMark)
	}
	var text strings.Builder
	text.WriteString(head + faultsMark)
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output() // "" outside of a checkout
	fmt.Fprintf(&text, "\nSeen on %s at commit `%s`, %d cores, %s/%s.\n\n", time.Now().UTC().Format("2006-01-02"),
		strings.TrimSpace(string(commit)), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
	text.WriteString(tableOf(table, false))
	text.WriteString("\n## The policy edited in the middle\n\nThe same once more, all fronts at once, with the policy edited while the fault lasts. " +
		"The edited policy\nis in force before the fault is over, but where that ends by itself.\n\n")
	text.WriteString(tableOf(table, true))
	if err := os.WriteFile(faultsFile, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tableOf is the table in Markdown: of the runs with an edited policy, or those without.
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

// cellOf says what was seen, as users read it.
func cellOf(table []cell, fault, column string, edited bool) string {
	for i := range table {
		if c := &table[i]; c.Fault == fault && c.Column == column && c.Edited == edited {
			return c.words()
		}
	}
	return ""
}

// words says what a client sees.
func (c *cell) words() string {
	var parts []string
	say := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	say("allow: %s", share(c.Uncounted[openPath], c.Decided[openPath], c.Broken[openPath], "uncounted"))
	say("deny: %s", share(c.Unavailable[shutPath], c.Decided[shutPath], c.Broken[shutPath], "503"))
	say("slowest %d ms", c.SlowestMillis)
	say("over %d, under %d", c.Over[openPath]+c.Over[shutPath], c.Under[openPath]+c.Under[shutPath])
	say("normal after %d ms", c.NormalMillis)
	if c.Said != "" {
		say("%s", c.Said)
	}
	return strings.Join(parts, "; ")
}

// share says which part of requests was not decided.
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
