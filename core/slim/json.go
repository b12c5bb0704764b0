// SPDX-License-Identifier: Apache-2.0

package slim

import "unicode/utf8"

// AppendJSON appends the text as the contents of a JSON string. Invalid UTF-8 becomes U+FFFD.
// Package encoding/json links reflect and fmt. Price: 1075 KB.
func AppendJSON(dst []byte, text string) []byte {
	const hex = "0123456789abcdef"
	for _, r := range text { // range yields U+FFFD for an invalid byte
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r == '\n':
			dst = append(dst, '\\', 'n')
		case r < ' ' || r == 0x7f:
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return dst
}

// Quote returns the text as a JSON string. Error messages use Quote instead of [strconv.Quote],
// which links tables of printable characters. Price: 13.5 KB.
func Quote(text string) string {
	return string(append(AppendJSON(append(make([]byte, 0, len(text)+2), '"'), text), '"'))
}
