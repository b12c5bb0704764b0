// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

// readRegion reads "region" with its one argument.
func (b *block) readRegion() {
	const word = "region"
	args := b.d.RemainingArgs()
	switch {
	case b.nameLine != nil:
		b.problem(word, "is for the whole Caddy", "write it in a penstock block of the global options")
	case b.region != "":
		b.problem(word, "is listed twice", "keep one")
	case len(args) != 1:
		b.problem(word, "takes one argument", "write region and a name, such as region eu")
	default:
		b.region = args[0]
	}
	b.noBlock(word)
}
