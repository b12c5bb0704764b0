// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"testing"
	"time"
)

// TestFarPauses: questions of a region that does not deny requests are pullEvery apart. Such
// questions do not delay those of a region that denies requests, even if both are under way at the
// same time. After a question in vain, a region that denies requests waits, too.
func TestFarPauses(t *testing.T) {
	const key = 1
	now := time.Unix(1_800_000_000, 0)
	var p pause
	check := func(after time.Duration, short, wantAsk, wantVain bool) {
		t.Helper()
		if ask, vain := p.farEnds(key, now.Add(after), short); ask != wantAsk || vain != wantVain {
			t.Errorf("after %v, short %v: ask %v, vain %v, want %v, %v", after, short, ask, vain, wantAsk, wantVain)
		}
	}
	check(0, false, true, false)
	check(0, true, true, false)           // while the first is under way
	p.farBegins(key, now, true, true)     // the second has ended
	p.farBegins(key, now, true, false)    // and then the first
	check(1, false, false, false)         // there is time
	check(1, true, true, false)           // requests are denied
	p.farBegins(key, now, false, true)    // in vain
	check(1, true, false, true)           // nothing is to be expected yet
	check(pauseMin, true, true, false)    // the end of the pause
	p.farBegins(key, now, true, true)     // lent
	check(pauseMin+1, true, true, false)  // at once
	check(pauseMin+1, false, true, false) // also if no request is denied
}
