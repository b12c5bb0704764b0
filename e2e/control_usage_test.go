// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"compress/gzip"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// nodeToken creates a token for nodes, and returns the path of a file that contains it.
func (c *controlPlane) nodeToken() (file string) {
	c.t.Helper()
	status, text := c.send("POST", "/v1/tokens", `{"name":"nodes","role":"node","expires_at":"`+instantInAnHour()+`","reason":"a test"}`)
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(text), &made); err != nil || status != http.StatusCreated {
		c.t.Fatalf("%d %s %v", status, text, err)
	}
	file = filepath.Join(c.t.TempDir(), "node-token")
	writeFile(c.t.(*testing.T), file, made.Secret+"\n")
	return file
}

// usedRow is a row of usage.
type usedRow struct {
	Client, Policy, Rule, Tier string
	Admitted, Denied, Units    int
}

// controlPlane.usage returns the rows of this month's usage that match the query.
func (c *controlPlane) usage(query string) (rows []usedRow) {
	c.t.Helper()
	status, text := c.send("GET", "/v1/usage?"+query, "")
	var answer struct{ Usage []usedRow }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK {
		c.t.Fatalf("%d %s %v", status, text, err)
	}
	return answer.Usage
}

// awaitUsage waits until the sums over all clients under a rule have the wanted values. It fails
// the test if the sums exceed these values.
func (c *controlPlane) awaitUsage(rule string, want usedRow) {
	c.t.Helper()
	var sum usedRow
	defer func() {
		if c.t.Failed() {
			c.t.Logf("the usage under %s is %+v", rule, sum)
		}
	}()
	eventually.Until(c.t, controlPatience, fmt.Sprintf("the usage under %s is %+v", rule, want), func() bool {
		sum = usedRow{}
		for _, row := range c.usage("rule=" + rule) {
			sum.Admitted, sum.Denied, sum.Units = sum.Admitted+row.Admitted, sum.Denied+row.Denied, sum.Units+row.Units
		}
		return sum.Admitted >= want.Admitted && sum.Denied >= want.Denied
	})
	if sum != want {
		c.t.Fatalf("the usage under %s is %+v, want %+v", rule, sum, want)
	}
}

// awaitEndpoint waits until the metrics of a path pattern report the wanted numbers of decisions,
// and a latency.
func (c *controlPlane) awaitEndpoint(rule, endpoint string, admitted, denied int) {
	c.t.Helper()
	eventually.Until(c.t, controlPatience, fmt.Sprintf("%s %s has %d and %d", rule, endpoint, admitted, denied), func() bool {
		status, text := c.send("GET", "/v1/metrics/endpoints?granularity=day&rule="+rule, "")
		var answer struct {
			Endpoints []struct {
				Endpoint         string
				Admitted, Denied int
				P50              float64 `json:"p50_us"`
				P99              float64 `json:"p99_us"`
			}
		}
		if err := json.Unmarshal([]byte(text), &answer); err != nil || status != http.StatusOK {
			c.t.Fatalf("%d %s %v", status, text, err)
		}
		a, d := 0, 0
		for _, e := range answer.Endpoints { // there are two entries if midnight has passed during the test
			if e.Endpoint != endpoint || e.P99 <= 0 || e.P50 > e.P99 {
				c.t.Fatalf("%+v", e)
			}
			a, d = a+e.Admitted, d+e.Denied
		}
		return a == admitted && d == denied
	})
}

const tellingCaddyfile = `{
	admin ADMIN
	penstock {
		name shop
		region eu
		control CONTROL {
			token_file TOKEN
			spool SPOOL
		}
		events
		identify header X-User {
			unverified
		}
	}
}
:SITE {
	penstock {
		name shop
		rule api 5/31d {
			match path /api
			cost 2
		}
		rule priced 1000/31d {
			match path /priced
			cost_after header X-Cost {
				estimate 10
			}
		}
	}
	header X-Cost 3
	respond "ok"
}
`

// TestUsageIsExactInPostgreSQL tests that PostgreSQL has exactly the requests that a Caddy admitted
// and denied, although the control plane, PostgreSQL and the Caddy are killed one after the other.
func TestUsageIsExactInPostgreSQL(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.Start(t), redistest.Start(t)
	control := startControl(t, database.URL(), redis.URL(), "")
	spool := filepath.Join(t.TempDir(), "spool")
	caddyfile := strings.NewReplacer("CONTROL", "http://"+control.address, "TOKEN", control.nodeToken(), "SPOOL", spool).Replace(tellingCaddyfile)
	node := startCaddy(t, caddyfile)
	node.statuses("ann", 10) // 2 of the requests are admitted, with 2 units each
	control.awaitUsage("api", usedRow{Admitted: 2, Denied: 8, Units: 4})
	if rows := control.usage("client=header.x-user:ann"); len(rows) != 1 || rows[0] != (usedRow{"header.x-user:ann", "shop", "api", "", 2, 8, 4}) {
		t.Errorf("the usage of a client is %+v", rows)
	}
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, control.token+"\n")
	asked := []string{"--control", "http://" + control.address, "--control-token-file", file}
	shown := penstock(t, append(asked, "usage", "--by", "region", "--region", "eu", "--format", "csv")...).mustSucceed(t)
	if !strings.Contains(shown, ",header.x-user:ann,shop,api,,2,8,4,eu\r\n") {
		t.Errorf("the usage in the region eu is\n%s", shown)
	}
	eventually.Until(t, controlPatience, "events in the region eu arrive, perhaps after the usage", func() bool {
		status, text := control.send("GET", "/v1/events?region=eu&limit=1", "")
		return status == http.StatusOK && strings.Contains(text, `"region":"eu"`)
	})

	control.awaitEndpoint("api", "/api", 2, 8)

	node.write(strings.Replace(caddyfile, "events", "events {\n\t\t\tip none\n\t\t}", 1))
	if err := node.reload(); err != nil { // meanwhile the previous configuration still has the spool open
		t.Fatal(err)
	}
	for range 4 {
		node.ask(t.Context(), "GET", "/priced", "X-User", "carl")
	}
	// Each response reports a cost of 3 units. For each request, 10 were reserved.
	eventually.Until(t, controlPatience, "what responses cost is in the usage", func() bool {
		rows := control.usage("rule=priced")
		return len(rows) == 1 && rows[0] == usedRow{"header.x-user:carl", "shop", "priced", "", 4, 0, 12}
	})

	control.kill()
	node.statuses("bob", 7)
	database.Kill()
	awaitSpooled(t, spool, "header.x-user:bob", 7)
	node.kill() // the spool keeps its contents
	database.Restart()
	control = startControlAt(t, control.address, database.URL(), redis.URL(), control.token)
	node = startCaddy(t, caddyfile)
	control.awaitUsage("api", usedRow{Admitted: 4, Denied: 13, Units: 8})
	node.statuses("ann", 5) // the counters begin anew, because they were in the memory of the first process
	control.awaitUsage("api", usedRow{Admitted: 6, Denied: 16, Units: 12})
	checkReports(t, control)
}

// awaitSpooled waits until the usage in the spool contains the given number of requests of a
// client.
func awaitSpooled(t *testing.T, spool, client string, requests int) {
	t.Helper()
	eventually.Until(t, controlPatience, "usage is in the spool", func() bool {
		found := 0
		files, err := filepath.Glob(filepath.Join(spool, "*.batch"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for line := range strings.Lines(readGzip(t, file)) {
				var l struct {
					Kind, Client     string
					Admitted, Denied int
				}
				if err := json.Unmarshal([]byte(line), &l); err != nil {
					t.Fatal(err)
				}
				if l.Kind == "usage" && l.Client == client {
					found += l.Admitted + l.Denied
				}
			}
		}
		return found == requests
	})
}

// checkReports compares the output of commands with the requests that TestUsageIsExactInPostgreSQL
// has sent.
func checkReports(t *testing.T, control *controlPlane) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, control.token+"\n")
	ask := func(args ...string) string {
		t.Helper()
		got := penstock(t, append(args, "--control", "http://"+control.address, "--control-token-file", file)...)
		if got.status != 0 {
			t.Fatalf("%v: %+v", args, got)
		}
		return got.out
	}
	rows, err := csv.NewReader(strings.NewReader(ask("usage", "--format", "csv", "--rule", "api"))).ReadAll()
	if err != nil || len(rows) != 3 || strings.Join(rows[1][1:], " ") != "header.x-user:ann shop api  4 11 8" ||
		strings.Join(rows[2][1:], " ") != "header.x-user:bob shop api  2 5 4" {
		t.Errorf("usage as CSV: %q %v", rows, err)
	}
	if got := strings.Fields(ask("top", "--since", "2h")); strings.Join(got[5:], " ") != "RULE 11 header.x-user:ann shop api 5 header.x-user:bob shop api" {
		t.Errorf("top: %q", got)
	}
	var events struct{ Events []eventLine }
	_, text := control.send("GET", "/v1/events?kind=denied&client=header.x-user:bob", "")
	if err := json.Unmarshal([]byte(text), &events); err != nil || len(events.Events) == 0 {
		t.Fatalf("%s: %v", text, err)
	}
	denied := 0
	for _, e := range events.Events {
		denied += e.Count
	}
	if denied != 5 || events.Events[0].Rule != "api" || events.Events[0].Status != 429 {
		t.Errorf("the events of a client are %+v", events.Events)
	}
	for _, granularity := range []string{"minute", "hour", "day"} {
		var sums struct{ Metrics []usedRow }
		_, text := control.send("GET", "/v1/metrics?granularity="+granularity, "")
		if err := json.Unmarshal([]byte(text), &sums); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		units := 0
		for _, sum := range sums.Metrics {
			units += sum.Units
		}
		if units != 24 {
			t.Errorf("the sums by %s have %d units", granularity, units)
		}
	}
}

// TestABridgeTellsAControlPlane tests that PostgreSQL has all requests that the filter and the rate
// limit service admitted or denied, including the denials that the filter decided by itself.
func TestABridgeTellsAControlPlane(t *testing.T) {
	t.Parallel()
	database, redis := pgtest.Database(t), redistest.Start(t)
	control := startControl(t, database, redis.URL(), "")
	token, one := control.nodeToken(), new(site)
	e := useEnvoy(t, nil, one)
	b := newBridge(t, "name: shop\nevents: {}\nidentify: [{header: {name: X-User, unverified: true}}]\nrules: [{name: api, limit: 5/31d}]\n",
		"--redis", redis.URL(), "--control", "http://"+control.address, "--control-token-file", token, "--spool", filepath.Join(t.TempDir(), "spool"))
	b.listen = one.bridge
	e.awaitPolicyLoad(t, func() { b.run(t) })
	const requests = 40
	admitted := 0
	for range requests {
		if one.get(t, "/api", "X-User", "ann").status == http.StatusOK {
			admitted++
		}
	}
	if admitted != 5 {
		t.Fatalf("%d requests were admitted", admitted)
	}
	control.awaitUsage("api", usedRow{Admitted: admitted, Denied: requests - admitted, Units: admitted})
}

// TestATokenOfANodeOnlySends tests that with the token of a node, a caller can change nothing, and
// can read nothing but published policies. Other tokens cannot send events or usage. An invalid
// batch changes nothing.
func TestATokenOfANodeOnlySends(t *testing.T) {
	t.Parallel()
	control := startControl(t, pgtest.Database(t), redistest.Start(t).URL(), "")
	text, err := os.ReadFile(control.nodeToken())
	if err != nil {
		t.Fatal(err)
	}
	admin, node := control.token, strings.TrimSpace(string(text))
	batch := "/v1/batches/" + strings.Repeat("0", 32) + "/1"
	for _, c := range []struct {
		token, method, path, body string
		status                    int
	}{
		{node, "GET", "/v1/usage", "", 403},
		{node, "GET", "/v1/clients", "", 403},
		{node, "GET", "/v1/policies", "", 403},
		{node, "GET", "/v1/policies/shop", "", 403},
		{node, "GET", "/v1/policies/shop/published", "", 404},
		{node, "POST", "/v1/clients/user:x/edits", `{"action":"block","reason":"x"}`, 403},
		{node, "GET", "/v1/tokens", "", 403},
		{admin, "PUT", batch, "{}", 403},
		{"pst_stolen", "PUT", batch, "{}", 401},
		{node, "PUT", batch, "{}", 422},
		{node, "PUT", "/v1/batches/..%2f..%2fetc/1", "{}", 422},
	} {
		control.token = c.token
		if status, text := control.send(c.method, c.path, c.body); status != c.status {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, status, text, c.status)
		}
	}
	if control.token = admin; len(control.usage("")) != 0 {
		t.Error("a denied batch is in the tables")
	}
}

// instantInAnHour returns the time in an hour, in the form that the API expects.
func instantInAnHour() string { return time.Now().Add(time.Hour).UTC().Format(time.RFC3339) }

// readGzip returns the text of a compressed file. It returns "" if the file has just been sent and
// removed.
func readGzip(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
