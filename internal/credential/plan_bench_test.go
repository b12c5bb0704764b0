// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/benchpair"
	"github.com/penstock/penstock/internal/test/racescale"
)

// request is a request in the form that a front provides. Only the request's credential varies.
type request struct{ authorization, key, cookies string }

func (r *request) Path() string        { return "/api" }
func (r *request) Method() string      { return "GET" }
func (r *request) Host() string        { return "example.com" }
func (r *request) Query() string       { return "" }
func (r *request) Peer() netip.Addr    { return netip.AddrFrom4([4]byte{198, 51, 100, 77}) }
func (r *request) Remote() netip.Addr  { return r.Peer() }
func (r *request) Now() counter.Micros { return counter.Micros(testNow.UnixMicro()) }

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

// asked is a policy with the requests for which the benchmark makes plans in turn.
type asked struct {
	name     string
	method   policy.Identify
	requests []request
	kind     string // the kind of identity that is found; after a bad credential, the address is used
}

var manyTokens, manyKeys = racescale.Fewer(10_000), racescale.Fewer(100_000)

// waysOfAsking returns the ways to identify a client, beginning with the baseline. The verifiers
// are real and use the machine's clock.
func waysOfAsking(t testing.TB) []asked {
	const pad = 435 // makes tokens of 700 bytes
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
		held[sha256.Sum256([]byte(known[i].key))] = &Key{Identity: policy.Identity{Kind: "api_key", ID: fmt.Sprint(i), APIKey: fmt.Sprint(i)}}
	}
	list.keys.Store(&keyTable{byHash: held})
	keys, err := NewKeys(KeysOptions{Source: list})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = keys.Close() }) // never fails
	byToken, byKey := policy.Identify{Kind: policy.IdentifyJWT, Verifier: jwt}, policy.Identify{Kind: policy.IdentifyAPIKey, Verifier: keys}
	cookie := policy.Identify{Kind: policy.IdentifyCookie, Name: "session", Unverified: true}
	return []asked{
		{"ip", policy.Identify{}, make([]request, 1), "ip"},
		{"attr", policy.Identify{Kind: policy.IdentifyAttr, Name: "user"}, make([]request, 1), "attr.user"},
		{"cookie", cookie, []request{{cookies: "theme=dark; session=0123456789abcdef0123456789abcdef"}}, "cookie.session"},
		{"jwt", byToken, tokens[:1], "user"},
		{"ip/tokens=10000", policy.Identify{}, tokens, "ip"},
		{"jwt/tokens=10000", byToken, tokens, "user"},
		{"jwt/forged", byToken, forged[:1], "ip"},
		{"jwt/forged/tokens=10000", byToken, forged, "ip"},
		{"api_key", byKey, known[:1], "api_key"},
		{"api_key/keys=100000", byKey, known, "api_key"},
		{"api_key/unknown", byKey, unknown, "ip"},
	}
}

// asked.planner returns a function that plans the next request of its policy: it identifies the
// client, matches one rule and makes its check. asked.planner copies the token first, so that the
// token is in the processor's cache, as it is in a front that has just read it from the network.
func (w *asked) planner(t testing.TB) (plan func()) {
	limit, err := counter.ParseLimit("1000/1m")
	if err != nil {
		t.Fatal(err)
	}
	methods := []policy.Identify{w.method}
	if w.method.Kind != policy.IdentifyIP {
		methods = append(methods, policy.Identify{})
	}
	rs, err := core.Compile(policy.Policy{Identify: methods, Rules: []policy.Rule{{Name: "r", Limits: []counter.Limit{limit}}}})
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
		plan() // the second request of a remembered client
	}
	return plan
}

// TestPlansAllocateNothing: no way to identify a client allocates: remembered tokens, good or bad,
// and known or unknown keys.
func TestPlansAllocateNothing(t *testing.T) {
	for _, w := range waysOfAsking(t) {
		if n := testing.AllocsPerRun(racescale.Fewer(100), w.planner(t)); n != 0 {
			t.Errorf("%s: %v allocations", w.name, n)
		}
	}
}

// BenchmarkPlan measures planning a request for each way to identify its client. Tokens have 700
// bytes. The cost of a way is its difference from the baseline. For requests with different tokens,
// it is the difference from the same requests identified by address.
func BenchmarkPlan(b *testing.B) {
	var ways []benchpair.Way
	for _, w := range waysOfAsking(b) {
		ways = append(ways, benchpair.Way{Name: w.name, Call: w.planner(b)})
	}
	benchpair.Measure(b, ways)
}
