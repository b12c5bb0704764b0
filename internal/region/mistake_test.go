// SPDX-License-Identifier: Apache-2.0

package region

// mistake is a rule of the package that the simulation deliberately breaks, so that a test can show
// that the simulation detects such a mistake.
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

// mistake.forgetsEarly reports whether the region p forgets its share too early: it has returned
// all its units, but the other regions have not confirmed yet what they applied.
func (m mistake) forgetsEarly(p *place) bool {
	return m == forgetsUnconfirmed && p.share.units == 0 && p.share.Moving() == 0
}
