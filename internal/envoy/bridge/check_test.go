// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/lint"
	"github.com/penstock/penstock/internal/store/memstore"
)

// TestACallDecidesEachForItself: the questions of a call are decided one by one, for two clients.
// One question cannot be answered.
func TestACallDecidesEachForItself(t *testing.T) {
	h := open(t, shop, nil)
	bad := h.question("/api/x", "192.0.2.1")
	bad.Ask.Headers = nil
	var items []wire.Item
	for _, path := range []string{"/api/x", "/api/x", "/api/x", "/other", "/who"} {
		items = append(items, h.question(path, "192.0.2.1"))
	}
	items = append(items, h.question("/api/x", "192.0.2.2"), bad)
	answers := h.ask(items...)
	for i, want := range []string{"0 false 1", "0 false 0", "0 true 0", "0", "0", "0 false 1", "3"} {
		got := fmt.Sprint(answers[i].Status)
		for _, r := range answers[i].Results {
			got += fmt.Sprint(" ", r.Denied, r.Remaining)
		}
		if got != want {
			t.Errorf("question %d: %q, want %q", i, got, want)
		}
	}
}

// TestVersions: a filter continues with the policy it knows until that version is forgotten.
func TestVersions(t *testing.T) {
	h := open(t, shop, nil)
	edit := func(limit int) {
		h.write(strings.Replace(shop, "2/1h", fmt.Sprint(limit, "/1h"), 1))
		if err := h.b.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	old := h.b.policy.Current().ID
	items := []wire.Item{h.question("/api/x", "192.0.2.1")}
	remaining := func(version string) string {
		a := h.answers(h.post(callOf(version, items...), wire.ContentType), 1)[0]
		if a.Status != wire.StatusOK {
			return fmt.Sprint("status ", a.Status)
		}
		return fmt.Sprint(a.Results[0].Remaining)
	}
	if got := remaining(old); got != "1" {
		t.Error(got)
	}
	for limit := 3; limit < 3+formerMax; limit++ {
		edit(limit)
	}
	if got := remaining(old); got != "0" {
		t.Errorf("by a former version %s remain, want 0", got)
	}
	if got := remaining(h.b.policy.Current().ID); got != fmt.Sprint(formerMax-1) { // 3 units of the limit are used
		t.Errorf("by the version in force %s remain, want %d", got, formerMax-1)
	}
	edit(1000)
	for _, unknown := range []string{old, "", "nonsense"} {
		if got := remaining(unknown); got != "status 2" {
			t.Errorf("by version %q: %s, want status 2", unknown, got)
		}
	}
	edit(6) // a former version is in force again, and is still counted as one version
	if n := len(h.b.policy.Known()); n != formerMax+1 {
		t.Errorf("%d versions are known", n)
	}
	if r := h.b.readiness(); len(r.Warnings) > 0 || !r.Ready {
		t.Error(r)
	}
	h.write("rules: [{name: x, limit: many}]")
	if err := h.b.Reload(); err == nil {
		t.Error("a bad policy is accepted")
	}
	if r := h.b.readiness(); len(r.Warnings) != 1 || !r.Ready {
		t.Error(r)
	}
}

// TestBadCalls: each malformed call is answered with a reason.
func TestBadCalls(t *testing.T) {
	h := open(t, shop, nil)
	many := make([]wire.Item, wire.ItemsMax+1)
	for i := range many {
		many[i] = h.question("/api/x", "192.0.2.1")
	}
	whole := h.call(many[0])
	for name, c := range map[string]struct {
		body []byte
		want int
	}{
		"nothing":         {nil, 400},
		"garbage":         {[]byte("GET / HTTP/1.1"), 400},
		"cut off":         {whole[:len(whole)-1], 400},
		"more behind":     {append(whole[:len(whole):len(whole)], 'x'), 400},
		"another version": {append([]byte("pc\x03"), whole[3:]...), 400},
		"too many":        {h.call(many...), 400},
		"too large":       {make([]byte, wire.CallBytesMax+1), 413},
		"no items":        {h.call(), 200},
		"as many as may":  {h.call(many[1:]...), 200},
	} {
		if w := h.post(c.body, wire.ContentType); w.Code != c.want {
			t.Errorf("%s: status %d, want %d: %s", name, w.Code, c.want, w.Body)
		}
	}
	if n := h.readUsed("/api/x", "192.0.2.1"); n != 2 {
		t.Errorf("%d used", n)
	}
}

// TestTheStoreFails: if the store fails, each question is answered as unavailable.
func TestTheStoreFails(t *testing.T) {
	h := open(t, shop, nil)
	h.store.fails = fmt.Errorf("%w: away", counter.ErrUnavailable)
	answers := h.ask(h.question("/api/x", "192.0.2.1"), h.question("/other", "192.0.2.1"), h.question("/slow", "192.0.2.1"))
	if answers[0].Status != wire.StatusUnavailable || answers[1].Status != wire.StatusOK || answers[2].Status != wire.StatusUnavailable {
		t.Error(answers)
	}
	wait := h.question("/slow", "192.0.2.1")
	wait.Kind = wire.KindWait
	if a := h.ask(wait); a[0].Status != wire.StatusUnavailable {
		t.Error(a)
	}
}

// TestTheStoreIsOverloaded: the filter gets StatusBusy, and the JSON API gets a denial.
func TestTheStoreIsOverloaded(t *testing.T) {
	testThatTheBridgeDenies(t, counter.ErrOverloaded)
}

// TestARejectedQuestionIsDenied: a request that the store rejects is denied. Otherwise it would
// pass uncounted under on_error: allow.
func TestARejectedQuestionIsDenied(t *testing.T) {
	testThatTheBridgeDenies(t, counter.ErrInvalid)
}

// testThatTheBridgeDenies tests that requests are denied if a store that works answers them with an
// error.
func testThatTheBridgeDenies(t *testing.T, err error) {
	h := open(t, shop, nil)
	h.store.fails = fmt.Errorf("%w: a reason", err)
	answers := h.ask(h.question("/api/x", "192.0.2.1"), h.question("/other", "192.0.2.1"), h.question("/slow", "192.0.2.1"))
	if answers[0].Status != wire.StatusBusy || answers[1].Status != wire.StatusOK || answers[2].Status != wire.StatusBusy {
		t.Error(answers)
	}
	w := h.post([]byte(`{"path":"/api/x","ip":"192.0.2.1"}`), "application/json")
	if !strings.Contains(w.Body.String(), `"status":503`) || !strings.Contains(w.Body.String(), `"retry_after":"1"`) {
		t.Error(w.Body.String())
	}
}

// TestAToken: without the token, the bridge only reports whether it works.
func TestAToken(t *testing.T) {
	const token = "0123456789abcdef"
	h := open(t, shop, func(o *Options) { o.Token = token })
	for path, method := range map[string]string{"/v1/check": "POST", "/v1/policy": "GET", "/metrics": "GET", "/healthz": "GET", "/readyz": "GET"} {
		for header, right := range map[string]bool{"": false, "Bearer": false, "Bearer " + token[1:]: false, "Bearer " + token + "0": false,
			"bearer " + token: false, "Bearer " + token: true} {
			r := httptest.NewRequest(method, path, strings.NewReader(`{}`))
			r.Header.Set("Authorization", header)
			w := httptest.NewRecorder()
			h.b.Handler().ServeHTTP(w, r)
			if passed := w.Code == http.StatusOK; passed != (right || strings.HasSuffix(path, "z")) {
				t.Errorf("%s with %q: %d", path, header, w.Code)
			}
		}
	}
}

// TestTooManyCalls: calls beyond the bound are answered at once.
func TestTooManyCalls(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.CallsMax = 3 })
	h.b.under.Store(3)
	if w := h.post(h.call(), wire.ContentType); w.Code != 503 || w.Header().Get("Retry-After") == "" || w.Header().Get(wire.LeasingHeader) == "" {
		t.Error(w.Code)
	}
	h.b.under.Store(2)
	if w := h.post(h.call(), wire.ContentType); w.Code != 200 || h.b.under.Load() != 2 {
		t.Error(w.Code, h.b.under.Load())
	}
}

// TestTooManyQuestions: questions beyond the bound are answered with StatusBusy; settlements are
// still accepted.
func TestTooManyQuestions(t *testing.T) {
	h := open(t, shop, nil)
	receipt := h.admitted()
	h.b.asking.Store(questionsMax - 1)
	if a := h.ask(h.question("/api/x", "192.0.2.1"), settlementItem(receipt, "3")); a[0].Status != wire.StatusBusy || a[1].Status != wire.StatusOK {
		t.Error(a)
	}
	if a := h.ask(h.question("/api/x", "192.0.2.1")); a[0].Status != wire.StatusOK || h.b.asking.Load() != questionsMax-1 {
		t.Error(a, h.b.asking.Load())
	}
}

// TestKeysThatAreNotThere: a bridge whose keys cannot be fetched starts, and reports that it is not
// ready.
func TestKeysThatAreNotThere(t *testing.T) {
	away := httptest.NewServer(http.NotFoundHandler())
	defer away.Close()
	h := open(t, shop+"identify: [{jwt: {jwks_url: \""+away.URL+"/keys\", algorithms: [RS256]}}]", nil)
	if r := h.b.readiness(); r.Ready || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], "key set") {
		t.Error(r)
	}
}

// TestAReplyIsAsLargeAsAFilterReads: a filter reads replies up to a certain size. The bridge leaves
// receipts out of a reply that would be larger. Decisions are never left out, because a denied
// request would then be admitted.
func TestAReplyIsAsLargeAsAFilterReads(t *testing.T) {
	policy, limit := "name: shop\nrules:\n", 200
	for i := range counter.ChecksMax {
		policy += fmt.Sprintf("- {name: a-rule-with-quite-a-long-name-%d, limit: %d/1h, refund_on: {status: [5xx]}}\n", i, limit)
		limit = 1_000_000
	}
	h := open(t, policy, nil)
	items := make([]wire.Item, wire.ItemsMax)
	for i := range items {
		items[i] = h.question("/", "192.0.2.1")
	}
	receipts, refused := 0, 0
	for i, a := range h.ask(items...) {
		if a.Status != wire.StatusOK || len(a.Results) != counter.ChecksMax {
			t.Fatalf("answer %d: status %d, %d results", i, a.Status, len(a.Results))
		}
		if a.Receipt != "" {
			receipts++
		}
		if a.Results[0].Denied {
			refused++
		}
	}
	if receipts < 50 || receipts > 150 || refused != len(items)-200 {
		t.Errorf("%d receipts, and %d refused, want some and %d", receipts, refused, len(items)-200)
	}
	if n := h.counted(`penstock_settlements_total{result="dropped"}`); n != 200-receipts {
		t.Errorf("%d receipts are counted as dropped, want %d", n, 200-receipts)
	}
}

// TestReadiness: /readyz reports what is missing.
func TestReadiness(t *testing.T) {
	var away error
	looks := 0
	h := open(t, shop, func(o *Options) {
		o.Reachable = func(context.Context) error {
			looks++
			return away
		}
	})
	ready := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/readyz", nil))
		return w
	}
	if w := ready(); w.Code != 200 || !strings.Contains(w.Body.String(), h.b.policy.Current().ID) {
		t.Error(w.Code, w.Body)
	}
	for range 10 {
		ready()
	}
	if looks != 1 {
		t.Errorf("the store was asked %d times within a moment", looks)
	}
	later := func() { h.b.reached.at = h.b.reached.at.Add(-readyAge) }
	away = errors.New("secret host")
	later()
	if w := ready(); w.Code != 503 || !strings.Contains(w.Body.String(), "store") || strings.Contains(w.Body.String(), "secret") {
		t.Error(w.Code, w.Body)
	}
	away = nil
	later()
	h.b.Leave()
	if w := ready(); w.Code != 503 || !strings.Contains(w.Body.String(), "stop") {
		t.Error(w.Code, w.Body)
	}
}

// TestAStoppingBridgeClosesItsConnections: each connection is closed with an answer, so that no
// call is sent on a connection that is closing.
func TestAStoppingBridgeClosesItsConnections(t *testing.T) {
	h := open(t, shop, func(*Options) {})
	closes := func(major int) bool {
		t.Helper()
		r := httptest.NewRequest("POST", "/v1/check", bytes.NewReader(h.call(h.question("/a", "192.0.2.1"))))
		r.Header.Set("Content-Type", wire.ContentType)
		r.ProtoMajor = major
		w := httptest.NewRecorder()
		h.b.Handler().ServeHTTP(w, r)
		if w.Code != 200 {
			t.Error(w.Code, w.Body)
		}
		return w.Header().Get("Connection") == "close"
	}
	if closes(1) || closes(2) {
		t.Error("a bridge that stays closes connections")
	}
	h.b.Leave()
	if !closes(1) || closes(2) {
		t.Error("by HTTP/1.1 every connection is closed, by HTTP/2 none")
	}
}

// TestAPolicyOfASharedStoreHasAName: over a shared store, a policy without a name is rejected.
func TestAPolicyOfASharedStoreHasAName(t *testing.T) {
	h := open(t, shop, func(o *Options) { o.Shared = true })
	h.write(strings.Replace(shop, "name: shop", "", 1))
	if err := h.b.Reload(); err == nil {
		t.Error("an edit without a name is accepted")
	}
	if _, err := New(Options{PolicyFile: h.file, Store: h.store, Shared: true}); !errors.Is(err, errNameMissing) {
		t.Error(err)
	}
}

// TestAPolicyThatNoFilterReads: the bridge rejects a policy that is too large for filters.
func TestAPolicyThatNoFilterReads(t *testing.T) {
	d, err := policyfile.Decode("large", policyfile.JSON, []byte(`{"name":"shop","rules":[{"name":"r","limit":"1/1h","match":{"path":["/r"]},"response":{"body":"`+
		strings.Repeat("x", 60_000)+`","content_type":"text/plain"}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	// a policy file cannot be this large, but a document from another source can
	for i := range compact.PolicyBytesMax/60_000 + 1 {
		d.Rules = append(d.Rules, d.Rules[0])
		d.Rules[i+1].Name, d.Rules[i+1].Match = fmt.Sprint("r", i), &policyfile.Match{Path: policyfile.Words{fmt.Sprint("/", i)}}
	}
	h := open(t, shop, nil)
	if _, err := New(Options{Policy: d, Store: h.store}); err == nil || !strings.Contains(err.Error(), "fewer rules") {
		t.Error(err)
	}
}

// TestMetrics: outcomes are counted under the same names as in Caddy, and no label names a client.
func TestMetrics(t *testing.T) {
	h := open(t, shop, nil)
	for range 3 {
		h.ask(h.question("/api/x", "192.0.2.77"), h.question("/slow", "192.0.2.77"))
	}
	w := httptest.NewRecorder()
	h.b.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text := w.Body.String()
	for _, want := range []string{
		`penstock_requests_total{outcome="allowed",policy="shop",rule="api"} 2`,
		`penstock_requests_total{outcome="denied",policy="shop",rule="api"} 1`,
		`penstock_bridge_calls_total{result="answered"} 3`,
		`penstock_bridge_call_items_count 3`,
		`penstock_bridge_answers_total{status="ok"} 6`,
		`penstock_policy_info{policy="shop",version="` + h.b.policy.Current().ID + `"} 1`,
		`penstock_check_duration_seconds_count 3`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("/metrics does not say %s", want)
		}
	}
	if strings.Contains(text, "192.0.2.77") {
		t.Error("/metrics names a client")
	}
}

// TestWaiting: requests are answered when they are admitted, in the order of arrival. A request
// waits only if it must, and waiting requests do not count towards CallsMax.
func TestWaiting(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		ask := h.question("/slow", "192.0.2.1")
		wait := ask
		wait.Kind = wire.KindWait
		if a := h.ask(wait, wait); a[0].Status != wire.StatusInvalid || a[1].Status != wire.StatusInvalid {
			t.Error("one that waits holds others back", a)
		}
		start := time.Now()
		if a := h.ask(wait)[0]; a.Results[0].Denied || time.Since(start) > 0 {
			t.Error("nobody waits, and there is room:", a)
		}
		if a := h.ask(ask)[0]; !a.Results[0].Denied || a.Results[0].Wait != 100*counter.Millisecond {
			t.Error(a)
		}
		var said [4]string
		for n := range said {
			go func() {
				a := h.ask(wait)[0]
				said[n] = fmt.Sprint(time.Since(start), " ", a.Results[0].Denied)
			}()
			synctest.Wait()
		}
		if n := h.b.under.Load(); n != 0 {
			t.Errorf("%d calls under way", n)
		}
		time.Sleep(100 * time.Millisecond)
		if a := h.ask(ask)[0]; !a.Results[0].Denied || a.Results[0].Wait == 0 {
			t.Errorf("who asks goes ahead of those who wait: %+v", a)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if want := [4]string{"100ms false", "200ms false", "300ms false", "0s true"}; said != want {
			t.Errorf("got %q, want %q", said, want)
		}
	})
}

// TestWaitsThatEnd: a caller that leaves frees its place, and a stopping bridge ends all
// waits.
func TestWaitsThatEnd(t *testing.T) {
	runInBubble(t, func(h *testBridge) {
		wait := h.question("/slow", "192.0.2.1")
		wait.Kind = wire.KindWait
		h.ask(wait)
		ctx, leave := context.WithCancel(context.Background())
		gone := make(chan int, 1)
		go func() {
			r := httptest.NewRequest("POST", "/v1/check", bytes.NewReader(h.call(wait))).WithContext(ctx)
			r.Header.Set("Content-Type", wire.ContentType)
			w := httptest.NewRecorder()
			h.b.Handler().ServeHTTP(w, r)
			gone <- w.Body.Len()
		}()
		synctest.Wait()
		if h.b.lines.Waiting() != 1 {
			t.Fatal("nobody waits")
		}
		leave()
		if n := <-gone; n != 0 || h.b.lines.Waiting() != 0 {
			t.Errorf("%d bytes for nobody, %d wait", n, h.b.lines.Waiting())
		}
		done := make(chan []wire.Answer, 1)
		go func() { done <- h.ask(wait) }()
		synctest.Wait()
		h.b.Dismiss()
		if a := (<-done)[0]; a.Status != wire.StatusUnavailable {
			t.Errorf("%+v", a)
		}
	})
}

// TestPoliciesThatAFrontCannotCarryOut: a policy is rejected if a part of it would have no effect
// in a front.
func TestPoliciesThatAFrontCannotCarryOut(t *testing.T) {
	for text, fronts := range map[string][]lint.Front{
		"rules: [{name: a, per: ['attr:http.vars.plan'], limit: 1/1s}]":          nil,
		"rules: [{name: a, limit: 1/1s, refund_on: {status: 5xx}}]":              {lint.FrontRLS},
		"identify: [{attr: http.auth.user.id}]\nrules: [{name: a, limit: 1/1s}]": nil,
	} {
		d, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		store, err := memstore.New(memstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := New(Options{Policy: d, Store: store, Fronts: fronts})
		if err == nil {
			_ = b.Close()
			t.Errorf("%s: accepted", text)
		} else if !strings.Contains(err.Error(), "policy.yaml:") {
			t.Errorf("%s: %v", text, err)
		}
	}
}
