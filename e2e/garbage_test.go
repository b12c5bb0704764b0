// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/redistest"
)

// garbageLimit is the limit of clients who show no token that verifies.
const garbageLimit = 3

// garbagePolicy counts users by their token, and others by their address. URL is where the keys are.
const garbagePolicy = `name: shop
identify:
  - jwt: {jwks_url: "URL", refresh: 1s, tier_claim: plan}
  - ip: {}
rules: [{name: all, limit: 3/31d fixed_window, tiers: {gold: 1000000/31d fixed_window}}]
`

// garbageRLS is Envoy's own filter. Envoy itself lets pass what is not answered in time.
var garbageRLS = strings.Replace(builtInFilter, "timeout: 5s", "timeout: 1s", 1)

// tokenDescriptor is a route whose descriptor holds the address and the token.
const tokenDescriptor = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [{actions: [
  {remote_address: {}}, {request_headers: {header_name: authorization, descriptor_key: authorization, skip_if_absent: true}}]}]}},`

// fallsSilent publishes keys once. Whoever asks again waits.
func fallsSilent(t *testing.T, keys ...*signer) (url string) {
	t.Helper()
	var all []string
	for _, k := range keys {
		all = append(all, k.public)
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
	key, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.PublicKey.Bytes() // 4, then both coordinates
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	return &signer{name, jwt.SigningMethodES384, key, fmt.Sprintf(`{"kty":"EC","crv":"P-384","kid":%q,"x":%q,"y":%q}`,
		name, text(point[1:49]), text(point[49:]))}
}

func newRSA4096(t *testing.T, name string) *signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 4096)
	if err != nil {
		t.Fatal(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	return &signer{name, jwt.SigningMethodRS512, key, fmt.Sprintf(`{"kty":"RSA","use":"sig","kid":%q,"n":%q,"e":%q}`,
		name, text(key.N.Bytes()), text(big.NewInt(int64(key.E)).Bytes()))}
}

// forgery is a kind of token that nobody has signed.
type forgery struct {
	name      string
	algorithm string
	kid       string
	signature int // bytes
	claims    int // bytes of the claims beside what has to be there
	header    int // bytes of the header likewise
}

// forgeries are the dearest tokens that can be written. There is no more than one kind that only costs its length: it is not verified.
var forgeries = []forgery{
	{name: "ES384", algorithm: "ES384", kid: "ec", signature: 96},
	{name: "RS512 by 4096 bits", algorithm: "RS512", kid: "rsa", signature: 512},
	{name: "ES384 of 8 KB", algorithm: "ES384", kid: "ec", signature: 96, claims: 5_800},
	{name: "ES384 with a header of 7 KB", algorithm: "ES384", kid: "ec", signature: 96, header: 5_500},
	{name: "ES384 by unknown keys", algorithm: "ES384", kid: "RANDOM", signature: 96},
	{name: "ES512, which is not verified", algorithm: "ES512", kid: "ec", signature: 132},
}

// token returns a token that is like no other.
func (f *forgery) token(random *mathrand.ChaCha8) string {
	text := base64.RawURLEncoding.EncodeToString
	signature := make([]byte, f.signature)
	_, _ = random.Read(signature)
	signature[0] &= 0x7f // below the order of the curve, and the modulus
	kid := f.kid
	if kid == "RANDOM" {
		kid = fmt.Sprint(random.Uint64())
	}
	pad := func(n int) string { return strings.Repeat("x", n) }
	return text(fmt.Appendf(nil, `{"alg":%q,"kid":%q,"x":%q}`, f.algorithm, kid, pad(f.header))) + "." +
		text(fmt.Appendf(nil, `{"sub":"ann","plan":"gold","exp":9999999999,"x":%q}`, pad(f.claims))) + "." + text(signature)
}

// attacked is a front under attack.
type attacked struct {
	name, address string
	keys          []*signer     // whose tokens are good there
	scrape        func() string // the metrics
	kinds         int           // of forgeries that are tried
	part          byte          // of the addresses that were used last
}

// tokens returns how many tokens were of a state.
func (a *attacked) tokens(t *testing.T, state string) (n int) {
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

// visit is what a client got that asks at a steady pace.
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

// caller is a connection from an address of this machine.
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

// ask sends a request with a token, none if it is "", and returns the status of the response.
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
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// visits asks from an address every so often until done, with the token that next returns.
func (a *attacked) visits(t *testing.T, from string, every time.Duration, done <-chan struct{}, next func() string) *visit {
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

// flooded is what came of a flood.
type flooded struct {
	front, name                 string
	attackers, requests         int
	statuses                    map[int]int // of the flood
	took                        time.Duration
	remembered, fresh, stranger *visit
	verified, unchecked         int // tokens that were worth nothing
}

const (
	garbageConnections = 200
	garbagePace        = 3_000 // requests a second: more than two processors can verify, and much less than they can refuse
)

// flood sends requests over many connections, from so many addresses, each with a token of its own, while others ask: a client whose
// token is known, one with a token of its own for each request, and one without any.
func (a *attacked) flood(t *testing.T, name string, attackers int, lasting time.Duration, token func(*mathrand.ChaCha8) string) *flooded {
	t.Helper()
	a.part++
	f := &flooded{front: a.name, name: name, attackers: attackers, statuses: map[int]int{},
		requests: int(garbagePace * lasting / time.Second), verified: -a.tokens(t, "invalid"), unchecked: -a.tokens(t, "unchecked")}
	var clients sync.WaitGroup
	done := make(chan struct{})
	fresh, known := a.goodTokens(t, int(lasting/freshEvery)+1), a.keys[0].token(t, "ann")
	clients.Go(func() {
		f.remembered = a.visits(t, a.from(2), 5*time.Millisecond, done, func() string { return known })
	})
	clients.Go(func() { f.fresh = a.visits(t, a.from(3), freshEvery, done, fresh) })
	clients.Go(func() {
		f.stranger = a.visits(t, a.from(4), 20*time.Millisecond, done, func() string { return "" })
	})
	start := time.Now()
	a.attack(t, f, token)
	f.took = time.Since(start)
	close(done)
	clients.Wait()
	f.verified, f.unchecked = f.verified+a.tokens(t, "invalid"), f.unchecked+a.tokens(t, "unchecked")
	return f
}

// freshEvery is how often the client asks that has a token of its own for each request.
const freshEvery = 10 * time.Millisecond

// from is an address that nobody else asks from.
func (a *attacked) from(who int) string { return fmt.Sprintf("127.0.%d.%d", a.part, who) }

// attack sends the requests of a flood at a steady pace.
func (a *attacked) attack(t *testing.T, f *flooded, token func(*mathrand.ChaCha8) string) {
	const every = garbageConnections * time.Second / garbagePace
	var left atomic.Int64
	left.Store(int64(f.requests))
	var group sync.WaitGroup
	var mu sync.Mutex
	start := time.Now()
	for i := range garbageConnections {
		random := mathrand.NewChaCha8([32]byte{byte(i), a.part})
		group.Go(func() {
			l, err := dialFrom(a.from(10+i%f.attackers), a.address)
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
					next = time.Now() // what was missed is not made up for at once
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

// goodTokens returns a function that returns a good token each time, of n users by turns.
func (a *attacked) goodTokens(t *testing.T, n int) func() string {
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

// judge checks that the limit held for the attackers and for a stranger, and that everybody with a good token was served.
func (f *flooded) judge(t *testing.T) {
	t.Helper()
	t.Logf("%s, %s: %d requests in %v: %v, %d tokens looked at in vain and %d not at all; known token: %v; fresh tokens: %v; no token: %v", f.front,
		f.name, f.requests, f.took.Round(time.Millisecond), f.statuses, f.verified, f.unchecked, f.remembered, f.fresh, f.stranger)
	if got, most := f.statuses[200], garbageLimit*f.attackers; got != most || got+f.statuses[429] != f.requests {
		t.Errorf("%s: the flood got %v, want %d admitted and the rest refused", f.name, f.statuses, most)
	}
	if got := f.stranger.statuses[200]; got > garbageLimit || f.stranger.statuses[429]+got != len(f.stranger.took) {
		t.Errorf("%s: a stranger got %v, want %d admitted", f.name, f.stranger.statuses, garbageLimit)
	}
	for who, v := range map[string]*visit{"a known token": f.remembered, "fresh tokens": f.fresh} {
		// Where the machine has other work, a token may wait too long for a processor, and counts by its address then.
		if len(v.took) == 0 || v.statuses[200] < len(v.took)*9/10 || v.statuses[200]+v.statuses[429] != len(v.took) {
			t.Errorf("%s: a client with %s got %v, want all admitted", f.name, who, v.statuses)
		}
	}
}

// TestGarbageTokens: who sends tokens that nobody has signed is counted by the address, exactly; all others are counted as before, and
// are served about as fast as beside as many requests without tokens. That the issuer of the keys does not answer any more delays
// nothing.
func TestGarbageTokens(t *testing.T) {
	keys := []*signer{newP384(t, "ec"), newRSA4096(t, "rsa")}
	for _, start := range []func(*testing.T, []*signer) *attacked{attackedFilter, attackedCaddy, attackedService} {
		a := start(t, keys)
		none := a.flood(t, "no tokens", 1, 2*time.Second, func(*mathrand.ChaCha8) string { return "" })
		none.judge(t)
		for i := range forgeries[:a.kinds] {
			a.flood(t, forgeries[i].name, 1, time.Second, forgeries[i].token).judge(t)
		}
		one := a.flood(t, "ES384 from one address", 1, 2*time.Second, forgeries[0].token)
		one.judge(t)
		if one.unchecked < one.requests/2 {
			t.Errorf("%s: %d of %d tokens were verified for one address", a.name, one.verified, one.requests)
		}
		for who, both := range map[string][2]*visit{"a known token": {none.remembered, one.remembered}, "fresh tokens": {none.fresh, one.fresh}} {
			before, beside := both[0].at(0.5), both[1].at(0.5)
			t.Logf("%s, %s: p50 %v beside no tokens and %v beside garbage, p99 %v and %v", a.name, who, before, beside, both[0].at(0.99),
				both[1].at(0.99))
			if beside > before+50*time.Millisecond {
				t.Errorf("%s: a client with %s waits %v, and %v beside no tokens", a.name, who, beside, before)
			}
		}
		a.flood(t, "ES384 from a hundred addresses", 100, 2*time.Second, forgeries[0].token).judge(t)
	}
}

// TestManyNewTokensAtOnce: clients who all come at one time with tokens that nobody has seen are known, every one.
func TestManyNewTokensAtOnce(t *testing.T) {
	const clients = 300
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

func attackedFilter(t *testing.T, keys []*signer) *attacked {
	s := &site{direct: true, set: "deadline: 1s"}
	startEnvoy(t, wasm(t), nil, s)
	b := s.startBridge(t, strings.ReplaceAll(garbagePolicy, "URL", fallsSilent(t, keys...)), "--redis", redistest.Start(t).URL(), "--redis-timeout", "1s")
	return &attacked{name: "Envoy", kinds: len(forgeries), address: s.address, keys: keys, scrape: b.scrape}
}

func attackedService(t *testing.T, keys []*signer) *attacked {
	s := &site{filter: garbageRLS, routes: tokenDescriptor}
	startEnvoy(t, wasm(t), nil, s)
	b := newBridge(t, strings.ReplaceAll(garbagePolicy, "URL", fallsSilent(t, keys...)), "--rls-listen", "unix:"+s.grpc, "--token", bridgeToken,
		"--redis", redistest.Start(t).URL(), "--redis-timeout", "1s")
	b.listen = s.bridge
	b.run(t)
	await.Until(t, patience, "Envoy has reached the service", func() bool {
		return s.get(t, "/", "Authorization", "Bearer x").header.Get("X-RateLimit-Limit") != ""
	})
	return &attacked{name: "rate limit service", address: s.address, keys: keys, scrape: b.scrape}
}

// scrape returns the metrics.
func (b *bridge) scrape() string {
	b.t.Helper()
	a, err := ask(&http.Client{Transport: b.transport()}, "http://bridge/metrics", "Authorization", "Bearer "+bridgeToken)
	if err != nil || a.status != http.StatusOK {
		b.t.Fatal(a.status, err)
	}
	return a.body
}

// openCaddyfile is one by which a check that is not answered lets the request pass. The deadlines of these tests are long, because this
// machine runs the flood as well: with those that are the default, none of this is other on a machine that has nothing else to do.
var openCaddyfile = strings.NewReplacer("timeout 5s", "timeout 1s", "\t\ton_error deny\n", "").Replace(editedCaddyfile)

func attackedCaddy(t *testing.T, keys []*signer) *attacked {
	file := renamed(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(strings.ReplaceAll(garbagePolicy, "URL", fallsSilent(t, keys...)))
	p := startCaddy(t, openCaddyfile, "PENSTOCK_REDIS="+redistest.Start(t).URL(), "POLICY="+file.path)
	return &attacked{name: "Caddy", kinds: len(forgeries), address: p.address, keys: keys, scrape: p.scrape}
}
