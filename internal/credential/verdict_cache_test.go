// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/golang-jwt/jwt/v5"

	"github.com/penstock/penstock/core/policy"
)

// token700 returns a token of 700 bytes, a usual size of tokens from large issuers.
func token700(t testing.TB, user string) string {
	t.Helper()
	for pad := 0; ; pad++ {
		claims := fmt.Sprintf(`{"sub":%q,"exp":1700000600,"scope":%q}`, user, strings.Repeat("s", pad))
		token := theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, claims, "none")
		if len(token)+encodedRSA >= 700 {
			return theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, claims, "rsa")
		}
	}
}

const encodedRSA = 342 // letters of a signature of 256 bytes

func TestRememberedTokensCostNothing(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	good := token700(t, "u")
	forged := good[:len(good)-20] + strings.Repeat("A", 20)
	for _, c := range []struct {
		token string
		want  policy.CredentialState
	}{{good, policy.CredentialValid}, {forged, policy.CredentialInvalid}} {
		first, _ := j.Verify(c.token)
		if n := testing.AllocsPerRun(100, func() {
			if id, state := j.Verify(c.token); id != first || state != c.want {
				t.Fatal(id, state)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", c.want, n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { j.Verify(strings.Repeat("x", 1)) }); n != 0 {
		t.Errorf("no token at all: %v allocations", n)
	}
}

func TestTheWholeTokenIsRemembered(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	good := theIssuer.goodToken(t, "u")
	j.Verify(good)
	for i := range len(good) {
		changed := []byte(good)
		if changed[i] ^= 1; changed[i] == good[i] {
			continue
		}
		if id, state := j.Verify(string(changed)); state == policy.CredentialValid {
			t.Fatalf("with byte %d changed it is believed to be %v's", i, id)
		}
	}
}

func TestTokensWithOneHashStayDistinct(t *testing.T) {
	m := newMemory(maphash.MakeSeed(), 10, 1<<20)
	one, two := &verdict{token: "one", sum: 7, span: span{0, 10}}, &verdict{token: "two", sum: 7, span: span{0, 10}}
	m.remember(one, nil, 0)
	if m.find(7, "two") != nil {
		t.Error("a token passes for another of the same hash")
	}
	m.remember(two, nil, 0)
	if m.find(7, "one") != one || m.find(7, "two") != two {
		t.Error("one pushed the other out")
	}
}

// TestVerdictsThatComeLate tests the verdict of a request that was verifying a token while the keys
// changed.
func TestVerdictsThatComeLate(t *testing.T) {
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", theIssuer.set)})
	forged := theIssuer.token(t, `{"alg":"RS256","kid":"r1"}`, tokenClaims, "other")
	gone := &key{}
	gone.gone.Store(true)
	j.good.remember(&verdict{token: forged, sum: maphash.String(j.seed, forged), key: gone, span: span{always, never},
		identity: &policy.Identity{Kind: "user", ID: "admin"}, state: policy.CredentialValid}, j.set.Load(), 0)
	if id, state := j.Verify(forged); state != policy.CredentialInvalid {
		t.Errorf("what a key verified that is gone is believed: %v %s", id, state)
	}
	good := theIssuer.goodToken(t, "u")
	j.bad.remember(&verdict{token: good, sum: maphash.String(j.seed, good), set: newKeySet(nil), span: span{always, never},
		state: policy.CredentialInvalid}, j.set.Load(), 0)
	if _, state := j.Verify(good); state != policy.CredentialValid {
		t.Errorf("what failed with other keys fails with these: %s", state)
	}
}

func TestTheTokenIsCopied(t *testing.T) {
	m := newMemory(maphash.MakeSeed(), 10, 1<<20)
	text := []byte("a token in a buffer that is used again")
	v := &verdict{token: unsafe.String(&text[0], len(text)), sum: 1, span: span{0, 10}}
	m.remember(v, nil, 0)
	clear(text)
	if m.find(1, "a token in a buffer that is used again") != v {
		t.Error("the token changed with the caller's buffer")
	}
}

func TestForgedTokensPushOutNoGoodOnes(t *testing.T) {
	j := openTest(t, JWTOptions{Secret: testSecret, MemoryEntries: 256, MemoryBytes: 1 << 20})
	good := make([]string, 100)
	first := make([]*policy.Identity, len(good))
	for i := range good {
		good[i] = theIssuer.token(t, `{"alg":"HS256"}`, fmt.Sprintf(`{"sub":"u%d","exp":1700000600}`, i), "secret")
		first[i], _ = j.Verify(good[i])
	}
	for i := range 20_000 {
		j.Verify(encode([]byte(`{"alg":"HS256"}`)) + "." + encode(fmt.Appendf(nil, "%d", i)) + "." + encode(make([]byte, 32)))
	}
	for i := range good {
		if id, _ := j.Verify(good[i]); id != first[i] {
			t.Errorf("token %d was verified again", i)
		}
	}
	entries, bytes := j.bad.size()
	if entries > 64 || bytes > 1<<18 || entries < 32 {
		t.Errorf("%d forged ones are held in %d bytes", entries, bytes)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	for _, c := range []struct{ entries, bytes, tokenBytes int }{{1000, 64 << 20, 50}, {1 << 16, 1 << 20, 4000}, {1, 1 << 20, 100}} {
		m := newMemory(maphash.MakeSeed(), c.entries, c.bytes)
		for i := range 5000 {
			token := fmt.Sprintf("%d.%s", i, strings.Repeat("x", c.tokenBytes))
			v := &verdict{token: token, sum: maphash.String(m.seed, token), span: span{0, 10}}
			m.remember(v, nil, 0)
			if m.find(v.sum, token) == nil {
				t.Fatalf("%+v: token %d was not remembered", c, i)
			}
		}
		entries, bytes := m.size()
		if entries > c.entries || bytes > c.bytes {
			t.Errorf("%+v: %d entries, %d bytes", c, entries, bytes)
		}
		if entries < c.entries/2 && bytes < c.bytes/2 {
			t.Errorf("%+v: only %d entries, %d bytes", c, entries, bytes)
		}
	}
}

func TestUsedVerdictsStay(t *testing.T) {
	m := newMemory(maphash.MakeSeed(), 64, 1<<20)
	remember := func(token string, until int64) {
		m.remember(&verdict{token: token, sum: maphash.String(m.seed, token), span: span{0, until}}, nil, 5)
	}
	remember("hot", 10)
	for i := range 10_000 {
		remember(fmt.Sprint("cold", i), 10)
		if m.find(maphash.String(m.seed, "hot"), "hot") == nil {
			t.Fatalf("after %d others it was dropped", i)
		}
	}
	// Expired verdicts are evicted first, even if they are still looked up.
	remember("old", 5)
	for i := range 200 {
		m.find(maphash.String(m.seed, "old"), "old")
		remember(fmt.Sprint("new", i), 10)
	}
	if m.find(maphash.String(m.seed, "old"), "old") != nil {
		t.Error("an expired token took the room of others")
	}
}

func TestMemoryUnderManyHands(t *testing.T) {
	m := newMemory(maphash.MakeSeed(), 128, 1<<20)
	set := newKeySet(nil)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range 5000 {
				token := fmt.Sprint(i % 300)
				sum := maphash.String(m.seed, token)
				if v := m.find(sum, token); v != nil && v.token != token {
					t.Errorf("%q for %q", v.token, token)
				}
				m.remember(&verdict{token: token, sum: sum, set: set, span: span{0, 10}}, set, 5)
				if i%1000 == 0 {
					m.forget(nil, 5)
				}
			}
		})
	}
	group.Wait()
	m.forget(nil, 5)
	if entries, bytes := m.size(); entries != 0 || bytes != 0 {
		t.Errorf("%d entries and %d bytes are left", entries, bytes)
	}
	for i := range m.shards {
		for at := range *m.shards[i].heads.Load() {
			if (*m.shards[i].heads.Load())[at].Load() != nil {
				t.Fatal("a chain holds what the ring does not")
			}
		}
	}
}

func TestFailuresAreForgottenAfterAMinute(t *testing.T) {
	now := testNow
	j := openTest(t, JWTOptions{Secret: testSecret, Now: func() time.Time { return now }})
	forged := theIssuer.token(t, `{"alg":"HS256"}`, tokenClaims, "hmac:empty")
	j.Verify(forged)
	sum := maphash.String(j.seed, forged)
	v := j.bad.find(sum, forged)
	if v == nil {
		t.Fatal("it is not remembered")
	}
	now = now.Add(failedFor)
	j.Verify(forged)
	if j.bad.find(sum, forged) == v {
		t.Error("the old verdict is still in force")
	}
}

func BenchmarkVerify(b *testing.B) {
	j := openTest(b, JWTOptions{JWKSFile: write(b, "k.json", theIssuer.set)})
	token := token700(b, "u")
	j.Verify(token)
	b.Run("remembered", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			j.Verify(token)
		}
	})
	b.Run("remembered/parallel", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				j.Verify(token)
			}
		})
	})
	many := make([]string, 10_000)
	for i := range many {
		random := make([]byte, 500)
		rand.Read(random)
		many[i] = "x." + encode(random) + ".x"
		j.good.remember(&verdict{token: many[i], sum: maphash.String(j.seed, many[i]), key: &key{}, span: span{0, never}}, nil, 0)
	}
	b.Run("remembered/10000", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			j.Verify(many[i%len(many)])
		}
	})
	b.Run("baseline/sha256", func(b *testing.B) {
		for b.Loop() {
			sha256.Sum256([]byte(token))
		}
	})
	b.Run("baseline/golang-jwt", func(b *testing.B) {
		parser := jwt.NewParser(jwt.WithTimeFunc(testClock))
		for b.Loop() {
			if _, err := parser.Parse(token, func(*jwt.Token) (any, error) { return &theIssuer.rsa.PublicKey, nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("new", func(b *testing.B) {
		b.ReportAllocs()
		p, _ := cutToken(token)
		for b.Loop() {
			j.verify(&inquiry{}, token, p, 1, testNow.UnixMicro())
		}
	})
}
