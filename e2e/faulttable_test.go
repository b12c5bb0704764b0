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

// faultsFile is where the tables stand, each behind its mark; what is before the first is written by hand.
const faultsFile = "../docs/faults.md"

// faultsMarks are those of the first table, and of the one with the policy edited in the middle.
var faultsMarks = [...]string{
	"<!-- What follows is written by make faults. -->\n",
	"<!-- And this by its second pass. -->\n",
}

// writeFaults writes the table of a pass, if the run has tried all of it, and leaves the other as it is.
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
	if !found || !foundSecond {
		t.Fatalf("%s lacks %q", faultsFile, faultsMarks)
	}
	if edited {
		second = seenOn() + tableOf(table, true)
	} else {
		first = seenOn() + tableOf(table, false) + "\n## The policy edited in the middle\n\nThe same once more, all fronts at once, with the " +
			"policy edited while the fault lasts. The edited policy\nis in force before the fault is over, but where that ends by itself.\n\n"
	}
	whole := head + faultsMarks[0] + first + faultsMarks[1] + second
	if err := os.WriteFile(faultsFile, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
}

// seenOn says of what a table tells.
func seenOn() string {
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output() // "" outside of a checkout
	return fmt.Sprintf("\nSeen on %s at commit `%s`, %d cores, %s/%s.\n\n", time.Now().UTC().Format("2006-01-02"),
		strings.TrimSpace(string(commit)), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH)
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
