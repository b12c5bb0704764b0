// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/store/regionstore"
)

// TestAnswersToProxies: when an agent is done with a question, it tells the proxies whether another
// question might bring units, so that requests neither stop waiting too early nor ask in vain.
func TestAnswersToProxies(t *testing.T) {
	shares := [policy.RegionsMax]uint16{50, 50}
	for name, c := range map[string]struct {
		used, left, need int64 // counted here, left in the other region, needed by requests
		moving, away     bool
		want             regionstore.Answer
	}{
		"granted in full":  {used: 20, left: 20, need: 5, want: regionstore.Answer{Units: 12, More: true}},
		"all that is left": {used: 20, left: 5, need: 10, want: regionstore.Answer{Units: 5}},
		"a part returned":  {used: 2, left: 5, need: 10, want: regionstore.Answer{Units: 2, More: true}},
		"nothing left":     {used: 20, left: 0, need: 10},
		"units under way":  {used: 20, left: 0, need: 10, moving: true, want: regionstore.Answer{Moving: true}},
		"away":             {used: 20, left: 20, need: 10, away: true},
	} {
		t.Run(name, func(t *testing.T) {
			l, other := newLender(t, "100/1h", shares, 0), newLender(t, "100/1h", shares, 1)
			if !l.takes(c.used) || c.left < 50 && !other.takes(50-c.left) {
				t.Fatal("the counters are not as they should be")
			}
			if c.moving {
				other.rounds.join(&Question{Key: l.key})
			}
			l.idleMax = 0
			l.o.Peers = []*Peer{{Name: "other", send: func(ctx context.Context, _ string, message any) (Loan, error) {
				switch m := message.(type) {
				case *Question:
					if c.away {
						return Loan{}, errors.New("away")
					}
					return other.lend(ctx, m)
				case *returned:
					return other.takeBack(ctx, m)
				}
				return Loan{}, nil
			}}}
			var mu sync.Mutex
			var sum regionstore.Answer
			l.o.Publish = func(_ context.Context, message []byte) error {
				var a regionstore.Answer
				if err := json.Unmarshal(message, &a); err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				sum.Units, sum.Done, sum.More, sum.Moving = sum.Units+a.Units, append(sum.Done, a.Done...), sum.More || a.More, sum.Moving || a.Moving
				return nil
			}
			question, err := json.Marshal(Question{Key: l.key, Limit: l.whole.String(), Part: l.part.Count(), Want: c.need + 50, Short: true, Need: c.need, ID: "x"})
			if err != nil {
				t.Fatal(err)
			}
			l.hear(t.Context(), string(question))
			l.running.Wait()
			if sum.Units != c.want.Units || sum.More != c.want.More || sum.Moving != c.want.Moving || len(sum.Done) != 1 || sum.Done[0] != "x" {
				t.Errorf("%+v, want %+v", sum, c.want)
			}
			if l.rounds.has(l.key) {
				t.Error("the round has not ended")
			}
		})
	}
}
