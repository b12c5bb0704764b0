// SPDX-License-Identifier: Apache-2.0

package slim

import "strings"

// Trim removes the bytes that are in the set from both ends of a text. The set must be ASCII.
// [strings.Trim] handles all characters. Price: 7.8 KB.
//
//go:noinline
func Trim(text, set string) string {
	text = TrimLeft(text, set)
	for text != "" && strings.IndexByte(set, text[len(text)-1]) >= 0 {
		text = text[:len(text)-1]
	}
	return text
}

// TrimLeft removes the bytes that are in the set from the start of a text. The set must be ASCII.
// [strings.TrimLeft] handles all characters. Price: 5.0 KB.
//
//go:noinline
func TrimLeft(text, set string) string {
	for text != "" && strings.IndexByte(set, text[0]) >= 0 {
		text = text[1:]
	}
	return text
}

// TrimSpace returns the text without ASCII white space at its ends. [strings.TrimSpace] handles all
// characters. Price: 9.7 KB.
func TrimSpace(text string) string { return Trim(text, " \t\r\n\v\f") }

// Split returns the parts of the text between separators of one byte. [strings.Split] also accepts
// longer separators. Price: 2.6 KB.
//
//go:noinline
func Split(text, separator string) (parts []string) {
	for {
		at := strings.IndexByte(text, separator[0])
		if at < 0 {
			return append(parts, text)
		}
		parts, text = append(parts, text[:at]), text[at+1:]
	}
}

// IndexAny returns the index of the first byte of the text that is in the set, or -1. The set must
// be ASCII. [strings.IndexAny] handles all characters. Price: 5.0 KB.
//
//go:noinline
func IndexAny(text, set string) int {
	for i := range len(text) {
		if strings.IndexByte(set, text[i]) >= 0 {
			return i
		}
	}
	return -1
}
