// SPDX-License-Identifier: Apache-2.0

package compact

import (
	"errors"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/codec"
)

var errRefund = errors.New("not a refund in compact form")

// AppendRefund appends a refund in compact form, for a front that sends it to another process. That
// process sends it back when the refund is due. The result is not authenticated.
func AppendRefund(dst []byte, c *counter.Check) []byte {
	code, check := codec.Coder{Data: dst}, *c
	codeRefund(&code, &check)
	return code.Data
}

// ReadRefund decodes the output of [AppendRefund]. The check shares no memory with data.
func ReadRefund(data []byte) (c counter.Check, err error) {
	code := codec.Coder{Data: data, Reading: true}
	codeRefund(&code, &c)
	if code.Broken || len(code.Data) > 0 || len(c.Key) == 0 || c.ScopeLen < 0 || c.ScopeLen > len(c.Key) || c.Cost <= 0 || c.Age < 0 {
		return counter.Check{}, errRefund
	}
	return c, nil
}

func codeRefund(c *codec.Coder, check *counter.Check) {
	key := string(check.Key)
	c.Text(&key)
	codec.Number(c, &check.ScopeLen)
	codec.Optional(c, &check.Limit, (*codec.Coder).Limit)
	codec.Number(c, &check.Cost)
	codec.Number(c, &check.Receipt)
	codec.Number(c, &check.Age)
	codec.Optional(c, &check.Bounds, func(c *codec.Coder, b *counter.Bounds) {
		for i := range b {
			codec.Number(c, &b[i])
		}
	})
	check.Op, check.Key = counter.OpRefund, []byte(key)
	if check.Limit == nil {
		c.Fail()
	}
}
