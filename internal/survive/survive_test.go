// SPDX-License-Identifier: Apache-2.0

package survive

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// TestAPanicIsAnError tests that work that somebody waits for ends once, with its own error or its
// panic.
func TestAPanicIsAnError(t *testing.T) {
	var log eventually.Journal
	away, before := errors.New("away"), Panics()
	if err := Once(log.Logger(), func() error { return away }); err != away || log.String() != "" {
		t.Errorf("%v, the log is %s", err, log.String())
	}
	err := Once(log.Logger(), func() error { panic("provoked") })
	if err == nil || !strings.Contains(err.Error(), "provoked") || Panics() != before+1 || !strings.Contains(log.String(), "survive_test.go") {
		t.Errorf("%v, %d panics, the log is %s", err, Panics()-before, log.String())
	}
}

// TestWorkGoesOnAfterAPanic tests that work that panics is begun again until it returns, and that
// its panic is counted and logged with its stack.
func TestWorkGoesOnAfterAPanic(t *testing.T) {
	var running sync.WaitGroup
	var log eventually.Journal
	before, begun := Panics(), 0
	Go(&running, log.Logger(), func() {
		if begun++; begun == 1 {
			panic("provoked")
		}
	})
	running.Wait()
	if begun != 2 || Panics() != before+1 || !strings.Contains(log.String(), "provoked") || !strings.Contains(log.String(), "survive_test.go") {
		t.Errorf("begun %d times, %d panics, the log is %s", begun, Panics()-before, log.String())
	}
}
