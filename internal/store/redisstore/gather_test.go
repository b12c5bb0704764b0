// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"testing"

	"github.com/penstock/penstock/core/counter"
)

// TestAnExecutedCorrectionWasSent: if one part of a call has executed a correction and another part
// was not sent, the failure does not report the call as unsent. Otherwise the caller would make the
// correction again.
func TestAnExecutedCorrectionWasSent(t *testing.T) {
	for op, want := range map[counter.Op]bool{counter.OpForce: false, counter.OpRefund: false, counter.OpReset: false, counter.OpLook: true} {
		done := &part{places: []int{0}, checks: []counter.Check{{Op: op, Cost: 5}}, results: []counter.Result{{Granted: 5}}}
		away := &part{places: []int{1}, checks: []counter.Check{{Op: op, Cost: 5}}, results: make([]counter.Result, 1), failure: errNotAsked}
		_, failure := new(Store).merge(&splitCall{parts: []*part{done, away}})
		if failure == nil || failure.Unsent() != want {
			t.Errorf("operation %d: %v, unsent %t, want %t", op, failure, failure != nil && failure.Unsent(), want)
		}
	}
}

// TestAHeldCorrectionWasNotSent: a correction waits for another part of its call. If that part
// fails, the correction is not sent. If that part was not sent either, the failure reports the call
// as unsent.
func TestAHeldCorrectionWasNotSent(t *testing.T) {
	first := &part{places: []int{0}, checks: []counter.Check{{Cost: 5}}, results: make([]counter.Result, 1), failure: errNotAsked}
	held := &part{places: []int{1}, checks: []counter.Check{{Op: counter.OpForce, Cost: 5}}, results: make([]counter.Result, 1), held: true}
	refund, failure := new(Store).merge(&splitCall{parts: []*part{first, held}})
	if refund != nil || failure == nil || !failure.Unsent() {
		t.Errorf("refund %v, failure %v, want no refund and an unsent call", refund, failure)
	}
}
