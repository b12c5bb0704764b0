// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/usage/inflate"
)

// BenchmarkBody compares a tap with copying the body, for documents of 16 KiB and for a stream of
// 200 events, in the chunks that an upstream sends.
func BenchmarkBody(b *testing.B) {
	text := strings.Repeat("The water runs down the penstock. ", 480)
	doc := []byte(`{"id":"x","choices":[{"message":{"content":"` + text + `"}}],"usage":{"total_tokens":4096}}`)
	event := "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" water\"}}],\"usage\":null}\n\n"
	events := []byte(strings.Repeat(event, 200) + "data: {\"usage\":{\"total_tokens\":4096}}\n\n")
	numbers := []byte(`{"rows":[` + strings.Repeat("{\"n\":-1.5},", 1500) + `{}],"usage":{"total_tokens":4096}}`)
	for _, c := range []struct {
		name, kind string
		body       []byte
		chunk      int
		tapped     bool
	}{
		{"document/copied", document, doc, 4096, false},
		{"document/tapped", document, doc, 4096, true},
		{"numbers/tapped", document, numbers, 4096, true},
		{"events/copied", stream, events, len(event), false},
		{"events/tapped", stream, events, len(event), true},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(len(c.body)))
			b.ReportAllocs()
			sent := make([]byte, c.chunk)
			for b.Loop() {
				tap := New([]string{tokens}, c.kind, "", inflate.Bodies{})
				for rest := c.body; len(rest) > 0; {
					n := copy(sent, rest)
					if c.tapped {
						_, _ = tap.Write(rest[:n])
					}
					rest = rest[n:]
				}
				if _, ok := tap.JSON(tokens); ok != c.tapped {
					b.Fatal("the number was not found")
				}
			}
		})
	}
}
