// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/test/eventually"
)

// testGate is a gate whose tokens are a set, and whose clock stands still.
type testGate struct {
	*gate
	at     time.Time
	asked  atomic.Int64 // the checks of tokens
	hold   chan struct{}
	mu     sync.Mutex
	tokens map[string]bool
}

func newTested() *testGate {
	g := &testGate{at: time.Now(), tokens: map[string]bool{"valid": true}}
	g.gate = newGate(func(ctx context.Context, _, authorization string) (requester, *refusal) {
		g.asked.Add(1)
		if g.hold != nil {
			<-g.hold
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		if !g.tokens[authorization] {
			return requester{}, &refusal{http.StatusUnauthorized, "no"}
		}
		return requester{}, nil
	})
	g.now = func() time.Time { return g.at }
	return g
}

// statusOf returns the status of the refusal of a request, or 200.
func (g *testGate) statusOf(from, authorization string) int {
	r := httptest.NewRequest(http.MethodGet, "/v1/clients", nil)
	r.RemoteAddr = from + ":1234"
	r.Header.Set("Authorization", authorization)
	_, leave, no := g.enter(r)
	if no != nil {
		return no.status
	}
	leave()
	return http.StatusOK
}

// TestAnAddressHasABudgetOfInvalidTokens tests that an address that has used up its budget causes
// no more queries, and that neither other addresses nor known tokens are affected. It also tests
// that a revoked token is forgotten.
func TestAnAddressHasABudgetOfInvalidTokens(t *testing.T) {
	t.Parallel()
	g := newTested()
	if status := g.statusOf("192.0.2.1", "valid"); status != 200 {
		t.Fatal(status)
	}
	for n := range 100 {
		want, before := 401, g.asked.Load()
		if n >= failuresMax {
			want = 429
		}
		if status := g.statusOf("192.0.2.1", "made up"); status != want || g.asked.Load()-before > 1 || want == 429 && g.asked.Load() != before {
			t.Fatalf("token %d: status %d, want %d", n, status, want)
		}
	}
	if status := g.statusOf("192.0.2.1", "valid"); status != 200 {
		t.Errorf("a known token from the same address: %d", status)
	}
	if status := g.statusOf("192.0.2.2", "made up"); status != 401 {
		t.Errorf("another address: %d", status)
	}
	g.at = g.at.Add(failureEvery)
	if first, second := g.statusOf("192.0.2.1", "made up"), g.statusOf("192.0.2.1", "made up"); first != 401 || second != 429 {
		t.Errorf("after a while: %d %d", first, second)
	}
	g.mu.Lock()
	g.tokens["valid"] = false
	g.mu.Unlock()
	if first, second := g.statusOf("192.0.2.1", "valid"), g.statusOf("192.0.2.1", "valid"); first != 401 || second != 429 {
		t.Errorf("a revoked token: %d %d", first, second)
	}
	for n := range 2 * addressesMax {
		g.statusOf(fmt.Sprintf("10.%d.%d.1", n/256, n%256), "made up")
	}
	if len(g.origins) > addressesMax+1 {
		t.Errorf("%d addresses are remembered", len(g.origins))
	}
}

// TestATokenLeavesHalfOfTheTurns tests that the requests with one token take at most half of the
// turns, and that a turn that ends can be taken again.
func TestATokenLeavesHalfOfTheTurns(t *testing.T) {
	t.Parallel()
	g := newTested()
	other := "other"
	for g.countOf(sha256.Sum256([]byte(other))) == g.countOf(sha256.Sum256([]byte("valid"))) {
		other += "-"
	}
	g.tokens[other] = true
	r := httptest.NewRequest(http.MethodGet, "/v1/clients", nil)
	r.Header.Set("Authorization", "valid")
	for _, when := range []string{"at first", "after the requests have ended"} {
		var leaves []func()
		for {
			_, leave, no := g.enter(r)
			if no != nil {
				break
			}
			leaves = append(leaves, leave)
		}
		if len(leaves) != requestsMax/2 {
			t.Errorf("%s, one token takes %d turns of %d", when, len(leaves), requestsMax)
		}
		if status := g.statusOf("192.0.2.1", other); status != 200 {
			t.Errorf("%s, another token: %d", when, status)
		}
		for _, leave := range leaves {
			leave()
		}
		if len(g.turns) != 0 {
			t.Errorf("%s, %d turns are still taken", when, len(g.turns))
		}
	}
}

// TestStrangersWaitApart tests that callers whose tokens are being checked take no turns, that one
// address has a part of the places, and that a known token enters meanwhile.
func TestStrangersWaitApart(t *testing.T) {
	t.Parallel()
	g := newTested()
	if status := g.statusOf("192.0.2.1", "valid"); status != 200 {
		t.Fatal(status)
	}
	g.hold = make(chan struct{})
	var calls sync.WaitGroup
	var refused atomic.Int64
	for range waitersEach + 10 {
		calls.Go(func() {
			if g.statusOf("192.0.2.1", "made up") == 503 {
				refused.Add(1)
			}
		})
	}
	eventually.Until(t, patience, "the places of the address are used", func() bool { return refused.Load() >= 10 && g.asked.Load() == 1+checksMax })
	if len(g.turns) != 0 {
		t.Errorf("%d turns are taken", len(g.turns))
	}
	leave, no := g.turn(false)
	if no != nil {
		t.Fatal(no)
	}
	leave()
	close(g.hold)
	calls.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting != 0 {
		t.Errorf("%d callers wait", g.waiting)
	}
}

// TestNodesLeaveRoomForPeople tests that nodes cannot take all turns.
func TestNodesLeaveRoomForPeople(t *testing.T) {
	t.Parallel()
	g := newTested()
	for range nodesMax {
		if _, no := g.turn(true); no != nil {
			t.Fatal(no)
		}
	}
	if _, no := g.turn(true); no == nil {
		t.Error("a node has a turn too many")
	}
	for range requestsMax - nodesMax {
		if _, no := g.turn(false); no != nil {
			t.Fatal(no)
		}
	}
	if _, no := g.turn(false); no == nil {
		t.Error("a person has a turn too many")
	}
}

// TestCallersShareALook tests that callers of /readyz, who need no token, share a look that is
// under way.
func TestCallersShareALook(t *testing.T) {
	t.Parallel()
	begun, end := make(chan struct{}), make(chan struct{})
	var count atomic.Int64
	var l looks
	look := func() {
		l.look(t.Context(), func(context.Context) Readiness {
			if count.Add(1) == 1 {
				close(begun)
			}
			<-end
			return Readiness{Ready: true}
		})
	}
	var calls sync.WaitGroup
	calls.Go(look)
	<-begun
	var waiting atomic.Int64
	for range 50 {
		calls.Go(func() { waiting.Add(1); look() })
	}
	eventually.Until(t, patience, "all callers are there", func() bool { return waiting.Load() == 50 })
	close(end)
	calls.Wait()
	if n := count.Load(); n >= 50 {
		t.Errorf("51 callers caused %d looks", n)
	}
}

// TestWhichRequestsAreOfNodes tests that people's requests do not take the turns of nodes, even if
// something is named published.
func TestWhichRequestsAreOfNodes(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/v1/batches/1":                    true,
		"/v1/policies/shop/published":      true,
		"/v1/policies/published/published": true,
		"/v1/policies/published":           false,
		"/v1/policies//published":          false,
		"/v1/policies/shop/revisions":      false,
		"/v1/tiers/published":              false,
		"/v1/clients/user/published":       false,
	} {
		if got := ofNodes(httptest.NewRequest("GET", path, nil)); got != want {
			t.Errorf("%s is of nodes: %t", path, got)
		}
	}
}

// TestNoBodyTakesUnknownFields tests that no operation ignores a field of its body, such as one
// that would set who made a change.
func TestNoBodyTakesUnknownFields(t *testing.T) {
	t.Parallel()
	document, seen := New(Options{}).OpenAPI(), 0
	for path, item := range document.Paths {
		for _, o := range []*huma.Operation{item.Put, item.Post, item.Patch} {
			if o == nil || o.RequestBody == nil || o.RequestBody.Content["application/json"] == nil {
				continue
			}
			schema := o.RequestBody.Content["application/json"].Schema
			if schema.Ref != "" {
				schema = document.Components.Schemas.SchemaFromRef(schema.Ref)
			}
			if seen++; schema.AdditionalProperties != false {
				t.Errorf("%s %s takes unknown fields", o.Method, path)
			}
			for name := range schema.Properties {
				other, errs := strings.ToUpper(name), &huma.ValidateResult{}
				huma.Validate(document.Components.Schemas, schema, huma.NewPathBuffer([]byte("body"), 4), huma.ModeWriteToServer,
					map[string]any{other: nil}, errs)
				if strings.HasPrefix(name, "$") {
					continue
				}
				if !strings.Contains(fmt.Sprint(errs.Errors), "unexpected property (body."+other) {
					t.Errorf("%s %s takes %q for %q: %v", o.Method, path, other, name, errs.Errors)
				}
			}
		}
	}
	if seen < 5 {
		t.Errorf("%d bodies were looked at", seen)
	}
}

// TestMetricsShareALook tests that /metrics, which needs no token, takes the result of a look
// instead of looking at the servers once more.
func TestMetricsShareALook(t *testing.T) {
	t.Parallel()
	a := New(Options{Ready: func(context.Context) Readiness { t.Error("looked"); return Readiness{} }})
	over := make(chan struct{})
	close(over)
	a.looks.now = &look{done: over, ready: Readiness{Invalid: 7}}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if !strings.Contains(w.Body.String(), "penstock_control_invalid_rows 7") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestALookThatPanicsIsOver tests that callers after a panic cause a look of their own, and that a
// caller who leaves does not wait for the look of another.
func TestALookThatPanicsIsOver(t *testing.T) {
	t.Parallel()
	var l looks
	func() {
		defer func() { _ = recover() }()
		l.look(t.Context(), func(context.Context) Readiness { panic("here") })
	}()
	if !l.look(t.Context(), func(context.Context) Readiness { return Readiness{Ready: true} }).Ready {
		t.Error("not ready after a panic")
	}
	l.now = &look{done: make(chan struct{})}
	gone, leave := context.WithCancel(t.Context())
	leave()
	if l.look(gone, nil).Ready {
		t.Error("ready without a look")
	}
}

// TestFailuresOfManyAddressesStopNoSocket tests that callers over a Unix socket do not share the
// budget of the addresses that are not remembered.
func TestFailuresOfManyAddressesStopNoSocket(t *testing.T) {
	t.Parallel()
	g := newTested() // its clock stands still
	fail := func(i int) *refusal {
		origin, no := g.wait(netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32))
		if no == nil {
			g.noteFailure(origin)
			g.waited(origin)
		}
		return no
	}
	for i := range addressesMax + failuresMax + 10 {
		fail(i)
	}
	if fail(1<<20) == nil {
		t.Error("an address beyond the bound is not stopped")
	}
	if _, no := g.wait(netip.Prefix{}); no != nil {
		t.Errorf("a caller over a socket: %v", no)
	}
}
