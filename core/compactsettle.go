// SPDX-License-Identifier: Apache-2.0

package core

import "errors"

var errSettlement = errors.New("not a settlement in its compact form, or one of another policy")

// AppendCompact appends the settlement in its compact form, which [ReadSettlement] reads with the same ruleset: for a front
// that hands it to others until the response is known. It holds keys and receipts in the clear and proves nothing: whoever
// lets it out of hand seals it. Charges of another ruleset are left out, so what was reserved for those stands; after
// Checks there is nothing left.
func (s *Settlement) AppendCompact(dst []byte, rs *Ruleset) []byte {
	kept := make([]settling, 0, len(s.rules))
	for _, r := range s.rules {
		if r.ruleset == rs && r.charges[0] < r.charges[1] {
			kept = append(kept, r)
		}
	}
	c := coder{data: dst}
	list(&c, &kept, func(c *coder, r *settling) { c.settling(r, s) })
	return c.data
}

// ReadSettlement fills in s with what [Settlement.AppendCompact] wrote. It shares no memory with data. The error says that
// data is something else, or that its rules are not those of the ruleset; s then has nothing to do.
func ReadSettlement(s *Settlement, rs *Ruleset, data []byte) error {
	s.reset()
	c := coder{data: data, reading: true}
	list(&c, &s.rules, func(c *coder, r *settling) {
		c.settling(r, s)
		if r.index < 0 || int(r.index) >= len(rs.rules) || !rs.rules[r.index].after.settles {
			c.fail()
			return
		}
		r.ruleset, r.after = rs, &rs.rules[r.index].after
	})
	if c.broken || len(c.data) > 0 {
		s.reset()
		return errSettlement
	}
	return nil
}

// settling codes a rule and its charges. Read, they stand behind those of the rules before it.
func (c *coder) settling(r *settling, s *Settlement) {
	number(c, &r.index)
	n := r.charges[1] - r.charges[0]
	number(c, &n)
	if c.reading {
		r.charges = [2]int32{int32(len(s.charges)), int32(len(s.charges)) + n}
		if n < 1 || int(n) > ChecksMax-len(s.charges) {
			c.fail()
		}
	}
	for i := r.charges[0]; i < r.charges[1] && !c.broken; i++ {
		if c.reading {
			s.charges = append(s.charges, settledCharge{})
		}
		shown := s.shown == i
		c.flag(&shown)
		if shown {
			s.shown = i
		}
		c.charge(&s.charges[i], s)
	}
}

func (c *coder) charge(k *settledCharge, s *Settlement) {
	key := string(s.text[k.key[0]:k.key[1]])
	c.text(&key)
	number(c, &k.scopeLen)
	c.limit(&k.limit)
	number(c, &k.granted)
	number(c, &k.receipt)
	c.flag(&k.calendar)
	if k.calendar {
		for i := range k.bounds {
			number(c, &k.bounds[i])
		}
	}
	if !c.reading || c.broken {
		return
	}
	start := int32(len(s.text))
	s.text = append(s.text, key...)
	k.key = [2]int32{start, int32(len(s.text))}
	if k.granted <= 0 || key == "" || k.scopeLen < 0 || k.scopeLen > len(key) {
		c.fail()
	}
}
