// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/test/limittest"
	"github.com/penstock/penstock/internal/test/seed"
)

// logAt is the index of the sliding log in the result of checks.
const logAt = 2

// checks returns a check of each algorithm for a client. The windows are so long that none ends
// during a test.
func checks(t *testing.T, client string, cost int64) (all []counter.Check) {
	t.Helper()
	for _, text := range []string{"100/30d fixed_window", "100/30d", "100/30d sliding_log", "100/30d token_bucket", "100/30d burst 40", "100/month"} {
		l := limittest.New(t, text)
		key := fmt.Sprintf("rl1:shop:r%d:{user:%s}%s", l.Capacity(), client, counter.KeyTail(l))
		c := counter.Check{Key: []byte(key), ScopeLen: strings.IndexByte(key, '{'), Limit: l, Cost: cost, Refundable: len(client)%2 == 0}
		if l.Calendar() != 0 { // a window that began on the day before
			begins := counter.Micros(time.Now().UTC().Truncate(24 * time.Hour).Add(-24 * time.Hour).UnixMicro())
			c.Bounds = &counter.Bounds{begins - counter.Day, begins, begins + 30*counter.Day, begins + 60*counter.Day}
		}
		all = append(all, c)
	}
	return all
}

// world.left returns how many units a client has left in the counter of each algorithm.
func (w *world) left(client string) (left []int64) {
	w.t.Helper()
	looks := checks(w.t, client, 0)
	for i := range looks {
		looks[i].Op = counter.OpLook
	}
	for _, r := range w.take(looks...) {
		left = append(left, r.Remaining)
	}
	return left
}

// TestARestoreGivesNothingBack: after a backup, all counters are lost, and are then used again. A
// restore leaves each counter with the greater of the two uses, and a sliding log with the marks of
// both.
func TestARestoreGivesNothingBack(t *testing.T) {
	for name, start := range map[string]func(*testing.T) *world{"single": single, "ring": ring, "cluster": cluster} {
		t.Run(name, func(t *testing.T) {
			rng := seed.Random(t)
			w := start(t)
			const clients = 12
			charge := func() {
				for i := range clients {
					if rng.IntN(3) > 0 {
						w.take(checks(t, fmt.Sprint("u", i), 1+rng.Int64N(20))...)
					}
				}
			}
			all := func() (left [][]int64) {
				for i := range clients {
					left = append(left, w.left(fmt.Sprint("u", i)))
				}
				return left
			}
			charge()
			then, file := all(), w.backup()
			w.flush()
			charge()
			before := all()
			if w.restore(file, true); fmt.Sprint(all()) != fmt.Sprint(before) {
				t.Error("a dry run changed counters")
			}
			planned, did := w.restore(file, true), w.restore(file, false)
			if planned != did {
				t.Errorf("a dry run says %v, the restore %v", planned, did)
			}
			for i, after := range all() {
				for j := range after {
					want := min(then[i][j], before[i][j])
					if j == logAt { // a restored log has the instants of both
						want = max(0, then[i][j]+before[i][j]-100)
					}
					if after[j] != want {
						t.Errorf("client %d, limit %d: %d left at the backup, %d before the restore, %d after it", i, j, then[i][j], before[i][j], after[j])
					}
				}
			}
			if again := w.restore(file, false); again.Added+again.Raised+again.Over+again.Unreadable != 0 {
				t.Errorf("a second restore: %v", again)
			}
			charge()
		})
	}
}

// TestPenaltiesAndReceiptsStay: after the restore a client's penalty is in force, its violations
// count, and no receipt is redeemed twice.
func TestPenaltiesAndReceiptsStay(t *testing.T) {
	w := single(t)
	redeem := counter.Check{Key: []byte("rl1:shop:~receipt:{0a-7}:720s:tb"), ScopeLen: 18, Limit: limittest.New(t, "1/720s token_bucket"), Cost: 1}
	punished := []counter.Check{
		{Key: []byte("rl1:shop:~penalty:{user:a}"), ScopeLen: 18,
			Penalty: &counter.Penalty{Window: counter.Hour, Threshold: 1, Multipliers: []int64{1, 2}, Max: 10 * counter.Minute}},
		{Key: []byte("rl1:shop:api:{user:a}:2592000s:fw"), ScopeLen: 13, Limit: limittest.New(t, "1/30d fixed_window"), Cost: 1, Guard: 1, Violation: 7},
	}
	ask := func() (penaltyWait counter.Micros) {
		t.Helper()
		results := make([]counter.Result, len(punished))
		if err := w.store.Take(t.Context(), punished, results); err != nil {
			t.Fatal(err)
		}
		return results[0].Wait
	}
	w.take(redeem)
	ask()
	ask() // imposes the penalty
	before := ask()
	if before == 0 {
		t.Fatal("there is no penalty to restore")
	}
	file := w.backup()
	w.flush()
	if w.restore(file, false); w.take(redeem)[0].Granted != 0 {
		t.Error("the receipt is redeemed twice")
	}
	violations, err := w.servers.Nodes[0].Client().ZCard(t.Context(), "rl1:shop:~penalty:{user:a}").Result()
	if after := ask(); after == 0 || after > before || err != nil || violations != 1 {
		t.Errorf("the penalty lasted %v before and %v after; %d violations (%v)", before, after, violations, err)
	}
}

// TestViolationsAreBounded: of a set with more violations than the limiter keeps, a backup has at
// most violationsMax.
func TestViolationsAreBounded(t *testing.T) {
	w := single(t)
	const key = "rl1:shop:~penalty:{user:a}"
	client, now := w.servers.Nodes[0].Client(), time.Now().UnixMicro()
	var members []redis.Z
	for i := range violationsMax + 10 {
		members = append(members, redis.Z{Score: float64(now + int64(i)), Member: fmt.Sprintf("%d-%d-7", now+int64(i), now+int64(counter.Hour))})
	}
	if err := client.ZAdd(t.Context(), key, members...).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Expire(t.Context(), key, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(w.backup())
	if n := strings.Count(string(text), "-7"); n != violationsMax || err != nil {
		t.Errorf("%d violations are in the backup, %v; want %d", n, err, violationsMax)
	}
}

// TestExpiredCountersAreLeftOut: expired counters, ended penalties, and marks that have expired in
// their log are not restored. A long log is restored as a whole.
func TestExpiredCountersAreLeftOut(t *testing.T) {
	w := single(t)
	now := time.Now()
	var log []string
	for i := range 1000 {
		log = append(log, fmt.Sprintf("%d:1", now.Add(time.Duration(i-4000)*time.Second).UnixMicro()))
	}
	var records []record
	add := func(key, value string, expires time.Time) {
		m, ok := meaningOf(key)
		if !ok {
			t.Fatalf("%s is no counter", key)
		}
		records = append(records, record{meaning: m, key: key, expires: expires.UnixMilli(), value: value})
	}
	soon := now.Add(time.Hour)
	add("rl1:shop:api:{user:a}:60s:fw", fmt.Sprintf("%d 3 0", now.Truncate(time.Minute).UnixMicro()), now.Add(-time.Second))
	add("rl1:shop:~penalty:{user:a}:until", fmt.Sprint(now.Add(-time.Second).UnixMicro()), soon)
	for len(log) > 0 {
		add("rl1:shop:api:{user:a}:3600s:sl", strings.Join(log[:membersPerRecord-6], " "), soon)
		log = log[membersPerRecord-6:]
	}
	restored := w.restore(newBackup(t, records...), false)
	if restored.Over != 2 || restored.Added != 1 {
		t.Errorf("%v", restored)
	}
	l := limittest.New(t, "2000/1h sliding_log")
	look := counter.Check{Key: []byte("rl1:shop:api:{user:a}:3600s:sl"), ScopeLen: 13, Limit: l, Op: counter.OpLook}
	if left := w.take(look)[0].Remaining; left < 1400 || left > 1500 {
		t.Errorf("%d of 2000 left after 600 of 1000 marks", left)
	}
}

// newBackup returns a backup that contains the given records.
func newBackup(t *testing.T, records ...record) *bytes.Reader {
	t.Helper()
	var file bytes.Buffer
	to := newWriter(&file, time.Now())
	for i := range records {
		if err := to.addRecord(&records[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := to.end(&file); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(file.Bytes())
}

// TestABucketIsNeverFullerThanItsRate merges random states of buckets, including buckets whose
// limit was different when the backup was made. The merged bucket never has more tokens than either
// of the two buckets would have.
func TestABucketIsNeverFullerThanItsRate(t *testing.T) {
	rng := seed.Random(t)
	w := single(t)
	client := w.servers.Nodes[0].Client()
	type pair struct{ merged, stored, live counter.Check }
	var pairs []pair
	var records []record
	now := time.Now()
	state := func(l *counter.Limit) string {
		other := *l
		if rng.IntN(3) == 0 {
			other = limittest.Parse(t, fmt.Sprintf("%d/1h burst %d", 1+rng.IntN(5000), 1+rng.IntN(5000)))
		}
		unit, _, _ := other.Arithmetic()
		at := now.Add(-time.Duration(rng.Int64N(int64(30 * time.Minute)))).UnixMicro()
		return fmt.Sprintf("%d %d %d", at, rng.Int64N(other.Capacity()*unit+1), unit)
	}
	for i := range 300 {
		l := limittest.New(t, fmt.Sprintf("%d/1h burst %d", 1+rng.IntN(5000), 1+rng.IntN(5000)))
		check := func(who string) counter.Check {
			return counter.Check{Key: fmt.Appendf(nil, "rl1:shop:api:{user:%s%d}:3600s:tb", who, i), ScopeLen: 13, Limit: l, Op: counter.OpLook}
		}
		p := pair{check("merged"), check("stored"), check("live")}
		stored, live := state(l), state(l)
		for key, value := range map[string]string{string(p.merged.Key): live, string(p.live.Key): live, string(p.stored.Key): stored} {
			if err := client.Set(t.Context(), key, value, 24*time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
		}
		records = append(records, record{meaning: meaning{kindBucket, counter.Hour}, key: string(p.merged.Key), expires: now.Add(10 * time.Hour).UnixMilli(), value: stored})
		pairs = append(pairs, p)
	}
	w.restore(newBackup(t, records...), false)
	for _, p := range pairs {
		merged := w.take(p.merged)[0].Remaining // the other two are read later, so they can only have gained tokens
		if stored, live := w.take(p.stored)[0].Remaining, w.take(p.live)[0].Remaining; merged > min(stored, live) {
			t.Errorf("%s of %s: %d left, alone %d and %d", p.merged.Key, p.merged.Limit, merged, stored, live)
		}
	}
}

// TestLimitsHoldDuringBackupsAndRestores: clients get exactly the limit while backups are taken and
// restored.
func TestLimitsHoldDuringBackupsAndRestores(t *testing.T) {
	w := single(t)
	const limit = 400
	l := limittest.New(t, fmt.Sprint(limit, "/30d"))
	check := []counter.Check{{Key: []byte("rl1:shop:api:{user:a}:2592000s:sw"), ScopeLen: 13, Limit: l, Cost: 1}}
	var admitted, asked atomic.Int64
	var askers sync.WaitGroup
	for range 4 {
		askers.Go(func() {
			result := make([]counter.Result, 1)
			for range limit / 2 {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if err := w.store.Take(ctx, check, result); err != nil {
					t.Error(err)
				}
				cancel()
				if asked.Add(1); result[0].Granted == 1 {
					admitted.Add(1)
				}
			}
		})
	}
	for asked.Load() < 2*limit && !t.Failed() {
		w.restore(w.backup(), rand.IntN(2) == 0)
	}
	askers.Wait()
	if admitted.Load() != limit {
		t.Errorf("%d of %d admitted", admitted.Load(), limit)
	}
}
