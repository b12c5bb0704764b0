// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"bufio"
	"net/http"
	"strings"
	"testing"
)

// TestFoldedLinesAreNoValue: empty folded lines around a value do not change the value.
func TestFoldedLinesAreNoValue(t *testing.T) {
	for text, want := range map[string]string{
		"X-Id: a\r\n":                         "a",
		"X-Id: a\r\n \r\n":                    "a",
		"X-Id: a\r\n \r\n\t\r\n \r\n":         "a",
		"X-Id:\r\n \r\n a \t\r\n":             "a",
		"X-Id: a\r\n b\r\n \r\n":              "a b",
		"X-Id: a\r\n \r\nX-Id: b\r\n \r\n":    "a, b",
		"X-Id: a\r\nX-Id: b\r\n \r\n \r\n":    "a, b",
		"X-Id:\r\n \r\n":                      "",
		"Cookie: a=1\r\n \r\nCookie: b=2\r\n": "a=1; b=2",
	} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: h\r\n" + text + "\r\n")))
		if err != nil {
			t.Fatal(err)
		}
		a, name := attributes{r: r}, "X-Id"
		if strings.HasPrefix(text, "Cookie") {
			name = "Cookie"
		}
		lines := strings.Join(r.Header[name], "|")
		if value, ok := a.Header(name); value != want || !ok {
			t.Errorf("%q is %q, want %q", text, value, want)
		}
		if after := strings.Join(r.Header[name], "|"); after != lines {
			t.Errorf("%q: the request was changed to %q", text, after)
		}
	}
}
