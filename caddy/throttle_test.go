// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/penstock/penstock/internal/directory"
)

// queueTest sends requests to a handler in virtual time and records when each is answered.
type queueTest struct {
	t     *testing.T
	h     *Handler
	start time.Time
	mu    sync.Mutex
	said  []string // answers such as "1s a 200", in the order in which they were sent
}

// runQueued runs a scenario with a handler, in a bubble in which time advances only when all
// goroutines wait.
func runQueued(t *testing.T, config string, story func(*queueTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := newProvisioned(t, config)
		// The test starts on a full hour, when windows begin.
		time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
		story(&queueTest{t: t, h: h, start: time.Now()})
		synctest.Wait()
		if throttleQueues.Waiting() != 0 {
			t.Errorf("%d still wait", throttleQueues.Waiting())
		}
	})
}

// queueTest.ask sends a request and waits until it is answered or enqueued. The returned function
// cancels the request.
func (q *queueTest) ask(name, path string) (leave context.CancelFunc) {
	r := httptest.NewRequest(http.MethodGet, "http://shop.example"+path, nil)
	ctx, leave := context.WithCancel(r.Context())
	r = caddyhttp.PrepareRequest(r.WithContext(ctx), caddy.NewReplacer(), nil, nil)
	r.Context().Value(caddyhttp.VarsCtxKey).(map[string]any)[caddyhttp.ClientIPVarKey] = "192.0.2.7"
	go func() {
		w := httptest.NewRecorder()
		if err := q.h.ServeHTTP(w, r, nothing); err != nil {
			q.t.Error(err)
		}
		line := fmt.Sprintf("%s %s %d", time.Since(q.start).Round(10*time.Millisecond), name, w.Code)
		if wait := w.Header().Get("Retry-After"); wait != "" {
			line += " retry " + wait
		}
		if reset := w.Header().Get("X-RateLimit-Reset"); reset != "" && reset <= fmt.Sprint(time.Now().Unix()) {
			line += " reset in the past"
		}
		q.mu.Lock()
		q.said = append(q.said, line)
		q.mu.Unlock()
	}()
	synctest.Wait()
	return leave
}

// wantAnswers waits until the given time since the start and compares the answers received by then,
// with their times. The order of answers at the same instant does not matter.
func (q *queueTest) wantAnswers(at time.Duration, lines ...string) {
	q.t.Helper()
	time.Sleep(time.Until(q.start.Add(at)))
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	slices.Sort(q.said)
	slices.Sort(lines)
	if !slices.Equal(q.said, lines) {
		q.t.Errorf("after %s: got\n\t%s\nwant\n\t%s", at, strings.Join(q.said, "\n\t"), strings.Join(lines, "\n\t"))
	}
}

const onePerSecond = `{"name":"queue","rules":[{"name":"slow","limit":"1/1s fixed_window","action":"throttle",
	"throttle":{"max_delay":"MAX_DELAY","max_waiting":MAX_WAITING}} MORE]}`

func throttleConfig(maxDelay string, maxWaiting int, more string) string {
	return strings.NewReplacer("MAX_DELAY", maxDelay, "MAX_WAITING", fmt.Sprint(maxWaiting), "MORE", more).Replace(onePerSecond)
}

func TestRequestsWaitInOrder(t *testing.T) {
	runQueued(t, throttleConfig("10s", 10, ""), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c", "d"} {
			q.ask(name, "/")
		}
		q.wantAnswers(500*time.Millisecond, "0s a 200")
		q.wantAnswers(2500*time.Millisecond, "0s a 200", "1s b 200", "2s c 200")
		q.ask("e", "/")
		q.wantAnswers(9*time.Second, "0s a 200", "1s b 200", "2s c 200", "3s d 200", "4s e 200")
	})
}

// TestABlockReachesThoseThatWait blocks a client while one of its requests waits. The request is
// denied at its turn and takes no unit. The unit goes to a later client of the same limit.
func TestABlockReachesThoseThatWait(t *testing.T) {
	runQueued(t, throttleConfig("10s", 10, ""), func(q *queueTest) {
		memory := new(directory.Memory)
		clients, err := directory.Open(directory.Options{Source: memory})
		if err != nil {
			t.Fatal(err)
		}
		q.h.app.store.directory = clients
		defer func() {
			q.h.app.store.directory = nil
			if err := clients.Close(); err != nil {
				t.Error(err)
			}
		}()
		change := func(action directory.Action) {
			t.Helper()
			editor := directory.Editor{Source: memory}
			if _, err := editor.Apply(t.Context(), directory.Edit{Client: "ip:192.0.2.0/24", Action: action, Actor: "t", Reason: "a test"}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			q.ask(name, "/")
		}
		q.wantAnswers(1500*time.Millisecond, "0s a 200", "1s b 200")
		change(directory.ActionBlock)
		q.wantAnswers(2500*time.Millisecond, "0s a 200", "1s b 200", "2s c 403", "2s d 403")
		change(directory.ActionUnblock)
		q.ask("e", "/")
		q.wantAnswers(2500*time.Millisecond, "0s a 200", "1s b 200", "2s c 403", "2s d 403", "2.5s e 200")
	})
}

func TestTheQueueIsBounded(t *testing.T) {
	runQueued(t, throttleConfig("10s", 2, ""), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c", "d"} {
			q.ask(name, "/")
		}
		q.wantAnswers(0, "0s a 200", "0s d 429 retry 10")
		q.wantAnswers(5*time.Second, "0s a 200", "0s d 429 retry 10", "1s b 200", "2s c 200")
	})
}

func TestNoRequestWaitsLongerThanMaxDelay(t *testing.T) {
	runQueued(t, throttleConfig("1500ms", 10, ""), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c"} {
			q.ask(name, "/")
		}
		// The request c is the first in the queue after 1 s, and could pass after 2 s.
		q.wantAnswers(9*time.Second, "0s a 200", "1s b 200", "1s c 429 retry 1")
	})
	runQueued(t, throttleConfig("500ms", 10, ""), func(q *queueTest) {
		q.ask("a", "/")
		q.ask("b", "/")
		q.wantAnswers(0, "0s a 200", "0s b 429 retry 1")
	})
}

// TestADenialAfterWaitingIsUpToDate: the request d waits behind c and is denied two seconds after
// the store was called.
func TestADenialAfterWaitingIsUpToDate(t *testing.T) {
	runQueued(t, throttleConfig("2s", 10, ""), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c", "d"} {
			q.ask(name, "/")
		}
		synctest.Wait()
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if told := strings.Join(q.said, ", "); !strings.Contains(told, "2s d 429") || strings.Contains(told, "past") {
			t.Error(told)
		}
	})
}

func TestALateTurn(t *testing.T) {
	runQueued(t, throttleConfig("2500ms", 10, ""), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			q.ask(name, "/")
		}
		// At 2 s, c passes and d becomes the first. It could pass only 3 s after the start, which
		// is later than its deadline, so d is denied at once, and then e, which was behind d.
		q.wantAnswers(9*time.Second, "0s a 200", "1s b 200", "2s c 200", "2s d 429 retry 1", "2s e 429 retry 1")
	})
}

func TestAClientThatLeavesFreesItsPlace(t *testing.T) {
	runQueued(t, throttleConfig("10s", 10, ""), func(q *queueTest) {
		q.ask("a", "/")
		first, second := q.ask("b", "/"), q.ask("c", "/")
		q.ask("d", "/")
		second()
		q.wantAnswers(200*time.Millisecond, "0s a 200", "0s c 499")
		first()
		q.wantAnswers(9*time.Second, "0s a 200", "0s c 499", "200ms b 499", "1s d 200")
	})
}

func TestAnotherLimitDeniesAtOnce(t *testing.T) {
	more := `,{"name":"hard","match":{"path":"/hard"},"limit":"1/1h fixed_window"}`
	runQueued(t, throttleConfig("10s", 10, more), func(q *queueTest) {
		q.ask("a", "/hard")
		q.ask("b", "/")
		q.ask("c", "/hard") // this request would be behind b, if it had to wait
		q.wantAnswers(0, "0s a 200", "0s c 429 retry 3600")
		q.wantAnswers(5*time.Second, "0s a 200", "0s c 429 retry 3600", "1s b 200")
	})
}

// TestAUsedUpTierDelaysNoOther: clients of two tiers share a counter. While a request waits for the
// lower limit, requests under the higher one have room.
func TestAUsedUpTierDelaysNoOther(t *testing.T) {
	config := `{"name":"queue","tier":[{"attr":"http.request.uri.query.tier"}],"rules":[{"name":"slow","per":[],
		"limit":"1/1s fixed_window","tiers":{"gold":"3/1s fixed_window"},"action":"throttle","throttle":{"max_delay":"10s"}}]}`
	runQueued(t, config, func(q *queueTest) {
		q.ask("a", "/")
		q.ask("b", "/")
		q.ask("c", "/?tier=gold")
		q.ask("d", "/?tier=gold")
		q.wantAnswers(500*time.Millisecond, "0s a 200", "0s c 200", "0s d 200")
		q.wantAnswers(1500*time.Millisecond, "0s a 200", "0s c 200", "0s d 200", "1s b 200")
	})
}

func TestALimitThatIsReachedMeanwhileDenies(t *testing.T) {
	more := `,{"name":"hard","match":{"path":"/hard"},"limit":"2/1h fixed_window"}`
	runQueued(t, throttleConfig("10s", 10, more), func(q *queueTest) {
		for _, name := range []string{"a", "b", "c"} {
			q.ask(name, "/hard")
		}
		q.wantAnswers(9*time.Second, "0s a 200", "1s b 200", "1s c 429 retry 3599")
	})
}
