// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// sharedAndOwn holds sites in which a limit of 10 that all clients share comes before a client's
// own limit of 3. GLOBAL stands for a global option with the limit of 10, which comes before all
// directives of a site.
var sharedAndOwn = map[string]string{
	"lines":                                  "penstock 10/30d {\n per []\n}\n penstock 3/30d",
	"blocks":                                 "penstock {\n name one\n rule everyone 10/30d {\n per []\n}\n}\n penstock {\n name two\n rule own 3/30d\n}",
	"route":                                  "route {\n penstock 10/30d {\n per []\n}\n penstock 3/30d\n}",
	"global policy with a path and a line":   "GLOBAL penstock 3/30d\n penstock /x* 1000/30d",
	"global policy with a method and a line": "GLOBAL @get method GET\n penstock @get 1000/30d\n penstock 3/30d",
	"two paths":                              "penstock /xyz* 10/30d {\n per []\n}\n penstock /x* 3/30d",
	"handle":                                 "penstock 10/30d {\n per []\n}\n handle /other {\n penstock 1000/30d\n}\n handle {\n penstock 3/30d\n}",
	"a path in handle":                       "penstock 10/30d {\n per []\n}\n handle {\n @x path /x*\n penstock @x 3/30d\n}",
	"out of a route":                         "route {\n route {\n penstock 10/30d {\n per []\n}\n}\n penstock 3/30d\n}",
	"after a handle of another path":         "penstock 10/30d {\n per []\n}\n handle /other* {\n respond other\n}\n handle {\n penstock 3/30d\n}",
	"after a directive for another path":     "route {\n penstock 10/30d {\n per []\n}\n respond /other* other\n penstock 3/30d\n}",
	"after a handle of the same site":        "route {\n handle {\n penstock 10/30d {\n per []\n}\n}\n penstock 3/30d\n}",
}

// TestALaterDenialChargesNothing: a client that is over its own limit does not use up a limit that
// all clients share, whatever the order of the directives.
func TestALaterDenialChargesNothing(t *testing.T) {
	redis := redistest.Start(t)
	for _, store := range []string{"memory", "redis " + redis.URL()} {
		for name, site := range sharedAndOwn {
			word, _, _ := strings.Cut(store, " ")
			t.Run(word+"/"+name, func(t *testing.T) {
				rule := ""
				if rest, ok := strings.CutPrefix(site, "GLOBAL "); ok {
					site, rule = rest, "rule everyone 10/30d {\n per []\n}\n"
				}
				s := start(t, fmt.Sprintf("{\n servers {\n trusted_proxies static 127.0.0.0/8\n trusted_proxies_strict\n}\n "+
					"penstock {\n name %s\n store %s\n %s}\n}\n:PORT {\n %s\n respond ok\n}", strings.ReplaceAll(name, " ", "-"), store, rule, site))
				s.wantShared(t)
			})
		}
	}
}

// server.wantShared lets a client use its own limit and then ask again and again, while 7 others
// send a request each.
func (s *server) wantShared(t *testing.T) {
	t.Helper()
	equal(t, "a client", s.statuses(5, "/xyz", "X-Forwarded-For", "192.0.2.1"), "200 200 200 429 429")
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for range 20 {
				r, _ := http.NewRequest(http.MethodGet, "http://127.0.0.1:"+strconv.Itoa(s.port)+"/xyz", nil)
				r.Header.Set("X-Forwarded-For", "192.0.2.1")
				if response, err := client.Do(r); err != nil {
					t.Error(err)
				} else if response.Body.Close(); response.StatusCode != http.StatusTooManyRequests {
					t.Errorf("the client over its limit got %d", response.StatusCode)
				}
			}
		})
	}
	for i := range 7 {
		equal(t, "another", s.statuses(1, "/xyz", "X-Forwarded-For", fmt.Sprintf("192.0.2.%d", 10+i)), "200")
	}
	group.Wait()
	equal(t, "one more than the shared limit", s.statuses(1, "/xyz", "X-Forwarded-For", "192.0.2.99"), "429")
}

// TestTooManyChecksChargeNothing: a client that makes its request need more checks than one call of
// the store accepts, by a path with two endpoints, uses up no limit of an earlier directive.
func TestTooManyChecksChargeNothing(t *testing.T) {
	var many strings.Builder
	for i := range 32 {
		fmt.Fprintf(&many, "rule r%d 1000/30d {\n match path /a/* /b/*\n per client endpoint\n}\n", i)
	}
	s := start(t, ":PORT {\n penstock 3/30d {\n per []\n}\n penstock {\n name many\n "+many.String()+"}\n respond ok\n}")
	equal(t, "two endpoints", s.statuses(5, "/a/..;/b/x"), "503 503 503 503 503")
	equal(t, "one endpoint", s.statuses(4, "/a/x"), "200 200 200 429")
}

// TestLaterHandlersDecideWhatTheyMust: a handler decides by itself if it needs the decision of an
// earlier one, or if another directive is in between.
func TestLaterHandlersDecideWhatTheyMust(t *testing.T) {
	for name, c := range map[string]struct{ site, want string }{
		"a matcher reads the decision": {"@allowed vars {http.penstock.decision} allowed\n route {\n penstock 10/30d\n penstock @allowed 2/30d\n}",
			"200 200 429"},
		"a matcher needs another decision": {"@denied vars {http.penstock.decision} none\n route {\n penstock 3/30d\n penstock @denied 1/30d\n}",
			"200 200 200 429"},
		"a rule reads the decision": {"route {\n penstock 10/30d\n penstock {\n rule own 2/30d {\n match attr http.penstock.decision allowed\n}\n}\n}",
			"200 200 429"},
		"another directive is in between": {"route {\n penstock 10/30d\n vars x y\n @x vars x y\n penstock @x 2/30d\n}",
			"200 200 429"},
		"a matcher that does not match": {"route {\n penstock 3/30d\n penstock /other 1/30d\n}", "200 200 200 429"},
		"only one of a group": {"penstock 10/30d\n handle /* {\n penstock 3/30d\n}\n handle {\n penstock 1/30d\n}",
			"200 200 200 429"},
		"a group that was left": {"route {\n handle /* {\n penstock 3/30d\n}\n handle {\n penstock 1/30d\n}\n}",
			"200 200 200 429"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, ":PORT {\n "+c.site+"\n respond ok\n}")
			equal(t, "statuses", s.statuses(strings.Count(c.want, " ")+1, "/a"), c.want)
		})
	}
}

// TestCandidatesOfALaterHandlerSeeDenials: the candidate of a later handler is tried on requests
// that the first handler denies because of a later rule.
func TestCandidatesOfALaterHandlerSeeDenials(t *testing.T) {
	path := filepath.Join(t.TempDir(), "candidate.yaml")
	write(t, path, "rules: [{name: own, limit: 100/1h}]\n")
	s := start(t, ":PORT {\n penstock 100/1h\n penstock {\n name later\n shadow policy "+path+"\n rule own 1/1h\n}\n respond ok\n}")
	seen := s.counts()
	equal(t, "statuses", s.statuses(3, "/"), "200 429 429")
	seen.awaitGrown(t, `penstock_shadow_decisions_total{candidate="admitted",policy="later.shadow",present="refused"}`, 2)
	seen.awaitGrown(t, `penstock_shadow_decisions_total{candidate="admitted",policy="later.shadow",present="admitted"}`, 1)
}

// TestAHandlerOfErrorsDecidesLater: directives in error routes are decided together, too.
func TestAHandlerOfErrorsDecidesLater(t *testing.T) {
	s := start(t, `:PORT {
		penstock 100/30d
		error * 404
		handle_errors {
			penstock 10/30d {
				per []
			}
			penstock 3/30d
			respond "{err.status_code}"
		}
	}`)
	var got []string
	for range 12 {
		r := s.get("/")
		got = append(got, strconv.Itoa(r.StatusCode))
	}
	if r := s.get("/"); !strings.Contains(r.body, `"violated-policies":["default-3"]`) {
		t.Errorf("the shared limit was used up by %q: %s", got, r.body)
	}
}

// TestALaterHandlerUsesNoTurnOfAShard: if a later handler decides by itself after all, each request
// takes one turn of the first handler's shards, so all of them are used.
func TestALaterHandlerUsesNoTurnOfAShard(t *testing.T) {
	s := start(t, `:PORT {
		route {
			penstock {
				rule everyone 8/30d fixed_window {
					per []
					shards 2
				}
			}
			penstock {
				name two
				rule own 1000/30d {
					match attr http.penstock.decision allowed
				}
			}
		}
		respond ok
	}`)
	equal(t, "statuses", s.statuses(9, "/"), "200 200 200 200 200 200 200 200 429")
}

// TestErrorRoutesOfASubroute: the error routes of a subroute answer the requests that a handler in
// the subroute denies, and no others.
func TestErrorRoutesOfASubroute(t *testing.T) {
	const (
		open   = `{"handler":"penstock","name":"open","rules":[{"name":"all","limit":"100/1d"}]}`
		closed = `{"handler":"penstock","name":"closed","rules":[{"name":"own","limit":"1/1d"}]}`
		errors = `"errors":{"routes":[{"handle":[{"handler":"static_response","status_code":429,"body":"page"}]}]}`
		apart  = `{"handler":"subroute","routes":[{"handle":[%s]}],` + errors + `}`
	)
	for name, c := range map[string]struct{ handlers, inPage string }{
		"the later handler is inside":  {open + "," + fmt.Sprintf(apart, closed), "true"},
		"the later handler is outside": {fmt.Sprintf(apart, open) + "," + closed, "false"},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, "{\n admin off\n}")
			if err := s.loadJSON(fmt.Appendf(nil, `{"apps":{"http":{"servers":{"srv0":{"listen":[":%d"],"automatic_https":{"disable":true},`+
				`"routes":[{"handle":[%s,{"handler":"static_response","body":"ok"}]}]}}}}}`, s.port, c.handlers)); err != nil {
				t.Fatal(err)
			}
			equal(t, "statuses", s.statuses(2, "/"), "200 429")
			equal(t, "the page answers", strconv.FormatBool(s.get("/").body == "page"), c.inPage)
		})
	}
}
