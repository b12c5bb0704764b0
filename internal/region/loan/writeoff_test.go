// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/region/writeoff"
)

// held is a store that takes a long time to charge a counter, as if the process was stopped
// meanwhile.
type held struct {
	counter.Store
	charge time.Duration
}

func (h *held) Take(ctx context.Context, checks []counter.Check, results []counter.Result) error {
	if err := h.Store.Take(ctx, checks, results); err != nil {
		return err
	}
	if checks[0].Op == counter.OpUpTo {
		time.Sleep(h.charge)
	}
	return nil
}

// noRedis is a Redis for agents that do not run.
type noRedis struct{ writeoff.Redis }

// TestAStewardLendsByWhatItHasRead: a steward lends the part of a region that is written off only
// if it has read the state a short time ago. This must be so both before and after it charges the
// counter. It lends no part that another region lends or uses, and nothing if a question has the
// key of a part's counter.
func TestAStewardLendsByWhatItHasRead(t *testing.T) {
	for _, c := range []struct {
		name        string
		age, charge time.Duration
		steward     string
		of          string
		key         string
		units       int64
		status      int
	}{
		{name: "at once", steward: "a", of: "b", units: 15, status: http.StatusOK},
		{name: "read too long ago", age: writeoff.FreshTime + 1, steward: "a", of: "b", status: http.StatusOK},
		{name: "stopped while it lends", charge: writeoff.FreshTime + 1, steward: "a", of: "b", status: http.StatusBadRequest},
		{name: "not the steward", steward: "c", of: "b", status: http.StatusOK},
		{name: "a region that is not written off", steward: "a", of: "c", status: http.StatusOK},
		{name: "no region", steward: "a", of: "mars", status: http.StatusBadRequest},
		{name: "the key of a part", steward: "a", of: "b", key: "rl1:n:~of-b-1:r:{c}", status: http.StatusBadRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLender(t, "100/1h fixed_window", [policy.RegionsMax]uint16{50, 30, 20}, 0)
				l.o.Name, l.o.Writeoffs, l.o.Logger = "a", noRedis{}, slog.New(slog.DiscardHandler)
				own := l.o.Policy()
				own.Names = farNames[:]
				l.o.Policy = func() Policy { return own }
				l.o.Store = &held{l.o.Store, c.charge}
				l.writeoffs.state.Merge(map[string]writeoff.Entry{"b": {Generation: 1, Since: 1, Steward: c.steward}})
				l.writeoffs.read = time.Now()
				time.Sleep(c.age)
				q := Question{Key: l.key, Limit: l.whole.String(), Want: 100, Short: true, Shares: own.Here.Shares, Of: c.of}
				if c.key != "" {
					q.Key = []byte(c.key + counter.KeyTail(&l.whole))
				}
				text, err := json.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				if answer, status := l.post(loansPath, string(text)); status != c.status || answer.Units != c.units {
					t.Errorf("%d units with status %d, want %d with %d", answer.Units, status, c.units, c.status)
				}
				if metrics := l.metrics(); !strings.Contains(metrics, `written_off{region="b"} 1`+"\n") || !strings.Contains(metrics, `written_off{region="c"} 0`+"\n") {
					t.Errorf("b alone is written off, the metrics are\n%s", metrics)
				}
			})
		})
	}
}

// TestARegionThatIsTakenBackBorrowsNothing: in the windows in which a region must deny requests,
// its agent asks no other region for units, even if a proxy of an earlier release asks for some.
func TestARegionThatIsTakenBackBorrowsNothing(t *testing.T) {
	for _, c := range []struct {
		name  string
		entry writeoff.Entry // Since is in seconds before the present
		asks  bool
	}{
		{name: "never written off", asks: true},
		{name: "written off", entry: writeoff.Entry{Generation: 1, Steward: "b"}},
		{name: "taken back in this window", entry: writeoff.Entry{Generation: 2, Since: 1}},
		{name: "taken back in a window before", entry: writeoff.Entry{Generation: 2, Since: 7200}, asks: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLender(t, "100/1h fixed_window", equalShares, 0)
				l.now += 30 * counter.Minute
				l.o.Name, l.o.Writeoffs = "a", noRedis{}
				asked := false
				l.o.Peers = []*Peer{{Name: "b", send: func(context.Context, string, any) (Loan, error) {
					asked = true
					return Loan{}, nil
				}}}
				if c.entry.Generation > 0 {
					c.entry.Since = l.now - c.entry.Since*counter.Second
					l.writeoffs.state.Merge(map[string]writeoff.Entry{"a": c.entry})
				}
				q := Question{Key: l.key, Limit: l.whole.String(), Want: 100, Short: true, Need: 1, Shares: equalShares, Part: l.part.Count()}
				if units := l.borrow(t.Context(), &q, new(round)); units != 0 || asked != c.asks {
					t.Errorf("the agent asked: %v, and got %d units; want %v", asked, units, c.asks)
				}
			})
		})
	}
}
