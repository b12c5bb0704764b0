// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/elliptic"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
	keys "github.com/penstock/penstock/internal/test/signer"
)

// signer is a key of an issuer of tokens.
type signer struct {
	keys.Key
	method jwt.SigningMethod
}

func newRSA(t *testing.T, name string) *signer {
	t.Helper()
	return &signer{keys.RSA(t, name, 2048, "RS256"), jwt.SigningMethodRS256}
}

func newEC(t *testing.T, name string) *signer {
	t.Helper()
	return &signer{keys.EC(t, name, elliptic.P256()), jwt.SigningMethodES256}
}

var serial atomic.Int64

// signer.token returns a new token for a user.
func (s *signer) token(t testing.TB, user string) string {
	token := jwt.NewWithClaims(s.method, jwt.MapClaims{"sub": user, "iss": "login", "aud": []string{"shop"}, "plan": "gold",
		"org": map[string]string{"id": "acme"}, "jti": serial.Add(1), "exp": time.Now().Add(time.Hour).Unix()})
	token.Header["kid"] = s.Name
	text, err := token.SignedString(s.Signer)
	if err != nil {
		t.Error(err)
	}
	return text
}

// issuer publishes a key set.
type issuer struct {
	address string
	set     atomic.Pointer[string]
	fails   atomic.Bool
	asked   atomic.Int64
}

func newIssuer(t *testing.T, keys ...*signer) *issuer {
	t.Helper()
	i := new(issuer)
	i.publish(keys...)
	server := httptest.NewServer(i)
	t.Cleanup(server.Close)
	i.address = server.Listener.Addr().String()
	return i
}

func (i *issuer) publish(keys ...*signer) {
	var all []string
	for _, k := range keys {
		all = append(all, k.JWK)
	}
	text := `{"keys":[` + strings.Join(all, ",") + `]}`
	i.set.Store(&text)
}

// failures holds the answers of a failing issuer, which it gives in turn.
var failures = []http.HandlerFunc{
	func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) },
	func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) },
	func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>back soon</html>")) },
	func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, // ends the connection
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := i.asked.Add(1)
	if i.fails.Load() {
		failures[int(n)%len(failures)](w, r)
		return
	}
	_, _ = w.Write([]byte(*i.set.Load()))
}

// refresh is the interval at which the Caddys of these tests fetch the key set. The constant named
// within is the longest time until all of them have fetched it on a busy machine.
const (
	refresh = time.Second
	within  = refresh + 4*time.Second
)

func byToken(i *issuer) string {
	return shared + `:SITE {
	penstock {
		identify jwt {
			jwks_url http://` + i.address + `/keys
			issuer login
			audience shop
			tenant_claim org.id
			tier_claim plan
			refresh ` + refresh.String() + `
		}
		identify ip
		rule api 1000000/30d fixed_window {
			tiers gold 2000000/30d fixed_window
		}
	}
	respond "{http.penstock.identity} {http.penstock.client} {http.penstock.tenant} {http.penstock.tier}"
}
`
}

// tokenResult is the result of a request with a token.
type tokenResult struct {
	signed      *signer
	sent, ended time.Time
	identified  bool
}

// sendTokens sends requests with tokens of one key until the channel named done is closed. Every
// tenth request has a new token, and all others have the same one. sendTokens then sends the
// results to the channel named kept.
func sendTokens(p *process, s *signer, done <-chan struct{}, kept chan<- []tokenResult) {
	var all []tokenResult
	user := "user-of-" + s.Name
	text := s.token(p.t, user)
	for n := 0; ; n++ {
		select {
		case <-done:
			kept <- all
			return
		default:
		}
		with := text
		if n%10 == 9 {
			with = s.token(p.t, user)
		}
		one := tokenResult{signed: s, sent: time.Now()}
		a := p.ask(context.Background(), http.MethodGet, "/", "Authorization", "Bearer "+with)
		one.ended = time.Now()
		switch a.body {
		case "user " + user + " acme gold":
			one.identified = true
		case "ip 127.0.0.1  ":
		default:
			p.t.Errorf("%d %q for a token of %s", a.status, a.body, s.Name)
		}
		all = append(all, one)
	}
}

// TestKeySetsRotateUnderLoad tests an issuer that publishes a second key, then fails for a while,
// and then removes the first key. Two Caddys continuously receive tokens of both keys. A token of a
// published key always identifies its client. A token of the removed key no longer identifies
// anyone. Every request is counted once, for the right client.
func TestKeySetsRotateUnderLoad(t *testing.T) {
	t.Parallel()
	old, fresh := newRSA(t, "old"), newEC(t, "fresh")
	login := newIssuer(t, old)
	redis := redistest.Start(t)
	nodes := fleet(t, 2, redis, byToken(login))

	done, kept := make(chan struct{}), make(chan []tokenResult)
	const presenters = 2
	for _, p := range nodes {
		for range presenters {
			go sendTokens(p, old, done, kept)
			go sendTokens(p, fresh, done, kept)
		}
	}
	pass := func(span time.Duration) { <-time.After(span) }
	pass(refresh / 2)
	login.publish(old, fresh)
	added := time.Now()
	pass(within)
	login.fails.Store(true)
	failing := login.asked.Load()
	eventually.Until(t, patience, "the issuer has failed in every way", func() bool {
		return login.asked.Load() >= failing+int64(len(failures))
	})
	taken := time.Now()
	login.publish(fresh)
	login.fails.Store(false)
	pass(within + refresh/2)
	close(done)
	var all []tokenResult
	for range presenters * 2 * len(nodes) {
		all = append(all, <-kept...)
	}
	rotation{old, fresh, added, taken}.judge(t, all)
	countsForWhom(t, redis, all)
	for _, p := range nodes {
		if lines := strings.Count(p.log.String(), "the key set cannot be fetched, the last one stays"); lines < 1 || lines > len(failures) {
			t.Errorf("%d log lines about the issuer, want one for each way of failing at most", lines)
		}
	}
}

// rotation holds the times at which an issuer added the key named fresh and removed the key named
// old.
type rotation struct {
	old, fresh   *signer
	added, taken time.Time
}

func (r rotation) judge(t *testing.T, all []tokenResult) {
	t.Helper()
	wrong, sure := map[string]int{}, map[string]int{}
	for _, one := range all {
		var claim string
		var want bool
		switch {
		case one.signed == r.old && one.ended.Before(r.taken):
			claim, want = "old, while it is published", true
		case one.signed == r.old && one.sent.After(r.taken.Add(within)):
			claim, want = "old, after it was taken back", false
		case one.signed == r.fresh && one.ended.Before(r.added):
			claim, want = "fresh, before it is published", false
		case one.signed == r.fresh && one.sent.After(r.added.Add(within)):
			claim, want = "fresh, once it is published", true
		default:
			continue // the Caddys may or may not have fetched the keys yet
		}
		sure[claim]++
		if one.identified != want {
			wrong[claim]++
		}
	}
	for claim, n := range sure {
		t.Logf("%s: %d requests", claim, n)
		if wrong[claim] > 0 {
			t.Errorf("%s: %d of %d requests were taken for somebody else", claim, wrong[claim], n)
		}
	}
	if len(sure) != 4 {
		t.Errorf("only %v were tried", sure)
	}
}

// countsForWhom checks that each request was counted once, for its user if it was identified, and
// otherwise for its address.
func countsForWhom(t *testing.T, redis *redistest.Server, all []tokenResult) {
	t.Helper()
	var known, strangers int64
	for _, one := range all {
		if one.identified {
			known++
		} else {
			strangers++
		}
	}
	users, addresses := sum(readUsed(t, redis, "rl1:who:api:{user:*")), sum(readUsed(t, redis, "rl1:who:api:{ip:*"))
	if users != known || addresses != strangers {
		t.Errorf("%d counted for users and %d for addresses, want %d and %d", users, addresses, known, strangers)
	}
}

// TestAnIssuerThatIsDownAtTheStart tests that a Caddy starts although the issuer is down, and that
// it identifies clients as soon as the issuer is back.
func TestAnIssuerThatIsDownAtTheStart(t *testing.T) {
	t.Parallel()
	key := newEC(t, "first")
	login := newIssuer(t, key)
	login.fails.Store(true)
	p := fleet(t, 1, redistest.Start(t), byToken(login))[0]
	token := key.token(t, "ann")
	body := func() string {
		return p.ask(context.Background(), http.MethodGet, "/", "Authorization", "Bearer "+token).body
	}
	if got := body(); got != "ip 127.0.0.1  " {
		t.Errorf("without keys: %q", got)
	}
	login.fails.Store(false)
	eventually.Until(t, patience, "the client is known", func() bool { return body() == "user ann acme gold" })
	if !strings.Contains(p.log.String(), "the key set can be fetched again") {
		t.Error("the log does not say that the issuer is back")
	}
}
