// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/s3test"
)

// companyCustomers is the number of customers that the company imports.
const companyCustomers = 2000

// companyPolicy returns the policy of the company. The argument pro is the limit of the tier pro.
// The windows are so long that midnight during the test has no effect, except on the last day of a
// window.
func companyPolicy(pro string) string {
	return "name: shop\ndirectory: true\nevents: {denied: all}\nidentify: [{header: {name: X-User, unverified: true}}, ip]\n" +
		"rules: [{name: api, limit: 3/31d, tiers: {pro: " + pro + ", enterprise: unlimited}}]\n"
}

// used counts the answers that a customer received from the nodes.
type used struct{ admitted, denied int }

// company is a company with a control plane, two Caddys and an archive. It also records what the
// test did.
type company struct {
	*policyPlane
	database string
	s3       *s3test.Server
	nodes    []*process
	used     map[string]used // by customer
	names    []string        // pairs for strings.NewReplacer: a text of this run, and what replaces it in the transcript
	told     strings.Builder
}

// TestTheStoryOfACompany acts out the story of a company with three tiers and 2,000 customers. One
// customer upgrades, another gets a higher limit until Friday, and an abuser is found and blocked.
// A bad policy is withdrawn automatically. The bill has exactly the requests that the nodes
// answered. An old month is archived, verified and restored, and the history is as it was written.
func TestTheStoryOfACompany(t *testing.T) {
	t.Parallel()
	c := startCompany(t)
	defer func() { t.Logf("the transcript:\n%s", c.told.String()) }()
	c.opens()
	c.upgrades()
	c.grantsUntilFriday()
	c.blocksAnAbuser()
	c.publishesABadPolicy()
	c.bills()
	c.archives()
	if out := c.run("control", "audit", "verify"); !strings.Contains(out, "changes are as they were written") {
		t.Error(out)
	}
}

func startCompany(t *testing.T) *company {
	t.Helper()
	c := &company{database: pgtest.Database(t), s3: s3test.Start(t), used: map[string]used{}}
	c.policyPlane = startPoliciesOf(t, c.database)
	c.names = []string{"http://" + c.address, "http://control:7070", c.folder + "/", "", c.s3.URL(), "http://s3:9000", s3test.Bucket, "events"}
	return c
}

// company.run runs a command of the company, and writes the command and its output to the
// transcript.
func (c *company) run(args ...string) string {
	c.t.Helper()
	var out, diagnostics bytes.Buffer
	command := exec.Command(penstockProgram(c.t), args...)
	command.Stdout, command.Stderr = &out, &diagnostics
	command.Env = append(append(os.Environ(), "PENSTOCK_DATABASE="+c.database, "PENSTOCK_TOKEN="+c.token), s3test.Environment()...)
	if err := command.Run(); err != nil {
		c.t.Fatalf("%v: %v: %s", args, err, diagnostics.String())
	}
	c.log("$ penstock %s\n%s", strings.Join(args, " "), out.String())
	return out.String()
}

// company.asks runs a command that calls the control plane.
func (c *company) asks(args ...string) string {
	c.t.Helper()
	return c.run(append(args, "--control=http://"+c.address)...)
}

// company.log adds a paragraph to the transcript.
func (c *company) log(format string, args ...any) {
	text := strings.NewReplacer(c.names...).Replace(fmt.Sprintf(format, args...))
	c.told.WriteString(strings.TrimRight(text, "\n") + "\n")
}

// company.ask sends a request of a customer to a node, and counts the answer.
func (c *company) ask(node *process, customer string) answer {
	c.t.Helper()
	a := node.ask(c.t.Context(), "GET", "/api", "X-User", customer)
	n := c.used[customer]
	switch a.status {
	case http.StatusOK:
		n.admitted++
	case http.StatusTooManyRequests, http.StatusForbidden:
		n.denied++
	default:
		c.t.Fatalf("%s gets %d", customer, a.status)
	}
	c.used[customer] = n
	return a
}

// company.holds waits until both nodes answer a customer with the given status and limit. If limit
// is "", any limit will do.
func (c *company) holds(customer string, status int, limit string) {
	c.t.Helper()
	began := time.Now()
	for i, node := range c.nodes {
		eventually.Until(c.t, controlPatience, fmt.Sprintf("node %d answers %s with %d and the limit %q", i, customer, status, limit), func() bool {
			a := c.ask(node, customer)
			return a.status == status && (limit == "" || a.header.Get("X-RateLimit-Limit") == limit)
		})
	}
	if limit != "" {
		limit = " and the limit " + limit
	}
	c.log("# both nodes answer %s with %d%s, after %d ms\n", customer, status, limit, time.Since(began).Milliseconds())
}

// company.opens creates the tiers, imports the customers, publishes the policy and starts the
// nodes.
func (c *company) opens() {
	t := c.t
	t.Helper()
	for _, tier := range [][2]string{{"free", "0"}, {"pro", "4900"}, {"enterprise", "99900"}} {
		c.asks("control", "tier", "put", tier[0], "--price-cents="+tier[1], "--currency=USD", "--reason=opening")
	}
	file, table := filepath.Join(c.folder, "customers.csv"), "user_id,tier\n"
	for i := range companyCustomers {
		table += fmt.Sprintf("c%d,%s\n", i, []string{"free", "free", "free", "pro", "enterprise"}[i%5])
	}
	writeFile(t.(*testing.T), file, table)
	if out := c.asks("control", "import-clients", file, "--kind=header.x-user", "--reason=opening"); !strings.Contains(out, "2000 clients have records now") {
		t.Error(out)
	}
	file = filepath.Join(c.folder, "shop.yaml")
	writeFile(t.(*testing.T), file, companyPolicy("20/31d"))
	c.asks("control", "policy", "put", file, "--reason=opening")
	c.asks("control", "policy", "publish", "--all", "--reason=opening")
	eventually.Until(t, controlPatience, "the policy is in Redis", func() bool { return c.redis.Client().Exists(t.Context(), publishedKey).Val() == 1 })
	names := map[bool]string{} // the name of a node in a share of half the nodes, and of one outside that share
	for i := 0; len(names) < 2; i++ {
		name := fmt.Sprintf("node-%d", i)
		names[published.Place("shop", name) < 5000] = name
	}
	token := c.nodeToken()
	for _, name := range []string{names[true], names[false]} {
		reports := "penstock {\n\t\tdirectory\n\t\tcontrol http://" + c.address + " {\n\t\t\ttoken_file " + token +
			"\n\t\t\tspool " + filepath.Join(c.folder, "spool-"+name) + "\n\t\t}"
		c.nodes = append(c.nodes, startCaddy(t, strings.Replace(c.caddyfile(name), "penstock {", reports, 1), "PENSTOCK_REDIS="+c.redis.URL()))
	}
	c.holds("c0", 200, "3")
	c.holds("c3", 200, "20")
	c.holds("c4", 200, "")
}

// company.upgrades moves a denied customer from the tier free to the tier pro.
func (c *company) upgrades() {
	c.t.Helper()
	for range 4 {
		c.ask(c.nodes[0], "c0")
	}
	c.holds("c0", 429, "3")
	c.asks("client", "set-tier", "header.x-user:c0", "pro", "--reason=upgrade")
	c.holds("c0", 200, "20")
}

func (c *company) grantsUntilFriday() {
	c.t.Helper()
	c.asks("client", "set-limit", "header.x-user:c3", "api", "500/31d", "--until="+nextFriday(time.Now()), "--reason=ticket-4711")
	c.holds("c3", 200, "500")
	if out := c.asks("client", "show", "header.x-user:c3"); !strings.Contains(out, "500/31d until "+nextFriday(time.Now())) {
		c.t.Error(out)
	}
}

// blocksAnAbuser finds the customer with the most denials, and blocks this customer.
func (c *company) blocksAnAbuser() {
	t := c.t
	t.Helper()
	for range 60 {
		c.ask(c.nodes[0], "c1")
		c.ask(c.nodes[1], "c1")
	}
	var top string
	eventually.Until(t, controlPatience, "the abuser leads the list of denials", func() bool {
		_, top = c.send("GET", "/v1/top?limit=1", "")
		return strings.Contains(top, fmt.Sprintf(`"client":"header.x-user:c1","denied":%d,`, c.used["c1"].denied))
	})
	c.asks("top", "-n=3")
	c.asks("client", "block", "header.x-user:c1", "--for=24h", "--reason=scraper")
	c.holds("c1", 403, "")
}

// publishesABadPolicy publishes a revision that denies nearly everything to one of the two nodes.
// The revision must be withdrawn automatically.
func (c *company) publishesABadPolicy() {
	t := c.t
	t.Helper()
	file := filepath.Join(c.folder, "shop.yaml")
	writeFile(t.(*testing.T), file, companyPolicy("2/31d"))
	c.asks("control", "policy", "put", file, "--reason=a-typing-error")
	c.asks("control", "policy", "publish", "--share=50%", "--denials-max=20%", "--promote-after=1h", "--reason=try")
	eventually.Until(t, controlPatience, "the node of the share has the candidate", func() bool {
		return c.ask(c.nodes[0], "c8").header.Get("X-RateLimit-Limit") == "2"
	})
	if limit := c.ask(c.nodes[1], "c8").header.Get("X-RateLimit-Limit"); limit != "20" {
		t.Errorf("the other node has the limit %s", limit)
	}
	eventually.Until(t, controlPatience, "the candidate is withdrawn", func() bool {
		for range 20 {
			c.ask(c.nodes[0], "c8")
		}
		var found struct{ Publication struct{ Candidate int64 } }
		status, text := c.send("GET", "/v1/policies/shop", "")
		return status == http.StatusOK && json.Unmarshal([]byte(text), &found) == nil && found.Publication.Candidate == 0
	})
	c.holds("c13", 200, "20")
	if out := c.asks("client", "history", "-n=1"); !strings.Contains(out, "withdraw 2") || !strings.Contains(out, "20% is the bound") {
		t.Error(out)
	}
}

// company.bills compares the bill with what the nodes answered.
func (c *company) bills() {
	t := c.t
	t.Helper()
	billed := func() (sums map[string]used) {
		sums = map[string]used{}
		for _, row := range c.usage("limit=1000") {
			name := strings.TrimPrefix(row.Client, "header.x-user:")
			sums[name] = used{sums[name].admitted + row.Admitted, sums[name].denied + row.Denied}
		}
		return sums
	}
	eventually.Until(t, controlPatience, "the bill has every request", func() bool {
		sums, all := billed(), true
		for customer, n := range c.used {
			all = all && sums[customer].admitted >= n.admitted && sums[customer].denied >= n.denied
		}
		return all
	})
	if got := billed(); fmt.Sprint(got) != fmt.Sprint(c.used) {
		t.Errorf("the bill has %v, and the nodes answered %v", got, c.used)
	}
	rows, err := csv.NewReader(strings.NewReader(c.asks("usage", "--format=csv"))).ReadAll()
	if err != nil || len(rows) < 1+len(c.used) {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	c.log("# every row is what the nodes answered: %v\n", c.used)
}

// company.archives moves an old month to the archive, verifies it, and restores it.
func (c *company) archives() {
	t := c.t
	t.Helper()
	const month, rows = "rate_limit_events_2025_01", 5000
	db, err := pgx.Connect(t.Context(), c.database)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close(t.Context())
	if _, err := db.Exec(t.Context(), "SET search_path = penstock; CREATE TABLE "+month+" PARTITION OF rate_limit_events FOR VALUES FROM ('2025-01-01') TO ('2025-02-01');"+
		"INSERT INTO "+month+" (at, kind, policy, version, rule, limited, decision, status, client, tier, method, path, state, reason, node, seconds, share, events)"+
		" SELECT '2025-01-05'::timestamptz + n * interval '1 s', 'denied', 'shop', '', 'api', '3/31d', 'denied', 429, 'header.x-user:c' || n % 2000, 'free',"+
		" 'GET', '/', '', '', 'node-0', 0, 1, 2 FROM generate_series(1, 5000) n"); err != nil {
		t.Fatal(err)
	}
	present := func() (n int) {
		t.Helper()
		if err := db.QueryRow(t.Context(), "SELECT count(*) FROM rate_limit_events WHERE at < '2025-02-01'").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	place := []string{"--archive=s3://" + s3test.Bucket + "/shop", "--archive-endpoint=" + c.s3.URL(), "--archive-region=us-east-1"}
	archive := func(args ...string) string {
		t.Helper()
		return c.run(append(append([]string{"control", "archive"}, args...), place...)...)
	}
	archive("run")
	if n := present(); n != 0 {
		t.Errorf("%d rows are in the database after the archive", n)
	}
	if out := archive("verify"); !strings.Contains(out, month+" is as it was written: 5000 rows") {
		t.Error(out)
	}
	if out := archive("query", month, "--client=header.x-user:c7"); strings.Count(out, `"client":"header.x-user:c7"`) != 3 || strings.Count(out, "\n") != 3 {
		t.Error(out)
	}
	if n := present(); n != 0 {
		t.Errorf("a query of the archive restores %d rows", n)
	}
	archive("restore", month, "--for=2d")
	if n := present(); n != rows {
		t.Errorf("%d rows are restored, want %d", n, rows)
	}
	c.run("control", "archive", "list")
}
