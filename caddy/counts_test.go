// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"strconv"
	"strings"
	"testing"
)

// counts is a snapshot of the metrics of this process. All tests of the process share the counters,
// so a test compares a counter with its earlier value.
type counts struct {
	server *server
	before map[string]float64
}

// server.counts returns a snapshot of the metrics, with which later values can be compared.
func (s *server) counts() counts {
	s.t.Helper()
	return counts{server: s, before: s.seriesValues()}
}

// seriesValues returns the value of each series by its name and labels.
func (s *server) seriesValues() map[string]float64 {
	s.t.Helper()
	all := map[string]float64{}
	for line := range strings.Lines(s.metrics()) {
		series, text, found := cutLast(strings.TrimSpace(line), " ")
		if value, err := strconv.ParseFloat(text, 64); found && err == nil && !strings.HasPrefix(series, "#") {
			all[series] = value
		}
	}
	return all
}

func cutLast(text, separator string) (before, after string, found bool) {
	i := strings.LastIndex(text, separator)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(separator):], true
}

// hasGrown reports whether a series exists and has grown by the given amount since the snapshot.
func (c counts) hasGrown(series string, by float64) bool {
	c.server.t.Helper()
	now, there := c.server.seriesValues()[series]
	return there && now-c.before[series] == by
}

// wantGrown fails the test unless the series have grown by the given amounts since the snapshot.
func (c counts) wantGrown(t testing.TB, wants map[string]float64) {
	t.Helper()
	now := c.server.seriesValues()
	for series, want := range wants {
		if value, there := now[series]; !there {
			t.Errorf("the metrics lack %s: %s", series, grep(c.server.metrics(), "penstock"))
		} else if got := value - c.before[series]; got != want {
			t.Errorf("%s has grown by %v, want %v", series, got, want)
		}
	}
}

// awaitGrown waits until a series has grown by the given amount since the snapshot was taken.
func (c counts) awaitGrown(t *testing.T, series string, by float64) {
	t.Helper()
	waitUntil(t, series+" grows by "+strconv.FormatFloat(by, 'f', -1, 64), func() bool { return c.hasGrown(series, by) })
}
