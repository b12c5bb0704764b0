// SPDX-License-Identifier: Apache-2.0

package abi

import "unsafe"

// encodeFields returns the fields of a message in the ABI's form: the number of fields, the lengths
// of each name and value, and each name and value followed by a zero. Numbers have four bytes, the
// least significant first.
func encodeFields(fields [][2]string) []byte {
	size := 4
	for i := range fields {
		size += 4 + 4 + len(fields[i][0]) + 1 + len(fields[i][1]) + 1
	}
	data := appendNumber(make([]byte, 0, size), len(fields))
	for i := range fields {
		data = appendNumber(data, len(fields[i][0]))
		data = appendNumber(data, len(fields[i][1]))
	}
	for i := range fields {
		data = append(append(data, fields[i][0]...), 0)
		data = append(append(data, fields[i][1]...), 0)
	}
	return data
}

func appendNumber(dst []byte, n int) []byte {
	return append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24))
}

// decodeFields is the inverse of encodeFields. The fields are parts of the data, which must not
// change afterwards. decodeFields reports whether the data has the ABI's form.
func decodeFields(data []byte) (fields [][2]string, ok bool) {
	n, ok := readNumber(data, 0)
	const lengths = 8 // bytes for the lengths of a name and its value
	if !ok || n > (len(data)-4)/lengths {
		return nil, false
	}
	fields = make([][2]string, n)
	rest := data[4+lengths*n:]
	for i := range fields {
		for j := range fields[i] {
			length, _ := readNumber(data, 4+lengths*i+4*j)
			if length >= len(rest) {
				return nil, false
			}
			fields[i][j] = unsafe.String(unsafe.SliceData(rest), length)
			rest = rest[length+1:]
		}
	}
	return fields, true
}

// readNumber reads the number at an index. readNumber reports whether the data contains a number
// there.
func readNumber(data []byte, at int) (n int, ok bool) {
	if len(data) < at+4 {
		return 0, false
	}
	d := data[at : at+4]
	return int(uint32(d[0]) | uint32(d[1])<<8 | uint32(d[2])<<16 | uint32(d[3])<<24), true
}

// appendPath appends a property's path in the ABI's form: its parts with a zero between them.
func appendPath(dst []byte, path []string) []byte {
	for i, part := range path {
		if i > 0 {
			dst = append(dst, 0)
		}
		dst = append(dst, part...)
	}
	return dst
}
