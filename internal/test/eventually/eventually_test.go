// SPDX-License-Identifier: Apache-2.0

package eventually

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// failing is a testing.TB that records why it failed.
type failing struct {
	testing.TB
	why string
}

func (f *failing) Helper() {}

func (f *failing) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestUntil checks that Until polls until the condition holds, and no longer. Until fails when
// patience is over, but polls at least once.
func TestUntil(t *testing.T) {
	for _, c := range []struct {
		patience time.Duration
		so       int // the check at which the condition holds
		why      string
	}{{time.Minute, 1, ""}, {time.Minute, 5, ""}, {0, 1, ""}, {20 * time.Millisecond, 1e9, "not within 20ms: it is so"}} {
		f, looks := &failing{TB: t}, 0
		var waiting sync.WaitGroup
		waiting.Go(func() {
			Until(f, c.patience, "it is so", func() bool { looks++; return looks == c.so })
		})
		waiting.Wait()
		if f.why != c.why || c.why == "" && looks != c.so {
			t.Errorf("%+v: %d looks, %q", c, looks, f.why)
		}
	}
}

// TestJournal reads a journal while goroutines write to it, and checks that nothing is lost.
func TestJournal(t *testing.T) {
	var j Journal
	var writing sync.WaitGroup
	for i := range 10 {
		writing.Go(func() { j.Logger().Info("said", "by", i) })
	}
	Until(t, 10*time.Second, "all have said it", func() bool { return strings.Count(j.String(), "msg=said by=") == 10 })
	writing.Wait()
}
