// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"bytes"
	"crypto/elliptic"
	"encoding/base64"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	keys "github.com/penstock/penstock/internal/test/signer"
)

// garbageLimit is the limit of a client without a valid token.
const garbageLimit = 3

// garbagePolicy identifies users by their token, and other clients by their address. URL is
// replaced by the URL of the key set.
const garbagePolicy = `name: shop
identify:
  - jwt: {jwks_url: "URL", refresh: 1s, tier_claim: plan}
  - ip: {}
rules: [{name: all, limit: 3/31d fixed_window, tiers: {gold: 1000000/31d fixed_window}}]
`

// garbageRLS configures Envoy's own filter as the documentation recommends, but with a longer
// timeout, because the flood runs on the same machine.
var garbageRLS = strings.Replace(builtInFilter, "timeout: 5s", "timeout: 5s, failure_mode_deny: true, status_on_error: {code: ServiceUnavailable}", 1)

// tokenDescriptor is a route. Its descriptor contains the client's address and the token.
const tokenDescriptor = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [{actions: [
  {remote_address: {}}, {request_headers: {header_name: authorization, descriptor_key: authorization, skip_if_absent: true}}]}]}},`

// servesKeysOnce starts a server that answers the first request for the key set. Later requests get
// no answer.
func servesKeysOnce(t *testing.T, keys ...*signer) (url string) {
	t.Helper()
	var all []string
	for _, k := range keys {
		all = append(all, k.JWK)
	}
	var asked atomic.Int64
	ended := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) > 1 {
			select {
			case <-ended:
			case <-r.Context().Done():
			}
			return
		}
		_, _ = io.WriteString(w, `{"keys":[`+strings.Join(all, ",")+`]}`)
	}))
	t.Cleanup(func() { close(ended); server.Close() })
	return server.URL + "/keys"
}

func newP384(t *testing.T, name string) *signer {
	t.Helper()
	return &signer{keys.EC(t, name, elliptic.P384()), jwt.SigningMethodES384}
}

func newRSA4096(t *testing.T, name string) *signer {
	t.Helper()
	return &signer{keys.RSA(t, name, 4096, ""), jwt.SigningMethodRS512}
}

// forgery is a kind of tokens with invalid signatures.
type forgery struct {
	name      string
	algorithm string
	kid       string
	signature int // bytes
	claims    int // extra bytes in the claims
	header    int // extra bytes in the header
}

// forgeries holds the tokens that are most expensive to check. Tokens of the last kind are not
// verified, so they are only long.
var forgeries = []forgery{
	{name: "ES384", algorithm: "ES384", kid: "ec", signature: 96},
	{name: "RS512 by 4096 bits", algorithm: "RS512", kid: "rsa", signature: 512},
	{name: "ES384 of 8 KB", algorithm: "ES384", kid: "ec", signature: 96, claims: 5_800},
	{name: "ES384 with a header of 7 KB", algorithm: "ES384", kid: "ec", signature: 96, header: 5_500},
	{name: "ES384 by unknown keys", algorithm: "ES384", kid: "RANDOM", signature: 96},
	{name: "ES512, which is not verified", algorithm: "ES512", kid: "ec", signature: 132},
}

// token returns a token with a random signature.
func (f *forgery) token(random *mathrand.ChaCha8) string {
	text := base64.RawURLEncoding.EncodeToString
	signature := make([]byte, f.signature)
	_, _ = random.Read(signature)
	signature[0] &= 0x7f // so that the numbers are below the order of the curve and below the modulus
	kid := f.kid
	if kid == "RANDOM" {
		kid = fmt.Sprint(random.Uint64())
	}
	pad := func(n int) string { return strings.Repeat("x", n) }
	return text(fmt.Appendf(nil, `{"alg":%q,"kid":%q,"x":%q}`, f.algorithm, kid, pad(f.header))) + "." +
		text(fmt.Appendf(nil, `{"sub":"ann","plan":"gold","exp":9999999999,"x":%q}`, pad(f.claims))) + "." + text(signature)
}

// attackedFront is a front under attack.
type attackedFront struct {
	name, address string
	keys          []*signer     // the signers that the front trusts
	scrape        func() string // returns the metrics
	kinds         int           // the number of kinds of forgeries that are tried
	part          byte          // the third number in the addresses of the last flood
}

// attackedFront.tokens returns the number of tokens that the metrics count under the given state.
func (a *attackedFront) tokens(t *testing.T, state string) (n int) {
	t.Helper()
	series := `penstock_credentials_total{method="jwt",policy="shop",state="` + state + `"} `
	for line := range strings.Lines(a.scrape()) {
		if rest, ok := strings.CutPrefix(line, series); ok {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// visit records the answers to a client that sends requests at a steady pace.
type visit struct {
	took     []time.Duration
	statuses map[int]int
}

func (v *visit) at(part float64) time.Duration {
	slices.Sort(v.took)
	if len(v.took) == 0 {
		return 0
	}
	return v.took[min(len(v.took)-1, int(part*float64(len(v.took))))]
}

func (v *visit) String() string {
	return fmt.Sprintf("%v, p50 %v p99 %v", v.statuses, v.at(0.5).Round(10*time.Microsecond), v.at(0.99).Round(10*time.Microsecond))
}

// caller is a connection from a given loopback address.
type caller struct {
	connection net.Conn
	reader     *bufio.Reader
}

func dialFrom(from, to string) (*caller, error) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: patience}
	connection, err := dialer.Dial("tcp", to)
	if err != nil {
		return nil, err
	}
	return &caller{connection, bufio.NewReader(connection)}, nil
}

// statusUncounted is the status that [caller.ask] returns for a 200 without limit headers, which
// means that on_error has decided.
const statusUncounted = -1

// caller.ask sends a request with the given token, or without a token if it is "", and returns the
// status of the answer. With the rate limit service, the answer is 429 even if the service could
// not decide the request. In this case, the method returns 503.
func (l *caller) ask(token string) (status int, err error) {
	text := "GET /a HTTP/1.1\r\nHost: shop\r\n"
	if token != "" {
		text += "Authorization: Bearer " + token + "\r\n"
	}
	_ = l.connection.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(l.connection, text+"\r\n"); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(l.reader, nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if response.StatusCode == http.StatusTooManyRequests && bytes.Contains(body, []byte("#temporary-reduced-capacity")) {
		return http.StatusServiceUnavailable, err
	}
	if response.StatusCode == http.StatusOK && response.Header.Get("X-RateLimit-Limit") == "" {
		return statusUncounted, err
	}
	return response.StatusCode, err
}

// attackedFront.visits sends requests from an address at a steady pace until the channel named done
// is closed. It calls next() for the token of each request.
func (a *attackedFront) visits(t *testing.T, from string, every time.Duration, done <-chan struct{}, next func() string) *visit {
	v := &visit{statuses: map[int]int{}}
	l, err := dialFrom(from, a.address)
	if err != nil {
		t.Error(err)
		return v
	}
	defer l.connection.Close()
	for tick := time.Tick(every); ; {
		select {
		case <-done:
			return v
		case <-tick:
		}
		token := next()
		start := time.Now()
		status, err := l.ask(token)
		if err != nil {
			t.Errorf("%s from %s: %v", a.name, from, err)
			return v
		}
		v.took = append(v.took, time.Since(start))
		v.statuses[status]++
	}
}

// floodResult is the result of a flood.
type floodResult struct {
	front, name                  string
	attackers, requests          int
	statuses                     map[int]int   // the number of requests of the flood, by status
	lasting, took                time.Duration // the planned duration of the flood, and the actual one
	remembered, fresh, anonymous *visit
	verified, unchecked          int // tokens found invalid, and tokens not checked
}

const (
	garbageConnections = 200
	// garbagePace is the number of requests per second. Two processors cannot verify so many
	// tokens, but can deny far more requests.
	garbagePace = 3_000
	// kindPace is the number of requests per second with tokens of one kind. It is more than a node
	// verifies for one address.
	kindPace = 600
)

// attackedFront.flood sends requests over many connections and from several addresses, each with a
// different token. Meanwhile three other clients send requests: one with a token that the front
// already knows, one with a new token each time, and one without a token.
func (a *attackedFront) flood(t *testing.T, name string, attackers, pace int, lasting time.Duration, token func(*mathrand.ChaCha8) string) *floodResult {
	t.Helper()
	a.part++
	f := &floodResult{front: a.name, name: name, attackers: attackers, lasting: lasting, statuses: map[int]int{},
		requests: int(time.Duration(pace) * lasting / time.Second), verified: -a.tokens(t, "invalid"), unchecked: -a.tokens(t, "unchecked")}
	var clients sync.WaitGroup
	done := make(chan struct{})
	fresh, known := a.goodTokens(t, int(lasting/freshEvery)+1), a.keys[0].token(t, "ann")
	clients.Go(func() {
		f.remembered = a.visits(t, a.newAddress(2), 5*time.Millisecond, done, func() string { return known })
	})
	clients.Go(func() { f.fresh = a.visits(t, a.newAddress(3), freshEvery, done, fresh) })
	clients.Go(func() {
		f.anonymous = a.visits(t, a.newAddress(4), 20*time.Millisecond, done, func() string { return "" })
	})
	start := time.Now()
	a.attack(t, f, pace, token)
	f.took = time.Since(start)
	close(done)
	clients.Wait()
	f.verified, f.unchecked = f.verified+a.tokens(t, "invalid"), f.unchecked+a.tokens(t, "unchecked")
	return f
}

// freshEvery is the pace of the client with a new token each time. The tokens of one address may
// take at most 100 ms of verification per second. On a busy machine, more time is measured for a
// token than its verification really takes.
const freshEvery = 40 * time.Millisecond

// newAddress returns an address that no other client uses.
func (a *attackedFront) newAddress(client int) string {
	return fmt.Sprintf("127.0.%d.%d", a.part, client)
}

// attackedFront.attack sends the requests of a flood at a steady pace.
func (a *attackedFront) attack(t *testing.T, f *floodResult, pace int, token func(*mathrand.ChaCha8) string) {
	every := garbageConnections * time.Second / time.Duration(pace)
	var left atomic.Int64
	left.Store(int64(f.requests))
	var group sync.WaitGroup
	var mu sync.Mutex
	start := time.Now()
	for i := range garbageConnections {
		random := mathrand.NewChaCha8([32]byte{byte(i), a.part})
		group.Go(func() {
			l, err := dialFrom(a.newAddress(10+i%f.attackers), a.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.connection.Close()
			mine := map[int]int{}
			for next := start.Add(time.Duration(i) * every / garbageConnections); left.Add(-1) >= 0; next = next.Add(every) {
				if ahead := time.Until(next); ahead > 0 {
					<-time.After(ahead)
				} else {
					next = time.Now() // missed requests are not made up for
				}
				status, err := l.ask(token(random))
				if err != nil {
					t.Errorf("%s: %v", a.name, err)
					break
				}
				mine[status]++
			}
			mu.Lock()
			defer mu.Unlock()
			for status, n := range mine {
				f.statuses[status] += n
			}
		})
	}
	group.Wait()
}

// goodTokens returns a function that returns the valid tokens of n users, one after the other.
func (a *attackedFront) goodTokens(t *testing.T, n int) func() string {
	all := make([]string, n)
	for i := range all {
		all[i] = a.keys[0].token(t, fmt.Sprint("user-", i))
	}
	at := -1
	return func() string {
		at++
		return all[at%n]
	}
}

// The machine is too busy for some assertions if the median wait of the client with a known token
// exceeds starvedWait, or if a flood takes more than starvedTimes times as long as planned. On an
// idle machine, these values are 5 ms and 1.2. On a machine that is too busy, the test does not
// assert how many requests are denied because a token could not be verified in time.
const (
	starvedWait  = 100 * time.Millisecond
	starvedTimes = 3
)

// floodResult.check checks that the limit was enforced for the attackers and for the client without
// a token, and that clients with valid tokens were served.
func (f *floodResult) check(t *testing.T) {
	t.Helper()
	t.Logf("%s, %s: %d requests in %v: %v, %d tokens verified in vain and %d not verified; known token: %v; fresh tokens: %v; no token: %v", f.front,
		f.name, f.requests, f.took.Round(time.Millisecond), f.statuses, f.verified, f.unchecked, f.remembered, f.fresh, f.anonymous)
	// A request whose token cannot be verified in time is answered with 503 and not counted. So an
	// address may get less than its limit.
	got, most := f.statuses[200], garbageLimit*f.attackers
	if got > most || got == 0 || got+f.statuses[429]+f.statuses[503] != f.requests {
		t.Errorf("%s: the flood got %v, want at most %d admitted and the rest denied", f.name, f.statuses, most)
	}
	starved := f.remembered.at(0.5) > starvedWait || f.took > starvedTimes*f.lasting
	if got, late := f.anonymous.statuses[200], f.anonymous.statuses[503]; got > garbageLimit || f.anonymous.statuses[429]+got+late != len(f.anonymous.took) ||
		late > 0 && !starved {
		t.Errorf("%s: a client without a token got %v, want %d admitted", f.name, f.anonymous.statuses, garbageLimit)
	}
	for who, v := range map[string]*visit{"a known token": f.remembered, "fresh tokens": f.fresh} {
		// On a busy machine, a token may wait for a processor for too long. The request is then
		// denied with 503. It is never counted by address, and never admitted without being
		// counted.
		served, late := v.statuses[200], v.statuses[503]
		if served == 0 || served+late != len(v.took) || late > max(2, len(v.took)/10) && !starved {
			t.Errorf("%s: a client with %s got %v, want all admitted", f.name, who, v.statuses)
		}
	}
}

// TestGarbageTokens tests that a client which sends tokens with invalid signatures is counted
// exactly, by its address. Other clients are counted as before, and are served about as fast as
// during a flood without tokens. The server of the key set no longer answers, which delays nothing.
func TestGarbageTokens(t *testing.T) {
	t.Parallel()
	keys := []*signer{newP384(t, "ec"), newRSA4096(t, "rsa")}
	lasting := examOr(time.Second, time.Second/2)
	for _, start := range []func(*testing.T, []*signer) *attackedFront{attackedFilter, attackedCaddy, attackedService} {
		a := start(t, keys)
		none := a.flood(t, "no tokens", 1, garbagePace, lasting, func(*mathrand.ChaCha8) string { return "" })
		none.check(t)
		for i := range forgeries[:a.kinds] {
			a.flood(t, forgeries[i].name, 1, examOr(garbagePace, kindPace), time.Second/2, forgeries[i].token).check(t)
		}
		one := a.flood(t, "ES384 from one address", 1, garbagePace, lasting, forgeries[0].token)
		one.check(t)
		if one.unchecked < one.requests/2 {
			t.Errorf("%s: %d of %d tokens were verified for one address", a.name, one.verified, one.requests)
		}
		if !waitedAlike(t, none, one) {
			// Other work on the machine may have slowed down only one of the two floods.
			again := a.flood(t, "no tokens", 1, garbagePace, lasting, func(*mathrand.ChaCha8) string { return "" })
			if !waitedAlike(t, again, a.flood(t, "ES384 from one address", 1, garbagePace, lasting, forgeries[0].token)) {
				t.Errorf("%s: clients with valid tokens wait longer beside garbage tokens", a.name)
			}
		}
		a.flood(t, "ES384 from a hundred addresses", 100, garbagePace, lasting, forgeries[0].token).check(t)
		a.floodSigned(t)
	}
}

// waitedAlike reports whether clients with valid tokens waited about as long during a flood of
// garbage tokens as during a flood without tokens. Their median wait may be twice as long plus 50
// ms.
func waitedAlike(t *testing.T, none, garbage *floodResult) bool {
	t.Helper()
	all := func(f *floodResult) *visit { return &visit{took: slices.Concat(f.remembered.took, f.fresh.took)} }
	before, beside := all(none), all(garbage)
	t.Logf("%s: p50 %v without tokens and %v with garbage, p99 %v and %v", none.front, before.at(0.5), beside.at(0.5), before.at(0.99), beside.at(0.99))
	return beside.at(0.5) <= 2*before.at(0.5)+50*time.Millisecond
}

// floodSigned sends many different valid tokens of one client. The client is counted by its name,
// or by its address if a token could not be verified in time.
func (a *attackedFront) floodSigned(t *testing.T) {
	t.Helper()
	const lasting = time.Second / 4
	mine := make([]string, 2*garbagePace*lasting/time.Second)
	for i := range mine {
		token := jwt.NewWithClaims(a.keys[0].method, jwt.MapClaims{"sub": "mallory", "jti": i, "exp": time.Now().Add(time.Hour).Unix()})
		token.Header["kid"] = a.keys[0].Name
		var err error
		if mine[i], err = token.SignedString(a.keys[0].Signer); err != nil {
			t.Fatal(err)
		}
	}
	var at atomic.Int64
	f := a.flood(t, "ES384 signed for one client", 1, garbagePace, lasting, func(*mathrand.ChaCha8) string { return mine[at.Add(1)-1] })
	if got := f.statuses[200]; got > garbageLimit && got <= 2*garbageLimit {
		f.statuses[200], f.statuses[429] = garbageLimit, f.statuses[429]+got-garbageLimit
	}
	f.check(t)
}

// TestManyNewTokensAtOnce tests that if many clients send new tokens at the same time, all of them
// are identified. A token waits at most a second for a processor, so no other test runs in parallel
// with this one.
func TestManyNewTokensAtOnce(t *testing.T) {
	const clients = 100
	a := attackedCaddy(t, []*signer{newP384(t, "ec")})
	lines, tokens := make([]*caller, clients), make([]string, clients)
	for i := range clients {
		var err error
		if lines[i], err = dialFrom("127.0.0.1", a.address); err != nil {
			t.Fatal(err)
		}
		defer lines[i].connection.Close()
		tokens[i] = a.keys[0].token(t, fmt.Sprint("user-", i))
	}
	var group sync.WaitGroup
	var known atomic.Int64
	for i := range clients {
		group.Go(func() {
			if status, err := lines[i].ask(tokens[i]); err == nil && status == http.StatusOK {
				known.Add(1)
			}
		})
	}
	group.Wait()
	if known.Load() != clients || a.tokens(t, "valid") != clients {
		t.Errorf("%d of %d were served, %d tokens were valid and %d unchecked", known.Load(), clients, a.tokens(t, "valid"), a.tokens(t, "unchecked"))
	}
}
