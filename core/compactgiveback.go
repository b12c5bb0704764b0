// SPDX-License-Identifier: Apache-2.0

package core

import "errors"

var errGiveBack = errors.New("not a give-back in its compact form")

// AppendGiveBack appends a check that gives units back, in its compact form: for a front that hands it to others until they
// do. Like a settlement it proves nothing.
func AppendGiveBack(dst []byte, c *Check) []byte {
	code, check := coder{data: dst}, *c
	code.giveBack(&check)
	return code.data
}

// ReadGiveBack reads what [AppendGiveBack] wrote. It shares no memory with data.
func ReadGiveBack(data []byte) (c Check, err error) {
	code := coder{data: data, reading: true}
	code.giveBack(&c)
	if code.broken || len(code.data) > 0 || len(c.Key) == 0 || c.ScopeLen < 0 || c.ScopeLen > len(c.Key) || c.Cost <= 0 || c.Age < 0 {
		return Check{}, errGiveBack
	}
	return c, nil
}

func (c *coder) giveBack(check *Check) {
	key := string(check.Key)
	c.text(&key)
	number(c, &check.ScopeLen)
	optional(c, &check.Limit, (*coder).limit)
	number(c, &check.Cost)
	number(c, &check.Receipt)
	number(c, &check.Age)
	optional(c, &check.Bounds, func(c *coder, b *Bounds) {
		for i := range b {
			number(c, &b[i])
		}
	})
	check.Op, check.Key = OpGiveBack, []byte(key)
	if check.Limit == nil {
		c.fail()
	}
}
