// SPDX-License-Identifier: Apache-2.0

package storetest

import "github.com/penstock/penstock/core"

// refundMutants break what is promised of refunds.
var refundMutants = map[string][]mutant{
	"a refund restores what the charge still lacks": {
		{"restores everything", eachAsked(func(_ *Model, c *core.Check) {
			c.Refundable = c.Refundable && c.Op != core.OpGiveBack
		})},
		{"restores nothing", keeping(func(_ *Model, _ *core.Check, _ *core.Result, s *core.Slot) {
			s.State.Dips = [core.DipsMax]core.Dip{}
		})},
		{"keeps no dip but that a charge may come back", keeping(func(_ *Model, c *core.Check, _ *core.Result, s *core.Slot) {
			for i := range s.State.Dips {
				s.State.Dips[i].Missing *= 1000
			}
		})}},
	"refunds take from what others lack": {
		{"restores everything", eachAsked(func(_ *Model, c *core.Check) {
			c.Refundable = c.Refundable && c.Op != core.OpGiveBack
		})},
		{"lowers no dip", keeping(func(_ *Model, c *core.Check, r *core.Result, s *core.Slot) {
			for i := range s.State.Dips {
				if d := &s.State.Dips[i]; c.Op == core.OpGiveBack && d.At > c.Receipt {
					unit, _, _ := c.Limit.Arithmetic()
					d.Missing += r.Granted * unit
				}
			}
		})}},
}

func init() {
	for promise, list := range refundMutants {
		mutants[promise] = list
	}
}
