// SPDX-License-Identifier: Apache-2.0

package counter

// Replay reconstructs the result of a decision that was made elsewhere by the rules of [Decide].
// The argument slot holds the counter before the decision, and admitted reports whether the whole
// call was admitted. A store that decides in a script next to its data returns only these two
// values. Replay then computes the spans of the result, with the same code for every such store.
// Replay leaves the slot as the decision did. The slot needs its dips only for a refund to a
// bucket. Replay does not allocate. Replay supports neither penalties nor sliding logs, because no
// store returns the marks of a log.
func Replay(now Micros, admitted bool, check *Check, slot *Slot, result *Result) {
	*result = Result{At: now}
	slot.Write = check.roll(slot, now)
	evaluate(check, slot, result, now)
	finish(check, slot, result, now, admitted)
}
