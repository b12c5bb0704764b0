// SPDX-License-Identifier: Apache-2.0

package region

// A mistake breaks one rule of the package, so that a test can show that it is found.
type mistake uint8

const (
	none mistake = iota
	appliesTwice
	ignoresClocks
	forgetsTransfers
	restoresAnOldShare
	mistakes
)

var mistakeNames = [...]string{"none", "applies a transfer twice", "ignores clocks",
	"forgets transfers that are not acknowledged", "restores an old share"}

func (m mistake) beforeReceive(p *place, msg *Message) {
	if msg.Kind != Gift {
		return
	}
	switch m {
	case appliesTwice:
		p.share.applied[msg.From] = msg.Transfer.Serial - 1
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
