// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReloadSaysWhichCountersStartAfresh(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	config := func(limits string) string {
		return `{
			log {
				output file ` + log + `
				level WARN
			}
		}
		:PORT {
			penstock {
				tier attr http.vars.tier
				rule api ` + limits + `
				rule steady 7/1h
			}
			respond "ok"
		}`
	}
	s := start(t, config("5/1h 100/1d"))
	for _, step := range []struct {
		limits string
		lines  int
	}{
		{"9/1h 50/1d", 0},              // counts may change
		{"50/1d 9/1h", 0},              // the order may change too
		{"50/1d 9/2h", 1},              // another window is logged
		{"50/1d 9/2h", 1},              // logged once
		{"50/1d fixed_window 9/2h", 2}, // another algorithm is logged
		// a new tier may count in the same way as the rule
		{"50/1d fixed_window 9/2h {\n tiers gold 90/2h\n}", 2},
		{"50/1d fixed_window 9/2h {\n tiers gold 90/3h\n}", 3}, // or it may count by another window
	} {
		if err := s.load(config(step.limits)); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		if got := linesWith(string(text), "start at zero"); got != step.lines {
			t.Errorf("after %q there are %d lines, want %d:\n%s", step.limits, got, step.lines, grep(string(text), "start at zero"))
		}
	}
}
