// SPDX-License-Identifier: Apache-2.0

package redisadmin

import "strings"

// Slot returns the slot of a key in a cluster: by what is in its first braces, if something is.
func Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	crc := uint16(0) // CRC-16 of XMODEM
	for _, c := range []byte(key) {
		crc ^= uint16(c) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return int(crc % slotsOfCluster)
}
