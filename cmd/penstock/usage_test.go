// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// TestUsageTable tests that the shards of a limit are one line, that grants, denials and the record
// are printed, and that no control sequence from the network reaches the terminal.
func TestUsageTable(t *testing.T) {
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	report := usageReport{Client: "user:a\x1b[2J", Counters: []operator.Counter{
		{Policy: "shop", Rule: "hot", Limit: "5/1h", ShardOf: "10/1h", Whose: "the rule", Used: 5, ResetMs: 60_000, WaitMs: 60_000},
		{Policy: "shop", Rule: "hot", Limit: "5/1h", ShardOf: "10/1h", Whose: "the rule", Used: 1, Remaining: 4, ResetMs: 90_000},
		{Policy: "shop", Rule: "full", Limit: "3/1m", Whose: "tier gold", Used: 3, ResetMs: 60_000, WaitMs: 1_500, Shared: true},
		{Policy: "shop", Rule: "a\x1b[2Jb", Limit: "3/1m", Whose: "the rule", Remaining: 3},
		{Policy: "shop", Rule: "raised", Limit: "3/1m", Granted: 5, Whose: "the rule", Remaining: 8},
	}, Penalties: []operator.Penalty{{Policy: "shop", InForce: true, Violations: 4, WaitMs: 61_001}, {Policy: "other"}},
		Profiles: []operator.Profile{{Policy: "shop", Tier: "gold", From: "keys.toml"}, {Policy: "other"}},
		Denials:  []denialReport{{now, "hot", "denied", "GET", "/a\x1b", 2}, {now, "full", "denied", "GET", "/b", 1}},
		Record:   &directory.Record{Block: &directory.Mark{Reason: "abuse"}}}
	var out strings.Builder
	if err := report.print(&out, now); err != nil {
		t.Fatal(err)
	}
	const want = `POLICY  RULE           LIMIT             WHOSE      USED  REMAINING  RESETS
shop    hot            10/1h             the rule   6     4          2026-12-01T00:01:30Z (in 1m30s)
shop    full (shared)  3/1m              tier gold  3     0          2026-12-01T00:01:00Z (in 1m0s, the next unit in 1.5s)
shop    "a\x1b[2Jb"    3/1m              the rule   0     3          -
shop    raised         3/1m + 5 granted  the rule   0     8          -
policy shop: a penalty denies every request for 1m2s more, after 4 violations
policy shop: tier gold, from keys.toml
denied at 2026-12-01T00:00:00Z: rule hot, GET "/a\x1b", 2 times
denied at 2026-12-01T00:00:00Z: rule full, GET /b

client   "user:a\x1b[2J"
blocked  yes: abuse
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
	out.Reset()
	report = usageReport{Client: report.Client}
	if err := report.print(&out, now); err != nil || out.String() != `no limit counts "user:a\x1b[2J"`+"\n" {
		t.Errorf("without counters: %q, %v", out.String(), err)
	}
}
