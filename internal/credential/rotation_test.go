// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/test/eventually"
)

// lines is a writer that collects the lines of a log.
type lines struct{ eventually.Journal }

func (l *lines) count(text string) int { return strings.Count(l.String(), text) }

// waitUntil waits until work in the background has led to a condition.
func waitUntil(t testing.TB, what string, ok func() bool) {
	t.Helper()
	eventually.Until(t, 10*time.Second, what, ok)
}

// stateIs returns a function that reports whether a token has the given state.
func stateIs(j *JWT, token string, want policy.CredentialState) func() bool {
	return func() bool {
		_, state := j.Verify(token)
		return state == want
	}
}

const (
	tokenHeaderA = `{"alg":"ES256","kid":"a"}`
	tokenHeaderB = `{"alg":"ES256","kid":"b"}`
	tokenClaims  = `{"sub":"u","exp":1700000600}`
)

// makeTwoKeys returns the keys a and b, and a token signed by each.
func makeTwoKeys(t testing.TB) (a, b, tokenA, tokenB string) {
	t.Helper()
	one, two := &issuer{rsa: theIssuer.rsa, ec: newEC(t)}, &issuer{rsa: theIssuer.rsa, ec: newEC(t)}
	return ecJWK("a", &one.ec.PublicKey), ecJWK("b", &two.ec.PublicKey), one.token(t, tokenHeaderA, tokenClaims, "ec"),
		two.token(t, tokenHeaderB, tokenClaims, "ec")
}

// published is a server that answers with the stored response, usually a key set.
type published struct {
	answer atomic.Pointer[http.HandlerFunc]
	asked  atomic.Int64
}

func (p *published) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	(*p.answer.Load())(w, r)
}

func (p *published) say(text string) {
	p.do(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, text) })
}

func (p *published) do(f http.HandlerFunc) { p.answer.Store(&f) }

var testPace = pace{timeout: 200 * time.Millisecond, retryMin: 5 * time.Millisecond, unknown: 5 * time.Millisecond}

// newFetching returns a verifier that fetches its keys from a URL. Its refresh interval is long, so
// only unknown keys and failures cause another fetch.
func newFetching(t testing.TB, url string, log *lines) *JWT {
	t.Helper()
	j, err := newJWT(JWTOptions{JWKSURL: url, Now: testClock, Logger: log.Logger()}, testPace, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

func TestKeysOfURLRotate(t *testing.T) {
	a, b, tokenA, tokenB := makeTwoKeys(t)
	site, log := &published{}, &lines{}
	site.say(setOf(a))
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)
	j := newFetching(t, server.URL, log)
	<-j.Ready()
	if !stateIs(j, tokenA, policy.CredentialValid)() {
		t.Fatal("the first key is not in force")
	}
	first, _ := j.Verify(tokenA)

	site.say(setOf(a, b))
	waitUntil(t, "an unknown kid makes the set be fetched", stateIs(j, tokenB, policy.CredentialValid))
	if again, _ := j.Verify(tokenA); again != first {
		t.Error("a token of a key that stayed was verified again")
	}

	site.say(setOf(b))
	nobody := theIssuer.token(t, `{"alg":"ES256","kid":"nobody"}`, tokenClaims, "ec")
	waitUntil(t, "what a key verified that is gone is forgotten", func() bool {
		j.Verify(nobody)
		return stateIs(j, tokenA, policy.CredentialInvalid)()
	})
	if !stateIs(j, tokenB, policy.CredentialValid)() {
		t.Error("the key that stayed is not in force")
	}
}

func TestURLThatFailsKeepsTheLastGoodSet(t *testing.T) {
	a, b, tokenA, tokenB := makeTwoKeys(t)
	site, log := &published{}, &lines{}
	site.say(setOf(a))
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, setOf(b)) }))
	t.Cleanup(elsewhere.Close)
	j := newFetching(t, server.URL, log)
	<-j.Ready()
	for _, c := range []struct {
		name string
		do   http.HandlerFunc
		says string
	}{
		{"fails", func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusServiceUnavailable) }, "503"},
		{"is slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline exceeded"},
		{"is huge", func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, 2<<20)) }, "more than 1048576"},
		{"is no set", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "is not a JWK set"},
		{"is empty", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) }, "has no keys"},
		{"has secrets", func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, setOf(`{"kty":"oct","k":"c2VjcmV0"}`))
		}, "no key that can be used"},
		{"leads elsewhere", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) }, "is rejected"},
		{"leads in circles", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusFound) }, "3 redirects"},
	} {
		site.do(c.do)
		before, late := site.asked.Load(), log.count("deadline exceeded")
		waitUntil(t, "the log tells of a URL that "+c.name, func() bool {
			j.Verify(tokenB) // unknown
			return log.count(c.says) > 0
		})
		waitUntil(t, "it is asked again", func() bool {
			j.Verify(tokenB)
			return site.asked.Load() > before+2
		})
		// On a busy machine, a fetch can also time out. The next failure is then logged again.
		if most := 1 + log.count("deadline exceeded") - late; log.count(c.says) > most {
			t.Errorf("%s: %d lines, want at most %d", c.name, log.count(c.says), most)
		}
		if !stateIs(j, tokenA, policy.CredentialValid)() || !stateIs(j, tokenB, policy.CredentialInvalid)() {
			t.Errorf("%s: the last good set is not in force", c.name)
		}
	}
	site.say(setOf(a, b))
	waitUntil(t, "the new set is in force", stateIs(j, tokenB, policy.CredentialValid))
	waitUntil(t, "the log tells of the end", func() bool { return log.count("can be fetched again") == 1 })
}

// TestKeysWithoutNamesRotate: keys can be rotated even if the issuer gives them no kid, or always
// the same one.
func TestKeysWithoutNamesRotate(t *testing.T) {
	for _, kid := range []string{`"kid":"always"`, `"use":"sig"`} {
		header := `{"alg":"ES256",` + kid + "}"
		old, fresh := &issuer{rsa: theIssuer.rsa, ec: newEC(t)}, &issuer{rsa: theIssuer.rsa, ec: newEC(t)}
		a := strings.Replace(ecJWK("", &old.ec.PublicKey), `"kid":""`, kid, 1)
		b := strings.Replace(ecJWK("", &fresh.ec.PublicKey), `"kid":""`, kid, 1)
		tokenA, tokenB := old.token(t, header, tokenClaims, "ec"), fresh.token(t, header, tokenClaims, "ec")
		site := &published{}
		site.say(setOf(a))
		server := httptest.NewServer(site)
		t.Cleanup(server.Close)
		j := newFetching(t, server.URL, &lines{})
		<-j.Ready()
		if !stateIs(j, tokenA, policy.CredentialValid)() {
			t.Fatal("the first key is not in force")
		}
		site.say(setOf(b))
		waitUntil(t, "a signature of another key makes the set be fetched", stateIs(j, tokenB, policy.CredentialValid))
		if !stateIs(j, tokenA, policy.CredentialInvalid)() {
			t.Error("the key that is gone is still in force")
		}
	}
}

func TestUnknownKidsAreAskedForAtABoundedRate(t *testing.T) {
	a, _, _, tokenB := makeTwoKeys(t)
	site := &published{}
	site.say(setOf(a))
	server := httptest.NewServer(site)
	t.Cleanup(server.Close)
	j, err := newJWT(JWTOptions{JWKSURL: server.URL, Now: testClock}, fetchPace, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	<-j.Ready()
	for range 10_000 {
		j.Verify(tokenB)
	}
	if asked := site.asked.Load(); asked != 1 {
		t.Errorf("asked %d times", asked)
	}
}

func TestVerifyDoesNotWaitForTheURL(t *testing.T) {
	stuck := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-stuck }))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stuck) })
	j, err := NewJWT(JWTOptions{JWKSURL: server.URL, Now: testClock})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	_, _, tokenA, _ := makeTwoKeys(t)
	start := time.Now()
	if _, state := j.Verify(tokenA); state != policy.CredentialInvalid {
		t.Error(state)
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestKeysOfFileRotate(t *testing.T) {
	a, b, tokenA, tokenB := makeTwoKeys(t)
	log := &lines{}
	// Kubernetes links keys.json to ..data/keys.json, and swaps the folder that ..data links to.
	dir := t.TempDir()
	put := func(folder, text string) {
		t.Helper()
		swap := filepath.Join(dir, "..tmp")
		for _, err := range []error{os.Mkdir(filepath.Join(dir, folder), 0o700),
			os.WriteFile(filepath.Join(dir, folder, "keys.json"), []byte(text), 0o600),
			os.Symlink(folder, swap), os.Rename(swap, filepath.Join(dir, "..data"))} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	put("one", setOf(a))
	if err := os.Symlink("..data/keys.json", filepath.Join(dir, "keys.json")); err != nil {
		t.Fatal(err)
	}
	j, err := newJWT(JWTOptions{JWKSFile: filepath.Join(dir, "keys.json"), Now: testClock, Logger: log.Logger()}, fetchPace,
		2*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	if !stateIs(j, tokenA, policy.CredentialValid)() || !stateIs(j, tokenB, policy.CredentialInvalid)() {
		t.Fatal("the first set is not in force")
	}
	put("two", setOf(b))
	waitUntil(t, "the second set is in force", stateIs(j, tokenB, policy.CredentialValid))
	if !stateIs(j, tokenA, policy.CredentialInvalid)() {
		t.Error("a key that is gone is believed")
	}
	put("three", `{"keys":`)
	waitUntil(t, "the bad edit is told", func() bool { return log.count("rejected, its previous content stays") > 0 })
	if !stateIs(j, tokenB, policy.CredentialValid)() {
		t.Error("a bad edit took the keys away")
	}
	put("four", setOf(a, b))
	waitUntil(t, "the mended file is in force", stateIs(j, tokenA, policy.CredentialValid))
}

func TestSecretFileIsReadAgain(t *testing.T) {
	path := write(t, "secret", strings.Repeat("old secret ", 4)+"\n")
	j, err := newJWT(JWTOptions{SecretFile: path, Now: testClock}, fetchPace, 2*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	token := theIssuer.token(t, `{"alg":"HS256"}`, tokenClaims, "secret")
	if !stateIs(j, token, policy.CredentialInvalid)() {
		t.Fatal("believed before its secret was there")
	}
	if err := os.WriteFile(path, []byte(testSecret+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	waitUntil(t, "the new secret is in force", stateIs(j, token, policy.CredentialValid))
}

func TestRedirectsOnOneHostAreFollowed(t *testing.T) {
	a, _, tokenA, _ := makeTwoKeys(t)
	site := &published{}
	site.do(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/moved" {
			fmt.Fprint(w, setOf(a))
			return
		}
		http.Redirect(w, r, "/moved", http.StatusMovedPermanently)
	})
	server := httptest.NewTLSServer(site)
	t.Cleanup(server.Close)
	j := openTest(t, JWTOptions{JWKSURL: server.URL, Transport: server.Client().Transport})
	<-j.Ready()
	if !stateIs(j, tokenA, policy.CredentialValid)() {
		t.Error("the set behind the redirect is not in force")
	}
}

func TestVerifyWhileKeysRotate(t *testing.T) {
	a, b, tokenA, tokenB := makeTwoKeys(t)
	freshKeys := func(set string) []*key {
		keys, _, err := readSet([]byte(set), must(allowedAlgorithms(nil, false)))
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	j := openTest(t, JWTOptions{JWKSFile: write(t, "k.json", setOf(a))})
	var stop atomic.Bool
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for !stop.Load() {
				j.Verify(tokenA)
				j.Verify(tokenB)
			}
		})
	}
	for i := range 300 {
		// The keys are new each time, as after reading the set again. A removed key never comes
		// back.
		j.install(freshKeys(setOf(b)))
		if !stateIs(j, tokenA, policy.CredentialInvalid)() || !stateIs(j, tokenB, policy.CredentialValid)() {
			t.Fatalf("after change %d a key that is gone is believed", i)
		}
		j.install(freshKeys(setOf(a, b)))
		if !stateIs(j, tokenA, policy.CredentialValid)() {
			t.Fatalf("after change %d a key that is there is not believed", i)
		}
	}
	stop.Store(true)
	group.Wait()
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
