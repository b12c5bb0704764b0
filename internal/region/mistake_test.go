// SPDX-License-Identifier: Apache-2.0

package region

// A mistake breaks one rule of the package, so that a test can show that such a mistake is found.
type mistake uint8

const (
	none mistake = iota
	appliesTwice
	ignoresClocks
	forgetsTransfers
	restoresAnOldShare
	forgetsUnconfirmed
	mistakes
)

var mistakeNames = [...]string{"none", "applies a transfer twice", "ignores clocks",
	"forgets transfers that are not acknowledged", "restores an old share",
	"forgets a share before the others confirm"}

func (m mistake) beforeReceive(p *place, msg *Message) {
	if msg.Kind != Gift {
		return
	}
	switch m {
	case appliesTwice:
		p.share.applied[msg.From] = 0
	case ignoresClocks:
		msg.Transfer.At = 0
	}
}

func (m mistake) beforeStart(p *place) {
	switch m {
	case forgetsTransfers:
		for i := range p.share.sent {
			p.share.units += p.share.sent[i].Units
			p.share.sent[i].Units = 0
		}
		p.share.resize(p.share.units)
	case restoresAnOldShare:
		*p.share, p.backup = p.backup, *p.share
	}
}

// forgetsEarly reports whether a share is forgotten although the other regions have not confirmed
// what was applied: the region returned its units and does not wait for the rest of the exchange.
func (m mistake) forgetsEarly(p *place) bool {
	return m == forgetsUnconfirmed && p.share.units == 0 && p.share.Moving() == 0
}
