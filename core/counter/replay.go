// SPDX-License-Identifier: Apache-2.0

package counter

// Replay reproduces the answer of a decision that was made elsewhere by the rules of [Decide]. slot
// holds the counter before the decision, and admitted says whether the whole call was admitted. A
// store that decides in a script next to its data returns only slot and admitted. Replay then
// computes the spans of the answer, with the same code for every such store. It leaves the slot as
// the decision did. Only a refund to a bucket needs the dips. Replay does not allocate. It does not
// support penalties, nor sliding logs, because no store returns the marks of a log.
func Replay(now Micros, admitted bool, check *Check, slot *Slot, result *Result) {
	*result = Result{At: now}
	slot.Write = check.roll(slot, now)
	evaluate(check, slot, result, now)
	finish(check, slot, result, now, admitted)
}
