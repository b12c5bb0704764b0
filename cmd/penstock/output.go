// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

// The function printable quotes a text from the network if it contains control characters, which a
// terminal would obey.
func printable(text string) string {
	if text == "" {
		return "-"
	}
	for _, c := range text {
		if !strconv.IsPrint(c) || c == utf8.RuneError {
			return strconv.Quote(text)
		}
	}
	return text
}

// printJSON prints a value as JSON that people can read.
func printJSON(out io.Writer, value any) error {
	encoder := json.NewEncoder(out)
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

// linesOf returns one line for each problem.
func linesOf(err error) []string {
	if problems, ok := err.(policy.Problems); ok { //nolint:errorlint // a wrapped list: the text around it matters more than the list
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
