// SPDX-License-Identifier: Apache-2.0

package writeoff_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestUpdate: a state is written if nobody else has changed it, if it is valid, and if the last
// instant for the write has not passed. Otherwise the value in Redis stays.
func TestUpdate(t *testing.T) {
	redis, err := redisstore.New(redisstore.Options{URL: redistest.Start(t).URL()})
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close() //nolint:errcheck // the test is over
	ctx := t.Context()
	name := func(s *writeoff.State) { s.Here, s.Names = "us", []string{"eu", "us"} }
	now := counter.Micros(time.Now().UnixMicro())
	if s, err := writeoff.Update(ctx, redis, now+counter.Hour, name); err != nil || s.Here != "us" {
		t.Fatalf("%+v, %v", s, err)
	}
	before, err := writeoff.Read(ctx, redis)
	if err != nil {
		t.Fatal(err)
	}
	forget := func(generation uint64) func(s *writeoff.State) {
		return func(s *writeoff.State) {
			s.Entries = map[string]writeoff.Entry{"eu": {Generation: generation, Since: now, Steward: "us"}}
		}
	}
	for word, update := range map[string]func() (writeoff.State, error){
		"too late":      func() (writeoff.State, error) { return writeoff.Update(ctx, redis, now-counter.Minute, forget(1)) },
		"out of bounds": func() (writeoff.State, error) { return writeoff.Update(ctx, redis, 0, forget(1<<50+1)) },
	} {
		if _, err := update(); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("want %q: %v", word, err)
		}
		if after, err := writeoff.Read(ctx, redis); err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: %q became %q, %v", word, before, after, err)
		}
	}
	calls := 0
	s, err := writeoff.Update(ctx, redis, 0, func(s *writeoff.State) {
		if calls++; calls == 1 {
			if _, err := writeoff.Update(ctx, redis, 0, forget(1)); err != nil {
				t.Error(err)
			}
		}
		s.Merge(map[string]writeoff.Entry{"us": {Generation: 2, Since: now}})
	})
	if err != nil || calls != 2 || s.Entries["eu"].Generation != 1 || s.Entries["us"].Generation != 2 {
		t.Errorf("two writers at the same time: %+v after %d calls, %v", s, calls, err)
	}
}
