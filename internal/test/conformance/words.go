// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"strings"
)

// split cuts a line into words at its spaces. Spaces in "…" or `…` do not end a word. The quotes
// are removed, and there are no escapes.
func split(line string) (words []string, err error) {
	var word strings.Builder
	begun := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t':
			if begun {
				words = append(words, word.String())
				word.Reset()
			}
			begun = false
		case '"', '`':
			end := strings.IndexByte(line[i+1:], c)
			if end < 0 {
				return nil, fmt.Errorf("%q opens a quote that nothing closes", line[i:])
			}
			word.WriteString(line[i+1 : i+1+end])
			i, begun = i+1+end, true
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words, nil
}
