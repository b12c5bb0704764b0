// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/await"
)

// patient is how a site is set where the bridge is there and only busy: what is looked at is not the deadline.
const patient = "deadline: 10s"

// unhurried is how one is set where a bridge answers at once, and a machine that is busy not before 50 ms are over.
const unhurried = "deadline: 500ms"

// troubles are what can become of the bridge, and of the way to it. Each is tried under both words of on_error.
var troubles = []struct {
	name string
	site site
	held bool   // the policy is in the filter's configuration
	only string // the one word of on_error that it is tried under; "" is both: what takes long is not tried twice
	run  func(s *site, t *testing.T, word string)
}{
	{name: "bridge absent at start", run: (*site).isAbsentAtStart},
	{name: "outages", run: (*site).outlivesOutages},
	{name: "outages, HTTP 2", site: site{cluster: http2Cluster}, run: (*site).outlivesOutages},
	{name: "useless answers", site: site{set: unhurried}, run: (*site).bearsUselessAnswers},
	{name: "useless answers, HTTP 2", site: site{cluster: http2Cluster, set: unhurried}, run: (*site).bearsUselessAnswers},
	{name: "useless policy", site: site{set: patient}, run: (*site).keepsItsPolicy},
	{name: "clients that leave", site: site{set: patient}, run: (*site).forgetsClients},
	{name: "clients that leave, HTTP 2", site: site{cluster: http2Cluster, set: patient}, run: (*site).forgetsClients},
	{name: "internal redirects", site: site{set: patient}, run: (*site).chargesRedirectsOnce},
	{name: "clients that wait their turn", site: site{set: "deadline: 3s"}, only: "deny", run: (*site).answersThoseInLine},
	{name: "clients that wait their turn, HTTP 2", site: site{cluster: http2Cluster, set: "deadline: 3s"}, only: "allow", run: (*site).answersThoseInLine},
	{name: "after a silence", site: site{set: "deadline: 4s"}, only: "allow", run: (*site).keepsDeadlinesAfterSilence},
	{name: "many that wait their turn", site: site{set: patient}, only: "allow", run: (*site).decidesBesideALine},
	{name: "many that wait their turn, HTTP 2", site: site{cluster: http2Cluster, set: patient}, only: "deny", run: (*site).decidesBesideALine},
	{name: "one of several bridges", site: site{cluster: severalCluster, set: patient}, only: "deny", run: (*site).goesOnWithAnother},
	{name: "settings as an object", site: site{object: true, set: patient + "\nxff_appended: true"}, run: (*site).limits},
	{name: "token", site: site{set: patient + "\ntoken: " + bridgeToken}, run: (*site).showsItsToken},
	{name: "wrong token", site: site{set: "token: not-" + bridgeToken}, run: (*site).showsAWrongToken},
	{name: "no endpoints", site: site{cluster: emptyCluster}, run: (*site).goesWithoutPolicy},
	{name: "no endpoints, policy held", site: site{cluster: emptyCluster}, held: true, run: (*site).goesWithoutBridge},
	{name: "unknown cluster", site: site{named: "nowhere"}, run: (*site).goesWithoutPolicy},
	{name: "unknown cluster, policy held", site: site{named: "nowhere"}, held: true, run: (*site).goesWithoutBridge},
	{name: "circuit breaker full", site: site{cluster: fullCluster}, run: (*site).goesWithoutPolicy},
	{name: "circuit breaker full, HTTP 2", site: site{cluster: fullHTTP2Cluster}, held: true, run: (*site).goesWithoutBridge},
	{name: "circuit breaker full, policy held", site: site{cluster: fullCluster}, held: true, run: (*site).goesWithoutBridge},
}

// Clusters that no call gets through.
const emptyCluster = `{name: NAME, type: STATIC, connect_timeout: 0.25s, load_assignment: {cluster_name: NAME, endpoints: []}}`

var fullCluster, fullHTTP2Cluster = strings.ReplaceAll(bridgeCluster, "16384", "0"), strings.ReplaceAll(http2Cluster, "16384", "0")

// TestEnvoyTroubles: whatever becomes of the bridge and of Redis, requests are answered soon, by the upstream or with 503 as the
// policy says, the reason is counted, and limits hold again by themselves. One Envoy has a site for each of the troubles, since it
// takes long to start; they come one after the other, since its counters are of all sites.
func TestEnvoyTroubles(t *testing.T) {
	held := map[string]string{"allow": compactPolicy(t, anew(onError("allow"))), "deny": compactPolicy(t, onError("deny"))}
	var sites []*site
	for _, trouble := range troubles {
		for _, word := range words(trouble.only) {
			s := trouble.site
			s.set += "\non_error: " + word
			if trouble.held {
				s.set += "\npolicy: " + held[word]
			}
			sites = append(sites, &s)
		}
	}
	startEnvoy(t, wasm(t), http.HandlerFunc(redirecting), sites...)
	for _, trouble := range troubles {
		for _, word := range words(trouble.only) {
			s := sites[0]
			sites = sites[1:]
			t.Run(trouble.name+"/"+word, func(t *testing.T) { trouble.run(s, t, word) })
		}
	}
}

// words are those of on_error that something is tried under.
func words(only string) []string {
	if only != "" {
		return []string{only}
	}
	return []string{"allow", "deny"}
}

// outagePolicy counts so that a limit outlives any test.
const outagePolicy = `name: shop
on_error: ON_ERROR
rules: [{name: all, limit: 100/31d}]
`

// onError is the policy of the troubles with its word for them.
func onError(word string) string { return strings.ReplaceAll(outagePolicy, "ON_ERROR", word) }

var policies atomic.Int64

// anew gives a policy another name, and so counters of its own: what an Envoy has let pass without a bridge counts for all its sites.
func anew(policy string) string {
	return strings.Replace(policy, "name: shop", "name: shop-"+strconv.FormatInt(policies.Add(1), 10), 1)
}

// compactPolicy returns a policy as a bridge tells of it, in base64.
func compactPolicy(t *testing.T, policy string) string {
	t.Helper()
	b := newBridge(t, policy)
	b.run(t)
	a, err := ask(&http.Client{Transport: b.transport()}, "http://bridge/v1/policy")
	if err != nil || a.status != http.StatusOK {
		t.Fatal(a.status, err)
	}
	return base64.StdEncoding.EncodeToString([]byte(a.body))
}

// isAbsentAtStart: nothing is limited while there has been no bridge yet, or everything is refused; then a bridge comes.
func (s *site) isAbsentAtStart(t *testing.T, word string) {
	s.goesWithoutPolicy(t, word)
	s.startBridge(t, anew(onError(word)))
	s.holdsAgain(t)
}

// goesWithoutPolicy: the filter has never heard of a policy.
func (s *site) goesWithoutPolicy(t *testing.T, word string) {
	s.goesWithout(t, word, "no_policy")
}

// goesWithoutBridge: the filter has a policy and cannot ask.
func (s *site) goesWithoutBridge(t *testing.T, word string) {
	s.goesWithout(t, word, "bridge_unreachable", "breaker_open")
}

// goesWithout holds that every request is decided by on_error, soon, and that the reason is one of the counters.
func (s *site) goesWithout(t *testing.T, word string, counters ...string) {
	t.Helper()
	const requests = 20
	count := func() (reasons int) {
		for _, c := range counters {
			reasons += s.envoy.counter("penstock." + c)
		}
		return reasons
	}
	before := count()
	for range requests {
		start := time.Now()
		s.isDegraded(t, s.get(t, "/"), word)
		if took := time.Since(start); took > answerWithin {
			t.Errorf("an answer took %v", took)
		}
	}
	if grown := count() - before; grown != requests {
		t.Errorf("%d of %d requests were counted as %v", grown, requests, counters)
	}
}

// isDegraded checks an answer that was given without the bridge.
func (s *site) isDegraded(t *testing.T, a answer, word string) {
	t.Helper()
	switch {
	case word == "allow" && (a.status != http.StatusOK || a.body != "ok"):
		t.Errorf("status %d, %q, want the upstream's answer", a.status, a.body)
	case word == "deny" && (a.status != http.StatusServiceUnavailable ||
		a.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(a.body, `#temporary-reduced-capacity"`)):
		t.Errorf("status %d, %v, %q, want a problem of its type", a.status, a.header, a.body)
	}
	if got := a.header.Get("RateLimit"); got != "" {
		t.Errorf("an answer without the bridge tells of a limit: %q", got)
	}
}

// holdsAgain waits until requests are counted again, and then refused. On a busy machine one or the other may be decided without
// the bridge meanwhile.
func (s *site) holdsAgain(t *testing.T) {
	t.Helper()
	s.isDecided(t)
	s.limited = either(s.limited, "/")
	admitted := 0
	await.Until(t, envoyPatience, "the limit holds again", func() bool {
		a := s.get(t, s.limited)
		if a.status == http.StatusOK && a.header.Get("RateLimit") != "" {
			admitted++
		}
		return a.status == http.StatusTooManyRequests
	})
	if admitted > 100 {
		t.Errorf("%d requests were admitted by a limit of 100", admitted)
	}
}

// manyInARow are so many connections that both workers have some of them: the kernel gives each to either.
const manyInARow = 24

// isDecided waits until the bridge decides on both workers.
func (s *site) isDecided(t *testing.T) {
	t.Helper()
	s.allAre(t, "requests are counted again", func(a answer) bool { return a.header.Get("RateLimit") != "" })
}

// allAre waits until both workers answer as wanted.
func (s *site) allAre(t *testing.T, what string, wanted func(answer) bool) {
	t.Helper()
	inARow := 0
	await.Until(t, envoyPatience, what, func() bool {
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // each connection may be another worker's
		a, err := ask(fresh, "http://"+s.address+"/")
		if inARow++; err != nil || !wanted(a) {
			inARow = 0
		}
		return inARow == manyInARow
	})
}

// keepsItsPolicy: a policy file that is edited wrongly is refused by the bridge, and the limit stays; one that is right counts.
func (s *site) keepsItsPolicy(t *testing.T, word string) {
	b := s.startBridge(t, onError(word))
	policyOf := func() string { return s.get(t, "/").header.Get("RateLimit-Policy") }
	const before, after = `"all";q=100;w=2678400`, `"all";q=200;w=2678400`
	s.isDecided(t)
	b.policy.edit("name: shop\nrules: [{name: all, limit: 100/minute}]\n")
	await.Until(t, patience, "the bridge refuses the file", func() bool {
		return strings.Contains(b.log.String(), "the edited policy file is refused")
	})
	if got := policyOf(); got != before {
		t.Errorf("with a wrong policy file the policy is %s, want %s", got, before)
	}
	s.envoy.loads(t, func() { b.policy.edit(strings.Replace(onError(word), "100/31d", "200/31d", 1)) })
	if got := policyOf(); got != after {
		t.Errorf("after the edit the policy is %s, want %s", got, after)
	}
}

// forgetsClients: clients that leave while they wait spoil nothing for those who stay.
func (s *site) forgetsClients(t *testing.T, word string) {
	const leaving, staying = 200, 16
	b := s.startBridge(t, strings.Replace(onError(word), "100/31d", "100000/31d", 1))
	s.isDecided(t)
	panics, timeouts := s.envoy.counter("penstock.panic"), s.envoy.counter("penstock.bridge_timeout")
	b.freeze()
	stays := make(chan answer, staying)
	for range staying {
		go func() {
			a, err := ask(new(http.Client), "http://"+s.address+"/")
			if err != nil {
				a.body = err.Error()
			}
			stays <- a
		}()
	}
	var gone []net.Conn
	for range leaving {
		connection, err := net.Dial("tcp", s.address)
		if err == nil {
			_, err = io.WriteString(connection, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
		}
		if err != nil {
			t.Fatal(err)
		}
		gone = append(gone, connection)
	}
	waiting := func() int { return s.envoy.stat("http." + s.name + ".downstream_rq_active") }
	await.Until(t, patience, "all wait", func() bool { return waiting() == leaving+staying })
	for _, connection := range gone {
		connection.Close()
	}
	await.Until(t, patience, "those who left are gone", func() bool { return waiting() == staying })
	b.signal(syscall.SIGCONT)
	for range staying {
		if a := <-stays; a.status != http.StatusOK || a.header.Get("RateLimit") == "" {
			t.Errorf("one that stayed got status %d, %v, %q", a.status, a.header, a.body)
		}
	}
	if p, w := s.envoy.counter("penstock.panic")-panics, s.envoy.counter("penstock.bridge_timeout")-timeouts; p != 0 || w != 0 {
		t.Errorf("%d panics and %d timeouts", p, w)
	}
}

// redirecting is an upstream that sends requests for /redirected/N to /redirected/N-1, which Envoy follows, and answers
// others.
func redirecting(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/redirected/"))
	if err != nil || n == 0 {
		_, _ = io.WriteString(w, "ok")
		return
	}
	w.Header().Set("Location", fmt.Sprintf("http://%s/redirected/%d", r.Host, n-1))
	w.WriteHeader(http.StatusFound)
}

// chargesRedirectsOnce: a request that Envoy itself sends on to where the upstream points is one request.
func (s *site) chargesRedirectsOnce(t *testing.T, word string) {
	s.startBridge(t, onError(word))
	s.isDecided(t)
	remaining := func(path string) int {
		a := s.get(t, path)
		n, err := strconv.Atoi(a.header.Get("X-RateLimit-Remaining"))
		if err != nil || a.status != http.StatusOK || a.body != "ok" {
			t.Fatalf("%s: status %d, %v, %q", path, a.status, a.header, a.body)
		}
		return n
	}
	before := remaining("/")
	for i, path := range []string{"/redirected/1", "/redirected/2", "/redirected/1", "/"} {
		if got, want := remaining(path), before-i-1; got != want {
			t.Errorf("after %s %d remain, want %d", path, got, want)
		}
	}
}

// limits: there is no trouble.
func (s *site) limits(t *testing.T, word string) {
	s.startBridge(t, anew(onError(word)))
	s.holdsAgain(t)
}

const bridgeToken = "0123456789abcdef"

func (s *site) showsItsToken(t *testing.T, word string) {
	s.startBridge(t, anew(onError(word)), "--token", bridgeToken)
	s.holdsAgain(t)
}

// showsAWrongToken: the bridge tells nothing, and decides nothing.
func (s *site) showsAWrongToken(t *testing.T, word string) {
	b := newBridge(t, onError(word), "--token", bridgeToken)
	b.listen = s.bridge
	b.run(t)
	s.goesWithoutPolicy(t, word)
}
