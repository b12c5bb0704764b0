// SPDX-License-Identifier: Apache-2.0

package core

import (
	"unicode"
	"unicode/utf8"
)

// foldBlockBits is how many runes have an entry of foldIndex together: 64, what two bytes of UTF-8 or the last one of
// more differ by.
const foldBlockBits = 6

// foldRunes are the runes below which all stand that have more than one case. Those beyond the table, which are in no
// script of today, are looked up in the tables of package unicode.
const foldRunes = 0x20000

// foldIndex says in which block of foldBlocks a rune is; the first block is of runes that have one case only.
var (
	foldIndex  [foldRunes >> foldBlockBits]uint8
	foldBlocks = makeFoldBlocks()
)

// foldBlock holds what is to be added to each rune of a block so that all that differ in case only become one.
type foldBlock [1 << foldBlockBits]int32

// makeFoldBlocks fills in foldIndex. To search the tables of package unicode for each rune of a path would take most of
// the time that a path takes.
func makeFoldBlocks() []foldBlock {
	blocks := make([]foldBlock, 1, 72)
	for _, cased := range unicode.CaseRanges {
		for r := rune(cased.Lo); r <= rune(cased.Hi) && r < foldRunes; r++ {
			folded := foldRuneSlow(r)
			if folded == r {
				continue
			}
			at := &foldIndex[r>>foldBlockBits]
			if *at == 0 {
				*at = uint8(len(blocks))
				blocks = append(blocks, foldBlock{})
			}
			blocks[*at][r&(1<<foldBlockBits-1)] = int32(folded - r)
		}
	}
	return blocks
}

// appendFolded appends s so that two texts that differ in the case of letters only become one. Bytes that are not UTF-8
// stay as they are. Letters composed in different ways stay different.
func appendFolded(dst []byte, s string) []byte {
	dst = grown(dst, len(s)) // it never gets longer: of runes that are one letter the least is taken
	n := len(dst)
	out := dst[:n+len(s)]
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			out[n] = lowerByte(c)
			i, n = i+1, n+1
			continue
		}
		if c&0xe0 == 0xc0 && i+1 < len(s) && s[i+1]&0xc0 == 0x80 && c >= 0xc2 { // most letters that have two cases
			if r := foldRune(rune(c&0x1f)<<6 | rune(s[i+1]&0x3f)); r < utf8.RuneSelf {
				out[n] = byte(r)
				n++
			} else {
				out[n], out[n+1] = 0xc0|byte(r>>6), 0x80|byte(r&0x3f)
				n += 2
			}
			i += 2
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size <= 1 {
			out[n] = c
			n++
		} else {
			n = len(utf8.AppendRune(out[:n], foldRune(r)))
		}
		i += size
	}
	return out[:n]
}

// foldRune returns one and the same rune for all that differ in case only.
func foldRune(r rune) rune {
	if r >= foldRunes {
		return foldRuneSlow(r)
	}
	return r + foldBlocks[foldIndex[r>>foldBlockBits]][r&(1<<foldBlockBits-1)]
}

func foldRuneSlow(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	if least < utf8.RuneSelf {
		return rune(lowerByte(byte(least)))
	}
	return least
}
