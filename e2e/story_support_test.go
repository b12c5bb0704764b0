// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestTheStoryOfSupport tests how support helps a client that gets the status 429. One command,
// which any node can answer, prints which rule and which limit deny the client, and until when.
// Then the client gets a higher limit until Friday and more units for this month, and another
// client is blocked for an hour. Each change takes effect on every front without an edit of a file.
func TestTheStoryOfSupport(t *testing.T) {
	t.Parallel()
	s := startStory(t, redistest.Start(t))
	s.targets["redis"] = append(s.targets["redis"], "--policy-file", s.files[0].path)
	defer s.print()
	const ann, mallory = "header.x-user:ann", "header.x-user:mallory"
	penstock(t, append([]string{"client", "set-tier", ann, "gold", "--reason", "paid"}, s.targets["redis"]...)...).mustSucceed(t)
	s.exhaust("/api/orders", "ann")
	s.exhaust("/export", "ann")
	s.exhaust("/api/orders", "mallory")

	s.log("ann: \"We get 429.\"")
	eventually.Until(t, patience, "the bridge knows the last denials", func() bool {
		return strings.Contains(penstock(t, append([]string{"usage", ann}, s.targets["bridge"]...)...).out, "rule export")
	})
	told := s.run("bridge", "usage", ann)
	for _, part := range []string{"shop api 20/week tier gold 20 0 20", "shop export 10/month the rule 10 0 20", "denied at 20", "rule api, GET /api/*",
		"tier gold"} {
		if fields := strings.Join(strings.Fields(told), " "); !strings.Contains(fields, part) {
			t.Errorf("the table lacks %q: %s", part, fields)
		}
	}
	for target := range s.targets {
		if other := counters(penstock(t, append([]string{"usage", ann}, s.targets[target]...)...).mustSucceed(t)); other != counters(told) {
			t.Errorf("%s prints\n%sand the bridge\n%s", target, other, counters(told))
		}
	}

	s.log("\nUntil Friday she may do more.")
	s.change("/api/orders", "ann", 200, "caddy-1", "client", "set-limit", ann, "api", "500/week", "--until", nextFriday(time.Now()),
		"--reason", "ticket 4711: an import", "--actor", "eve")
	s.log("\nThis month she gets 5,000 exports more.")
	s.change("/export", "ann", 200, "bridge", "client", "grant", ann, "export", "5000", "--reason", "ticket 4711", "--actor", "eve")
	s.log("\nHer neighbour mallory is blocked for an hour.")
	s.change("/api/orders", "mallory", 403, "caddy-2", "client", "block", mallory, "--for", "1h", "--reason", "a scraper", "--actor", "eve")
	for _, front := range s.fronts {
		if a := s.ask(front, "/api/orders", "ann"); a.status != 200 {
			t.Errorf("%s: ann gets %d beside a blocked neighbour", front.name, a.status)
		}
	}

	s.log("\nBoth, as any node prints them now:")
	told = strings.Join(strings.Fields(s.run("caddy-2", "usage", ann)), " ")
	for _, part := range []string{"shop api 500/week this client's record", "shop export 10/month + 5000 granted", "ticket 4711: an import"} {
		if !strings.Contains(told, part) {
			t.Errorf("the table lacks %q: %s", part, told)
		}
	}
	if told = s.run("bridge", "usage", mallory); !strings.Contains(told, "a scraper") {
		t.Errorf("the usage of a blocked client does not tell of the block: %s", told)
	}
	if told = s.run("redis", "client", "history"); strings.Count(told, " eve ") != 3 {
		t.Errorf("the history is %s", told)
	}
}

// nextFriday returns the date of the next Friday.
func nextFriday(now time.Time) string {
	day := now.UTC().AddDate(0, 0, 1)
	for day.Weekday() != time.Friday {
		day = day.AddDate(0, 0, 1)
	}
	return day.Format(time.DateOnly)
}

// counters returns the lines about counters in the output of the command usage, without the
// remaining time.
func counters(told string) (text string) {
	for line := range strings.Lines(told) {
		if strings.HasPrefix(line, "shop ") {
			line, _, _ = strings.Cut(line, " (in ")
			text += strings.Join(strings.Fields(line), " ") + "\n"
		}
	}
	return text
}
