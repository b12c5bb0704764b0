// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strconv"

	"github.com/penstock/penstock/core/counter"
)

// SharedCounter returns the Why field of a [Problem] for a limit that would share its counter with
// limit j.
func SharedCounter(j int) string {
	return "has the window and algorithm of limit[" + strconv.Itoa(j) + "]: the two would share one counter"
}

// PolicyName returns the name of a rule's i-th limit in response headers. The result is the rule's
// name, followed by the window if the rule has several limits, and by the algorithm's label if
// several of them have that window.
func PolicyName(rule string, limits []counter.Limit, i int) string {
	if len(limits) == 1 {
		return rule
	}
	window, same := limits[i].WindowName(), 0
	for j := range limits {
		if limits[j].WindowName() == window {
			same++
		}
	}
	name := rule + "-" + window
	if same > 1 {
		name += "-" + limits[i].Algorithm().Label()
	}
	return name
}
