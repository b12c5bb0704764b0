// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/directory"
)

// TestRecordsArePrintedSafely: texts of a record are printed in quotes if they contain control
// characters.
func TestRecordsArePrintedSafely(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	writeRecord(&out, "user:\u009b31m", &directory.Record{Tier: "gold", Note: "a\tb", Block: &directory.Mark{Reason: "\u009b2J"}})
	for _, want := range []string{`"user:\u009b31m"`, "gold", `"a\tb"`, `"yes: \u009b2J"`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q lacks %s", out.String(), want)
		}
	}
}
