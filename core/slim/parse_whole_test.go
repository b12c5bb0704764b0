// SPDX-License-Identifier: Apache-2.0

package slim_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/slim"
)

func TestParseWhole(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "7": 7, "007": 7, "200": 200, "9223372036854775807": 1<<63 - 1, "": -1, "+1": -1, "-1": -1, " 1": -1, "1 ": -1, "1.0": -1,
		"1e3": -1, "0x1": -1, "1_0": -1, "٣": -1, "9223372036854775808": -1, "92233720368547758070": -1, strings.Repeat("9", 400): -1,
	} {
		n, ok := slim.ParseWhole(text)
		if ok != (want >= 0) || ok && n != want {
			t.Errorf("%q is read as %d, %t", text, n, ok)
		}
	}
}

// FuzzParseWhole compares ParseWhole with strconv, which also accepts signs.
func FuzzParseWhole(f *testing.F) {
	for _, seed := range []string{"", "0", "18", "-5", "+5", "9223372036854775807", "9223372036854775808", "a", "1\x00"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, ok := slim.ParseWhole(text)
		want, err := strconv.ParseInt(text, 10, 64)
		if wanted := err == nil && text[0] != '-' && text[0] != '+'; ok != wanted || ok && n != want {
			t.Fatalf("%q is read as %d, %t; the library reads %d, %v", text, n, ok, want, err)
		}
	})
}
