// SPDX-License-Identifier: Apache-2.0

package regionstore

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/region/writeoff"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/eventually"
)

// one is a store whose calls are answered one at a time.
type one struct{ counter.Store }

func (o one) TakeAll(ctx context.Context, calls []counter.Call) {
	for i := range calls {
		calls[i].Err = o.Take(ctx, calls[i].Checks, calls[i].Results)
	}
}

// written is a value in Redis, as one process reads it.
type written struct {
	value atomic.Pointer[[]byte]
	reads atomic.Int64
	err   atomic.Pointer[error]
}

func (w *written) write(t *testing.T, s *writeoff.State) {
	t.Helper()
	text, err := s.Text()
	if err != nil {
		t.Fatal(err)
	}
	w.value.Store(&text)
}

func (w *written) read(context.Context) ([]byte, error) {
	w.reads.Add(1)
	if err := w.err.Load(); err != nil {
		return nil, *err
	}
	if value := w.value.Load(); value != nil {
		return *value, nil
	}
	return nil, nil
}

// TestAWrittenOffRegionDenies: the state is read before the first decision. Until the region may
// use its part again, requests under limits that are lent are denied, and the store does not ask
// for units of other regions. A damaged value is logged once, and changes nothing.
func TestAWrittenOffRegionDenies(t *testing.T) {
	part, whole := limits(t)
	now := 1_700_000_000 * counter.Second
	inner, err := memstore.New(memstore.Options{Now: func() counter.Micros { return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	redis, log := new(written), new(eventually.Journal)
	failure := errors.New("away")
	redis.err.Store(&failure)
	questions := make(chan string, 100)
	s := New(one{inner}, Agency{Writeoffs: redis.read, Publish: func(_ context.Context, message []byte) (int64, error) {
		questions <- string(message)
		return 1, nil
	}}, log.Logger())
	defer s.Close()
	take := func(lent *counter.Limit) (counter.Result, error) {
		checks, results := []counter.Check{{Key: []byte("k"), Limit: &part, WholeLimit: lent, Cost: 1}}, make([]counter.Result, 1)
		err := s.Take(t.Context(), checks, results)
		return results[0], err
	}
	if _, err := take(&whole); !errors.Is(err, failure) {
		t.Errorf("a request was decided before the state was read: %v", err)
	}
	redis.err.Store(nil)
	state := writeoff.State{Here: "eu", Entries: map[string]writeoff.Entry{"eu": {Generation: 1, Since: now, Steward: "us"}}}
	redis.write(t, &state)
	eventually.Until(t, 30*time.Second, "the state is read again", func() bool {
		r, err := take(&whole)
		if err == nil && (!r.Denied || r.Granted != 0) {
			t.Errorf("a region that was written off answers %+v", r)
		}
		return err == nil
	})
	if r, err := take(nil); err != nil || r.Denied {
		t.Errorf("a limit that is not lent: %+v, %v", r, err)
	}

	damaged := []byte("{")
	redis.value.Store(&damaged)
	seen := redis.reads.Load()
	eventually.Until(t, 30*time.Second, "the damaged value is read several times", func() bool { return redis.reads.Load() >= seen+3 })
	if n := strings.Count(log.String(), "cannot be read"); n != 1 {
		t.Errorf("a damaged value is logged %d times", n)
	}
	if r, err := take(&whole); err != nil || !r.Denied {
		t.Errorf("with a damaged value, a region that was written off answers %+v, %v", r, err)
	}

	state.Entries["eu"] = writeoff.Entry{Generation: 2, Since: counter.Micros(time.Now().UnixMicro())}
	redis.write(t, &state)
	eventually.Until(t, 30*time.Second, "the region hears that it is taken back", func() bool { return strings.Contains(log.String(), "was taken back") })
	if r, err := take(&whole); err != nil || !r.Denied {
		t.Errorf("in a window before its return, the region answers %+v, %v", r, err)
	}
	now = state.Entries["eu"].Since + 2*counter.Hour
	if r, err := take(&whole); err != nil || r.Denied || r.Granted != 1 {
		t.Errorf("in a later window, the region answers %+v, %v", r, err)
	}
	for r := (counter.Result{Remaining: 1}); r.Remaining > 0; {
		if r, err = take(&whole); err != nil {
			t.Fatal(err)
		}
	}
	if first := <-questions; strings.Contains(first, `"short":true`) {
		t.Errorf("the region asked for units that it could not use: %s", first)
	}
}
