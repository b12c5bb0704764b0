// SPDX-License-Identifier: Apache-2.0

package slim

// AppendHex appends the bytes in hexadecimal, in lower case. Package encoding/hex links fmt, os and
// time. Price: 346 KB.
func AppendHex(dst, data []byte) []byte {
	const digits = "0123456789abcdef"
	for _, b := range data {
		dst = append(dst, digits[b>>4], digits[b&15])
	}
	return dst
}
