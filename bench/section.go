// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"
)

// section is the result of one comparison in Markdown. It is printed, and it replaces the text in a
// document between the two markers with its name. The text outside the markers is written by hand.
type section struct {
	name string
	text strings.Builder
}

func (s *section) say(format string, args ...any) { fmt.Fprintf(&s.text, format, args...) }

// table writes the header of a table.
func (s *section) table(columns ...string) {
	s.say("| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
}

// row writes a row of a table.
func (s *section) row(cells ...string) { s.say("| %s |\n", strings.Join(cells, " | ")) }

// section.targets writes sentences that compare figures with their targets, as a list.
func (s *section) targets(sentences ...string) {
	s.say("\n")
	for _, sentence := range sentences {
		s.say("- %s\n", sentence)
	}
}

// against returns a text that compares a figure with its target.
func against(met bool, target string) string {
	if met {
		return "target: " + target
	}
	return "**missed**; target: " + target
}

// provenance returns a line that says when, at which commit and on which machine a section was
// measured. It names the rounds if there are any.
func provenance(o options) string {
	// The commit is "" outside of a checkout.
	commit, _ := exec.Command("git", "rev-parse", "--short", "HEAD").Output()
	rounds := ""
	if o.rounds > 0 {
		rounds = fmt.Sprintf("; medians of %d rounds of %v", o.rounds, o.round)
	}
	return fmt.Sprintf("Seen on %s at commit `%s`: %s, %d cores, %s, load %s%s.\n\n", time.Now().UTC().Format("2006-01-02"),
		strings.TrimSpace(string(commit)), processor(), runtime.NumCPU(), runtime.Version(), loadAverage(), rounds)
}

// processor returns the processor's model name.
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func (s *section) marks() (begin, end string) {
	return fmt.Sprintf("<!-- bench %s: what follows is written by make bench. -->\n", s.name), fmt.Sprintf("<!-- end of bench %s -->\n", s.name)
}

// section.write puts the section into a document, between the section's markers. The result named
// written is false if the document does not have these markers.
func (s *section) write(file string) (written bool, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return false, err
	}
	begin, end := s.marks()
	head, rest, found := strings.Cut(string(text), begin)
	if !found {
		return false, nil
	}
	_, tail, found := strings.Cut(rest, end)
	if !found {
		return false, fmt.Errorf("%s lacks %q", file, strings.TrimSpace(end))
	}
	return true, os.WriteFile(file, []byte(head+begin+"\n"+s.text.String()+"\n"+end+tail), 0o644)
}
