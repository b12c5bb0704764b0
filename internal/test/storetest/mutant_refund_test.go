// SPDX-License-Identifier: Apache-2.0

package storetest

import corecounter "github.com/penstock/penstock/core/counter"

// refundMutants holds, for each promise about refunds, stores that break it on purpose.
var refundMutants = map[string][]mutant{
	"a refund restores what the charge still lacks": {
		{"restores everything", changeEachCheck(func(_ *Model, c *corecounter.Check) {
			c.Refundable = c.Refundable && c.Op != corecounter.OpRefund
		})},
		{"restores nothing", changeStates(func(_ *Model, _ *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
			s.State.Dips = [corecounter.DipsMax]corecounter.Dip{}
		})},
		{"keeps no dip but that a charge may come back", changeStates(func(_ *Model, c *corecounter.Check, _ *corecounter.Result, s *corecounter.Slot) {
			for i := range s.State.Dips {
				s.State.Dips[i].Missing *= 1000
			}
		})}},
	"refunds take from what others lack": {
		{"restores everything", changeEachCheck(func(_ *Model, c *corecounter.Check) {
			c.Refundable = c.Refundable && c.Op != corecounter.OpRefund
		})},
		{"lowers no dip", changeStates(func(_ *Model, c *corecounter.Check, r *corecounter.Result, s *corecounter.Slot) {
			for i := range s.State.Dips {
				if d := &s.State.Dips[i]; c.Op == corecounter.OpRefund && d.At > c.Receipt {
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
