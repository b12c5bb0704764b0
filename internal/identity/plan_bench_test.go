// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/inturns"
	"github.com/penstock/penstock/internal/underrace"
)

// request is one as a front has read it: all but its credential is always the same.
type request struct{ authorization, key, cookies string }

func (r *request) Path() string       { return "/api" }
func (r *request) Method() string     { return "GET" }
func (r *request) Host() string       { return "example.com" }
func (r *request) Query() string      { return "" }
func (r *request) Peer() netip.Addr   { return netip.AddrFrom4([4]byte{198, 51, 100, 77}) }
func (r *request) Remote() netip.Addr { return r.Peer() }
func (r *request) Now() core.Micros   { return core.Micros(testNow.UnixMicro()) }

func (r *request) Attr(string) (string, bool) { return "u_42", true }

func (r *request) Header(name string) (value string, ok bool) {
	switch name {
	case "Authorization":
		value = r.authorization
	case "X-Api-Key":
		value = r.key
	case "Cookie":
		value = r.cookies
	}
	return value, value != ""
}

// asked is a policy and the requests that it is asked about in turn.
type asked struct {
	name     string
	method   core.Identify
	requests []request
	kind     string // of whom it finds: where a credential is bad, the address comes next
}

var manyTokens, manyKeys = underrace.Fewer(10_000), underrace.Fewer(100_000)

// waysOfAsking are the ways of finding out who a request is from, the plain one first. The verifiers are real ones, with
// the clock of the machine.
func waysOfAsking(t testing.TB) []asked {
	const pad = 435 // to 700 bytes
	jwt := openTest(t, JWTOptions{Secret: testSecret, Now: time.Now})
	bearing := func(token string) request { return request{authorization: "Bearer " + token} }
	claims := `{"sub":"u_%d","exp":` + fmt.Sprint(time.Now().Add(time.Hour).Unix()) + `,"scope":"` + strings.Repeat("r", pad) + `"}`
	tokens, forged := make([]request, manyTokens), make([]request, manyTokens)
	for i := range tokens {
		tokens[i] = bearing(theIssuer.token(t, `{"alg":"HS256"}`, fmt.Sprintf(claims, i), "secret"))
		forged[i] = bearing(theIssuer.token(t, `{"alg":"HS256"}`, fmt.Sprintf(claims, i), "hmac:empty"))
	}
	if n := len(tokens[0].authorization) - len("Bearer "); n < 695 || n > 705 {
		t.Fatalf("tokens have %d bytes", n)
	}
	known, unknown := make([]request, manyKeys), make([]request, manyKeys)
	list, held := &keyList{}, make(map[[32]byte]*Key, manyKeys)
	for i := range known {
		known[i].key, unknown[i].key = fmt.Sprintf("pk_%040d", i), fmt.Sprintf("pk_none%036d", i)
		held[sha256.Sum256([]byte(known[i].key))] = &Key{Identity: core.Identity{Kind: "api_key", ID: fmt.Sprint(i), APIKey: fmt.Sprint(i)}}
	}
	list.keys.Store(&held)
	keys, err := NewKeys(KeysOptions{Source: list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keys.Close() }) // never fails
	byToken, byKey := core.Identify{Kind: core.IdentifyJWT, Verifier: jwt}, core.Identify{Kind: core.IdentifyAPIKey, Verifier: keys}
	cookie := core.Identify{Kind: core.IdentifyCookie, Name: "session", Unverified: true}
	return []asked{
		{"ip", core.Identify{}, make([]request, 1), "ip"},
		{"attr", core.Identify{Kind: core.IdentifyAttr, Name: "user"}, make([]request, 1), "attr.user"},
		{"cookie", cookie, []request{{cookies: "theme=dark; session=0123456789abcdef0123456789abcdef"}}, "cookie.session"},
		{"jwt", byToken, tokens[:1], "user"},
		{"ip/tokens=10000", core.Identify{}, tokens, "ip"},
		{"jwt/tokens=10000", byToken, tokens, "user"},
		{"jwt/forged", byToken, forged[:1], "ip"},
		{"jwt/forged/tokens=10000", byToken, forged, "ip"},
		{"api_key", byKey, known[:1], "api_key"},
		{"api_key/keys=100000", byKey, known, "api_key"},
		{"api_key/unknown", byKey, unknown, "ip"},
	}
}

// planner returns what plans the next request of its policy: it finds the client, matches one rule and makes its check.
// The token is copied before, for a front has just read it off the network: it is in the processor's cache.
func (w *asked) planner(t testing.TB) (plan func()) {
	limit, err := core.ParseLimit("1000/1m")
	if err != nil {
		t.Fatal(err)
	}
	methods := []core.Identify{w.method}
	if w.method.Kind != core.IdentifyIP {
		methods = append(methods, core.Identify{})
	}
	rs, err := core.Compile(core.Policy{Identify: methods, Rules: []core.Rule{{Name: "r", Limits: []core.Limit{limit}}}})
	if err != nil {
		t.Fatal(err)
	}
	p, i := new(core.Plan), 0
	var read []byte
	var r request
	plan = func() {
		r = w.requests[i]
		read = append(read[:0], r.authorization...)
		r.authorization = unsafe.String(unsafe.SliceData(read), len(read))
		p.Reset()
		p.Add(rs, &r)
		if p.Identity().Kind != w.kind {
			t.Fatalf("%s: found %+v", w.name, p.Identity())
		}
		if i++; i == len(w.requests) {
			i = 0
		}
	}
	for range w.requests {
		plan() // who is remembered is met for the second time
	}
	return plan
}

// TestPlansAllocateNothing holds that a client whose token is remembered, be it good or bad, and one with a key, known or
// not, is found without allocating.
func TestPlansAllocateNothing(t *testing.T) {
	for _, w := range waysOfAsking(t) {
		if n := testing.AllocsPerRun(100, w.planner(t)); n != 0 {
			t.Errorf("%s: %v allocations", w.name, n)
		}
	}
}

// BenchmarkPlan measures planning a request whose client is found in each of these ways, in turns; tokens have 700 bytes.
// What a way costs is
// what it takes beyond the first; where each request brings another token, beyond the same requests found by address.
func BenchmarkPlan(b *testing.B) {
	var ways []inturns.Way
	for _, w := range waysOfAsking(b) {
		ways = append(ways, inturns.Way{Name: w.name, Call: w.planner(b)})
	}
	inturns.Measure(b, ways)
}
