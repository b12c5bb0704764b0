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

	"github.com/penstock/penstock/internal/test/eventually"
)

// longDeadline is for tests in which the bridge may be slow but deadlines do not matter.
const longDeadline = "deadline: 10s"

// relaxedDeadline is for tests in which the bridge answers at once, because on a busy machine even
// that may take more than 50 ms.
const relaxedDeadline = "deadline: 500ms"

// trouble is a failure of the bridge or of the connection to it.
type trouble struct {
	name string
	site site
	held bool   // the filter's configuration contains the policy
	only string // the on_error mode to test; "" means both
	run  func(s *site, t *testing.T, word string)
}

// troubles holds the troubles, most of which are tested under both on_error modes. Each group has
// its own Envoy, and the groups run in parallel. The troubles of a group are tested one after the
// other, because Envoy's statistics are for all sites together.
var troubles = []struct {
	group string
	of    []trouble
}{
	{group: "away", of: []trouble{
		{name: "bridge absent at start", run: (*site).isAbsentAtStart},
		{name: "outages", run: (*site).outlivesOutages},
		{name: "outages, HTTP 2", site: site{cluster: http2Cluster}, only: examOr("", "deny"), run: (*site).outlivesOutages},
		{name: "one of several bridges", site: site{cluster: severalCluster, set: longDeadline}, only: "deny", run: (*site).testOtherBridge},
	}},
	{group: "useless", of: []trouble{
		{name: "useless answers", site: site{set: relaxedDeadline}, only: examOr("", "allow"), run: (*site).survivesUselessAnswers},
	}},
	{group: "useless over HTTP 2", of: []trouble{
		{name: "useless answers, HTTP 2", site: site{cluster: http2Cluster, set: relaxedDeadline}, only: examOr("", "deny"), run: (*site).survivesUselessAnswers},
	}},
	{group: "throttled", of: []trouble{
		{name: "clients that wait their turn", site: site{set: "deadline: 3s"}, only: "deny", run: (*site).answersThrottled},
		{name: "clients that wait their turn, HTTP 2", site: site{cluster: http2Cluster, set: "deadline: 3s"}, only: "allow", run: (*site).answersThrottled},
		{name: "many that wait their turn", site: site{set: longDeadline}, only: "allow", run: (*site).decidesBesideThrottled},
	}},
	{group: "others", of: []trouble{
		{name: "useless policy", site: site{set: longDeadline}, run: (*site).keepsItsPolicy},
		{name: "clients that leave", site: site{set: longDeadline}, run: (*site).forgetsClients},
		{name: "clients that leave, HTTP 2", site: site{cluster: http2Cluster, set: longDeadline}, only: examOr("", "deny"), run: (*site).forgetsClients},
		{name: "internal redirects", site: site{set: longDeadline}, run: (*site).chargesRedirectsOnce},
		{name: "after a silence", site: site{set: "deadline: 4s"}, only: "allow", run: (*site).keepsDeadlinesAfterSilence},
		{name: "many that wait their turn, HTTP 2", site: site{cluster: http2Cluster, set: longDeadline}, only: "deny", run: (*site).decidesBesideThrottled},
		{name: "settings as an object", site: site{object: true, set: longDeadline + "\nxff_appended: true"}, run: (*site).limits},
		{name: "token", site: site{set: longDeadline + "\ntoken: " + bridgeToken}, run: (*site).checkToken},
		{name: "wrong token", site: site{set: "token: not-" + bridgeToken}, run: (*site).showsAWrongToken},
		{name: "no endpoints", site: site{cluster: emptyCluster}, run: (*site).goesWithoutPolicy},
		{name: "no endpoints, policy held", site: site{cluster: emptyCluster}, held: true, run: (*site).goesWithoutBridge},
		{name: "unknown cluster", site: site{named: "nowhere"}, run: (*site).goesWithoutPolicy},
		{name: "unknown cluster, policy held", site: site{named: "nowhere"}, held: true, run: (*site).goesWithoutBridge},
		{name: "circuit breaker full", site: site{cluster: fullCluster}, run: (*site).goesWithoutPolicy},
		{name: "circuit breaker full, HTTP 2", site: site{cluster: fullHTTP2Cluster}, held: true, run: (*site).goesWithoutBridge},
		{name: "circuit breaker full, policy held", site: site{cluster: fullCluster}, held: true, run: (*site).goesWithoutBridge},
	}},
}

// Clusters through which no call succeeds.
const emptyCluster = `{name: NAME, type: STATIC, connect_timeout: 0.25s, load_assignment: {cluster_name: NAME, endpoints: []}}`

var fullCluster, fullHTTP2Cluster = strings.ReplaceAll(bridgeCluster, "65536", "0"), strings.ReplaceAll(http2Cluster, "65536", "0")

// TestEnvoyTroubles tests that requests are answered soon, whatever happens to the bridge and to
// Redis. Depending on on_error, the answer comes from the upstream or is 503, and the reason is
// counted. Afterwards limits are enforced again without intervention. An Envoy has a site for each
// trouble of a group, because Envoys are slow to start.
func TestEnvoyTroubles(t *testing.T) {
	t.Parallel()
	held := map[string]string{"allow": compactPolicy(t, renamedPolicy(onError("allow"))), "deny": compactPolicy(t, onError("deny"))}
	for _, group := range troubles {
		t.Run(group.group, func(t *testing.T) {
			t.Parallel()
			tryTroubles(t, group.of, held)
		})
	}
}

// tryTroubles tests the troubles of a group one after the other in one Envoy. The argument named
// held has the policies, by on_error mode, that some filters have in their configuration.
func tryTroubles(t *testing.T, group []trouble, held map[string]string) {
	var sites []*site
	for _, trouble := range group {
		for _, word := range words(trouble.only) {
			s := trouble.site
			s.set += "\non_error: " + word
			if trouble.held {
				s.set += "\npolicy: " + held[word]
			}
			sites = append(sites, &s)
		}
	}
	useEnvoy(t, http.HandlerFunc(serveRedirects), sites...)
	for _, trouble := range group {
		for _, word := range words(trouble.only) {
			s := sites[0]
			sites = sites[1:]
			t.Run(trouble.name+"/"+word, func(t *testing.T) { trouble.run(s, t, word) })
		}
	}
}

// words returns the on_error modes to test.
func words(only string) []string {
	if only != "" {
		return []string{only}
	}
	return []string{"allow", "deny"}
}

// outagePolicy has windows that are longer than any test.
const outagePolicy = `name: shop
on_error: ON_ERROR
rules: [{name: all, limit: 100/31d}]
`

// onError returns outagePolicy with the given on_error mode.
func onError(word string) string { return strings.ReplaceAll(outagePolicy, "ON_ERROR", word) }

var policies atomic.Int64

// renamedPolicy gives a policy another namespace, and thereby counters of its own. Otherwise the
// sites of an Envoy would share the counts of requests that are allowed without a bridge.
func renamedPolicy(policy string) string {
	return strings.Replace(policy, "name: shop", "name: shop-"+strconv.FormatInt(policies.Add(1), 10), 1)
}

// compactPolicy returns a policy in the form in which a bridge sends it, in base64.
func compactPolicy(t testing.TB, policy string) string {
	t.Helper()
	b := newBridge(t, policy)
	b.run(t)
	a, err := ask(&http.Client{Transport: b.transport()}, "http://bridge/v1/policy")
	if err != nil || a.status != http.StatusOK {
		t.Fatal(a.status, err)
	}
	return base64.StdEncoding.EncodeToString([]byte(a.body))
}

// isAbsentAtStart tests that on_error decides all requests before the first bridge has started.
// After that, the limit applies.
func (s *site) isAbsentAtStart(t *testing.T, word string) {
	s.goesWithoutPolicy(t, word)
	s.startBridge(t, renamedPolicy(onError(word)))
	s.awaitLimit(t)
}

// goesWithoutPolicy tests a filter that has never received a policy.
func (s *site) goesWithoutPolicy(t *testing.T, word string) {
	s.checkWithoutBridge(t, word, "no_policy")
}

// goesWithoutBridge tests a filter that has a policy but no bridge.
func (s *site) goesWithoutBridge(t *testing.T, word string) {
	s.checkWithoutBridge(t, word, "bridge_unreachable", "breaker_open")
}

// checkWithoutBridge checks that on_error decides every request soon, and that each request is
// counted in one of the given counters.
func (s *site) checkWithoutBridge(t *testing.T, word string, counters ...string) {
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
		s.checkDegraded(t, s.get(t, "/"), word)
		if took := time.Since(start); took > answerWithin {
			t.Errorf("an answer took %v", took)
		}
	}
	if grown := count() - before; grown != requests {
		t.Errorf("%d of %d requests were counted as %v", grown, requests, counters)
	}
}

// checkDegraded checks an answer that on_error has decided.
func (s *site) checkDegraded(t *testing.T, a answer, word string) {
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

// awaitLimit waits until requests are counted again, and sends requests until the limit denies one.
// On a busy machine, some of these may be decided without the bridge.
func (s *site) awaitLimit(t *testing.T) {
	t.Helper()
	s.awaitDecided(t)
	s.limited = either(s.limited, "/")
	admitted := 0
	eventually.Until(t, envoyPatience, "the limit holds again", func() bool {
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

// manyInARow is so many connections that each of the two workers almost certainly gets one of them.
// The kernel chooses the worker for each connection.
const manyInARow = 24

// awaitDecided waits until the bridge decides requests of both workers.
func (s *site) awaitDecided(t *testing.T) {
	t.Helper()
	s.awaitBothWorkers(t, "requests are counted again", func(a answer) bool { return a.header.Get("RateLimit") != "" })
}

// awaitBothWorkers waits until both workers give the expected answer.
func (s *site) awaitBothWorkers(t *testing.T, what string, wanted func(answer) bool) {
	t.Helper()
	inARow := 0
	eventually.Until(t, envoyPatience, what, func() bool {
		// Each connection may reach another worker.
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		a, err := ask(fresh, "http://"+s.address+"/")
		if inARow++; err != nil || !wanted(a) {
			inARow = 0
		}
		return inARow == manyInARow
	})
}

// keepsItsPolicy tests that the bridge rejects an invalid edit of its policy file, and the limit
// stays in force. A valid edit takes effect.
func (s *site) keepsItsPolicy(t *testing.T, word string) {
	b := s.startBridge(t, onError(word))
	policyOf := func() string { return s.get(t, "/").header.Get("RateLimit-Policy") }
	const before, after = `"all";q=100;w=2678400`, `"all";q=200;w=2678400`
	s.awaitDecided(t)
	b.policy.edit("name: shop\nrules: [{name: all, limit: 100/minute}]\n")
	eventually.Until(t, patience, "the bridge refuses the file", func() bool {
		return strings.Contains(b.log.String(), "the edited policy file is rejected")
	})
	if got := policyOf(); got != before {
		t.Errorf("with a wrong policy file the policy is %s, want %s", got, before)
	}
	s.envoy.awaitPolicyLoad(t, func() { b.policy.edit(strings.Replace(onError(word), "100/31d", "200/31d", 1)) })
	if got := policyOf(); got != after {
		t.Errorf("after the edit the policy is %s, want %s", got, after)
	}
}

// forgetsClients tests that clients which leave while they wait do not affect the clients that
// stay.
func (s *site) forgetsClients(t *testing.T, word string) {
	const leaving, staying = 200, 16
	b := s.startBridge(t, strings.Replace(onError(word), "100/31d", "100000/31d", 1))
	s.awaitDecided(t)
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
	eventually.Until(t, patience, "all wait", func() bool { return waiting() == leaving+staying })
	for _, connection := range gone {
		connection.Close()
	}
	eventually.Until(t, patience, "those who left are gone", func() bool { return waiting() == staying })
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

// serveRedirects is an upstream that redirects /redirected/N to /redirected/N-1, until N is 0.
// Envoy follows these redirects. The upstream answers all other requests.
func serveRedirects(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/redirected/"))
	if err != nil || n == 0 {
		_, _ = io.WriteString(w, "ok")
		return
	}
	w.Header().Set("Location", fmt.Sprintf("http://%s/redirected/%d", r.Host, n-1))
	w.WriteHeader(http.StatusFound)
}

// chargesRedirectsOnce tests that a request is charged once even if Envoy redirects it internally.
func (s *site) chargesRedirectsOnce(t *testing.T, word string) {
	s.startBridge(t, onError(word))
	s.awaitDecided(t)
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

// site.limits tests the site without any trouble.
func (s *site) limits(t *testing.T, word string) {
	s.startBridge(t, renamedPolicy(onError(word)))
	s.awaitLimit(t)
}

const bridgeToken = "0123456789abcdef"

func (s *site) checkToken(t *testing.T, word string) {
	s.startBridge(t, renamedPolicy(onError(word)), "--token", bridgeToken)
	s.awaitLimit(t)
}

// showsAWrongToken tests a bridge with a token that the filter does not have. The bridge sends no
// policy to the filter, and decides nothing.
func (s *site) showsAWrongToken(t *testing.T, word string) {
	b := newBridge(t, onError(word), "--token", bridgeToken)
	b.listen = s.bridge
	b.run(t)
	s.goesWithoutPolicy(t, word)
}
