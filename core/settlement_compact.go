// SPDX-License-Identifier: Apache-2.0

package core

import (
	"errors"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/codec"
)

var errSettlement = errors.New("not a settlement in its compact form, or one of another policy")

// AppendCompact appends the settlement in its compact form, which [ReadSettlement] reads with the
// same ruleset. A front uses it to pass the settlement to another process, which keeps it until the
// response is known. The result contains keys and receipts in plain text and is not authenticated,
// so a front must encrypt it before sending it to an untrusted process. Charges of other rulesets
// are omitted, so their reserved units remain charged. After Checks the result describes an empty
// settlement.
func (s *Settlement) AppendCompact(dst []byte, rs *Ruleset) []byte {
	kept := make([]settlingRule, 0, len(s.rules))
	for _, r := range s.rules {
		if r.ruleset == rs && r.charges[0] < r.charges[1] {
			kept = append(kept, r)
		}
	}
	c := codec.Coder{Data: dst}
	codec.List(&c, &kept, func(c *codec.Coder, r *settlingRule) { codeSettling(c, r, s) })
	return c.Data
}

// ReadSettlement fills in s from the output of [Settlement.AppendCompact]. Afterwards, s shares no
// memory with data. ReadSettlement returns an error if data is not such output, or if its rules are
// not in the ruleset; s is then empty.
func ReadSettlement(s *Settlement, rs *Ruleset, data []byte) error {
	s.reset()
	c := codec.Coder{Data: data, Reading: true}
	codec.List(&c, &s.rules, func(c *codec.Coder, r *settlingRule) {
		codeSettling(c, r, s)
		if r.index < 0 || int(r.index) >= len(rs.rules) || !rs.rules[r.index].after.settles {
			c.Fail()
			return
		}
		r.ruleset, r.after = rs, &rs.rules[r.index].after
	})
	if c.Broken || len(c.Data) > 0 {
		s.reset()
		return errSettlement
	}
	return nil
}

// codeSettling encodes or decodes a rule and its charges. It appends the decoded charges to the
// charges of earlier rules.
func codeSettling(c *codec.Coder, r *settlingRule, s *Settlement) {
	codec.Number(c, &r.index)
	n := r.charges[1] - r.charges[0]
	codec.Number(c, &n)
	if c.Reading {
		r.charges = [2]int32{int32(len(s.charges)), int32(len(s.charges)) + n}
		if n < 1 || int(n) > counter.ChecksMax-len(s.charges) {
			c.Fail()
		}
	}
	for i := r.charges[0]; i < r.charges[1] && !c.Broken; i++ {
		if c.Reading {
			s.charges = append(s.charges, settledCharge{})
		}
		shown := s.shown == i
		c.Flag(&shown)
		if shown {
			s.shown = i
		}
		codeCharge(c, &s.charges[i], s)
	}
}

func codeCharge(c *codec.Coder, k *settledCharge, s *Settlement) {
	key := string(s.text[k.key[0]:k.key[1]])
	c.Text(&key)
	codec.Number(c, &k.scopeLen)
	c.Limit(&k.limit)
	codec.Number(c, &k.granted)
	codec.Number(c, &k.receipt)
	c.Flag(&k.calendar)
	if k.calendar {
		for i := range k.bounds {
			codec.Number(c, &k.bounds[i])
		}
	}
	if !c.Reading || c.Broken {
		return
	}
	start := int32(len(s.text))
	s.text = append(s.text, key...)
	k.key = [2]int32{start, int32(len(s.text))}
	if k.granted <= 0 || key == "" || k.scopeLen < 0 || k.scopeLen > len(key) {
		c.Fail()
	}
}
