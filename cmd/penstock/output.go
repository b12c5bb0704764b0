// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

// quoteUnprintable quotes a text from the network if it contains control characters, which a
// terminal would obey.
func quoteUnprintable(text string) string {
	if text == "" {
		return "-"
	}
	if strings.IndexFunc(text, isControl) >= 0 {
		return strconv.Quote(text)
	}
	return text
}

// isControl reports whether a terminal may obey the character instead of showing it.
func isControl(c rune) bool { return !strconv.IsPrint(c) || c == utf8.RuneError }

// escapeLines returns a text of several lines with its control characters escaped.
func escapeLines(text string) string {
	isEscaped := func(c rune) bool { return c != '\n' && isControl(c) }
	if strings.IndexFunc(text, isEscaped) < 0 {
		return text
	}
	var out strings.Builder
	for _, c := range text {
		if !isEscaped(c) {
			out.WriteRune(c)
			continue
		}
		quoted := strconv.QuoteRune(c)
		out.WriteString(quoted[1 : len(quoted)-1])
	}
	return out.String()
}

// jsonWriter writes JSON. It escapes the control characters beyond ASCII in the texts, which
// encoding/json leaves as they are. Each call of Write must pass whole characters.
type jsonWriter struct{ out io.Writer }

func (w jsonWriter) Write(p []byte) (int, error) {
	isEscaped := func(c rune) bool { return c > '~' && isControl(c) }
	if bytes.IndexFunc(p, isEscaped) < 0 {
		return w.out.Write(p)
	}
	var text []byte
	for _, c := range string(p) {
		switch {
		case !isEscaped(c):
			text = utf8.AppendRune(text, c)
		case c > 0xffff:
			high, low := utf16.EncodeRune(c)
			text = fmt.Appendf(text, `\u%04x\u%04x`, high, low)
		default:
			text = fmt.Appendf(text, `\u%04x`, c)
		}
	}
	if _, err := w.out.Write(text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printJSON prints a value as JSON that people can read.
func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(jsonWriter{out})
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func timeOrDash(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func orDash(n int64) string {
	if n == 0 {
		return "-"
	}
	return strconv.FormatInt(n, 10)
}

// linesOf returns the lines to print for an error: one for each problem of a list of problems, and
// otherwise the error itself.
func linesOf(err error) []string {
	if problems, ok := err.(policy.Problems); ok { //nolint:errorlint // an error that wraps a list is printed as a whole
		lines := make([]string, len(problems))
		for i, p := range problems {
			lines[i] = p.String()
		}
		return lines
	}
	return []string{err.Error()}
}

func plural(n int, word string) string {
	switch n {
	case 0:
		return "no " + word + "s"
	case 1:
		return "1 " + word
	default:
		return fmt.Sprintf("%d %ss", n, word)
	}
}
