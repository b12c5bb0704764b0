// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// TestBlocksThatAreImported tests that no block is lost. A row that does not say whether the client
// is blocked is an error if its blocked_until is in the future. A time that cannot be read is an
// error, too.
func TestBlocksThatAreImported(t *testing.T) {
	t.Parallel()
	c := &clientImport{now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	for _, row := range []struct {
		blocked, until string
		is             bool
		err            string
	}{
		{"", "", false, ""},
		{"", "2026-11-23 11:00:00", false, ""},
		{"", "2026-11-23 13:00:00", false, "is_blocked is empty"},
		{"", "later", false, "blocked_until"},
		{"f", "2026-11-23 13:00:00", false, ""},
		{"f", "infinity", false, ""},
		{"t", "", true, ""},
		{"t", "2026-11-23 13:00:00", true, ""},
		{"t", "2026-11-23 11:00:00", false, ""},
		{"t", "later", false, "blocked_until"},
		{"maybe", "", false, "is_blocked"},
	} {
		record, err := c.record(map[string]string{"is_blocked": row.blocked, "blocked_until": row.until})
		switch {
		case row.err != "":
			if err == nil || !strings.Contains(err.Error(), row.err) {
				t.Errorf("%+v: %v", row, err)
			}
		case err != nil || (record.Block != nil) != row.is:
			t.Errorf("%+v: %+v, %v", row, record, err)
		}
	}
}
