// SPDX-License-Identifier: Apache-2.0

package match

import (
	"unicode"
	"unicode/utf8"

	"github.com/penstock/penstock/core/slim"
)

// foldBlockBits is the base-2 logarithm of the number of runes in a block. In UTF-8, the 64 runes
// of a block differ only in the last byte.
const foldBlockBits = 6

// foldRunes is the end of the table. All scripts that have letter case today are below it. Runes
// beyond it are looked up in the tables of package unicode.
const foldRunes = 0x20000

// foldIndex maps a rune to its block in foldBlocks. The first block is for runes without case.
var (
	foldIndex  [foldRunes >> foldBlockBits]uint8
	foldBlocks = makeFoldBlocks()
)

// foldBlock holds, for each rune of a block, the difference from the rune that represents all its
// case variants.
type foldBlock [1 << foldBlockBits]int32

// makeFoldBlocks returns the blocks and fills in foldIndex. Searching the tables of package unicode
// for each rune would take most of the time of reading a path.
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

// appendFolded appends s with case folded: texts that differ only in letter case become equal.
// Invalid UTF-8 remains unchanged. Different compositions of a letter remain different.
func appendFolded(dst []byte, s string) []byte {
	dst = growBytes(dst, len(s)) // the text never grows: a letter's least rune has the shortest encoding
	n := len(dst)
	out := dst[:n+len(s)]
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			out[n] = c | byte(byteClasses[c]&byteUpper)<<5
			i, n = i+1, n+1
			continue
		}
		// a rune of two bytes, as most letters with case beyond ASCII are
		if c&0xe0 == 0xc0 && i+1 < len(s) && s[i+1]&0xc0 == 0x80 && c >= 0xc2 {
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
		// invalid UTF-8, detected much faster than by decoding
		if i+1 == len(s) || s[i+1]&0xc0 != 0x80 || c < 0xc2 {
			out[n] = c
			i, n = i+1, n+1
			continue
		}
		r, size := decodeThreeBytes(s[i:])
		if size == 0 {
			r, size = utf8.DecodeRuneInString(s[i:])
		}
		folded := foldRune(r)
		if folded == r { // this includes an invalid byte
			n += copy(out[n:], s[i:i+size])
		} else {
			n = len(utf8.AppendRune(out[:n], folded))
		}
		i += size
	}
	return out[:n]
}

// decodeThreeBytes decodes a rune of three bytes at the start of s, in a fraction of the time that
// package utf8 takes. The size is 0 if s does not begin with one.
func decodeThreeBytes(s string) (r rune, size int) {
	if len(s) < 3 || s[0]&0xf0 != 0xe0 || s[1]&0xc0 != 0x80 || s[2]&0xc0 != 0x80 {
		return 0, 0
	}
	r = rune(s[0]&0xf)<<12 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f)
	if r < 0x800 || r&^0x7ff == 0xd800 { // overlong, or half of a UTF-16 surrogate pair
		return 0, 0
	}
	return r, 3
}

// foldRune returns the same rune for all runes that differ only in case.
func foldRune(r rune) rune {
	if r >= foldRunes {
		return foldRuneSlow(r)
	}
	return r + foldBlocks[foldIndex[r>>foldBlockBits]][r&(1<<foldBlockBits-1)]
}

// foldRuneSlow is foldRune without the table. It folds U+0130 and U+0131, other letters in
// Unicode's folding, to i, because servers that change the case of a path do so.
func foldRuneSlow(r rune) rune {
	if r == '\u0130' || r == '\u0131' {
		return 'i'
	}
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	if least < utf8.RuneSelf {
		return rune(slim.LowerByte(byte(least)))
	}
	return least
}
