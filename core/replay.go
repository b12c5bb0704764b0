// SPDX-License-Identifier: Apache-2.0

package core

// Replay answers one check as [Decide] answered it elsewhere: slot holds what the counter was before, admitted says
// whether the call as a whole was. A store that lets a script decide next to its data need only be told these two, and
// has every span of the answer computed here, by the same code for every store. It leaves the slot as the decision left
// it. Dips are needed only of a bucket that is given back to. It does not allocate. It is not for sliding logs, whose marks no store hands over, and not for penalties.
func Replay(now Micros, admitted bool, check *Check, slot *Slot, result *Result) {
	*result = Result{At: now}
	slot.Write = check.roll(slot, now)
	evaluate(check, slot, result, now)
	finish(check, slot, result, now, admitted)
}
