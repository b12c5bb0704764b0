// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// deployed is the folder of the dashboard and of the alert rules.
const deployed = "../deploy/"

// scrapePause is the time that tests wait before they query Prometheus again. Prometheus scrapes
// every second.
const scrapePause = 200 * time.Millisecond

// watchedPolicy is a policy under which requests have most kinds of outcomes.
const watchedPolicy = `
name: shop
directory: DIRECTORY
on_error: local
identify: [{api_key: {keys_file: "KEYS"}}, ip]
rules:
- {name: api, match: {path: /api}, limit: 3/1h, tiers: {gold: 5/1h}}
- {name: wide, match: {path: /wide}, limit: 1000000/1h}
- {name: hot, match: {path: /hot}, per: [], limit: 1000000/1h, lease: auto}
`

// watchedCaddyfile configures a Caddy with the policy in a file and with a directory.
const watchedCaddyfile = `{
	admin ADMIN
	penstock {
		name shop
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		directory
		policy {env.POLICY}
	}
}
:SITE {
	penstock
	respond ok
}
`

// monitor is a running Prometheus.
type monitor struct {
	*server
	address string
}

// startPrometheus runs a Prometheus with the example configuration. It scrapes the given Caddys and
// bridges every second. The parameter named edit replaces parts of the alert rules.
func startPrometheus(t *testing.T, edit *strings.Replacer, caddys, bridges []string) *monitor {
	t.Helper()
	dir, list := t.TempDir(), func(addresses []string) string {
		quoted := ""
		for _, address := range addresses {
			quoted += "'" + address + "', "
		}
		return quoted
	}
	addressed := strings.NewReplacer("'caddy-1.internal:2019', 'caddy-2.internal:2019'", list(caddys), "'bridge-1.internal:8441'", list(bridges),
		"15s", "1s")
	for name, text := range map[string]string{
		"prometheus.yaml":     addressed.Replace(readFile(t, deployed+"prometheus/prometheus.yaml")),
		"penstock.rules.yaml": edit.Replace(readFile(t, deployed+"prometheus/penstock.rules.yaml")),
		"bridge.token":        bridgeToken,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m := &monitor{address: freeport.Address(t)}
	m.server = startServer(t, exec.Command("prometheus", "--config.file", filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path",
		filepath.Join(dir, "data"), "--web.listen-address", m.address, "--log.level", "warn"))
	eventually.Until(t, patience, "prometheus is ready", func() bool {
		m.mustRun()
		response, err := http.Get("http://" + m.address + "/-/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
	return m
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// monitor.read requests a path of Prometheus' HTTP API, and decodes the data of the answer.
func (m *monitor) read(path string, into any) {
	m.t.Helper()
	response, err := http.Get("http://" + m.address + path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		m.t.Fatalf("%s: %d %s %v", path, response.StatusCode, text, err)
	}
	if err := json.Unmarshal(text, &struct{ Data any }{into}); err != nil {
		m.t.Fatal(err)
	}
}

// monitor.answers reports whether the result of a query has a number.
func (m *monitor) answers(query string) bool {
	m.t.Helper()
	var data struct{ Result []struct{ Value []any } }
	m.read("/api/v1/query?query="+url.QueryEscape(query), &data)
	for _, series := range data.Result {
		if len(series.Value) == 2 && series.Value[1] != "NaN" {
			return true
		}
	}
	return false
}

// watchedBridge is a bridge that listens on TCP and requires a token.
type watchedBridge struct {
	*bridge
	address string
}

func startWatchedBridge(t *testing.T, policy string, args ...string) *watchedBridge {
	t.Helper()
	address := freeport.Address(t)
	b := newBridge(t, policy, append(args, "--listen", address, "--token", bridgeToken)...)
	b.runAt(t, "tcp", address)
	return &watchedBridge{b, address}
}

// watchedBridge.call sends a request to the bridge, and returns the body of the answer.
func (b *watchedBridge) call(method, path, body string) string {
	b.t.Helper()
	request, err := http.NewRequest(method, "http://"+b.address+path, strings.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+bridgeToken)
	response, err := asking.Do(request)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(text)
}

// policyWith returns watchedPolicy with a keys file and with or without a directory.
func policyWith(keys *keysFile, directory string) string {
	return strings.NewReplacer("KEYS", keys.path, "DIRECTORY", directory).Replace(watchedPolicy)
}

// startWatched starts a Caddy with watchedPolicy that counts in a Redis server.
func startWatched(t *testing.T, redis *redistest.Server, keys *keysFile) *process {
	t.Helper()
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(policyWith(keys, "true"))
	return startCaddy(t, watchedCaddyfile, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path)
}

// TestDashboardIsAnswered tests that a Prometheus that scrapes a Caddy and a bridge answers every
// query of the dashboard. Every metric that the Caddy and the bridge expose is in the reference,
// with its labels. The dashboard and the alert rules name no other metrics and labels.
func TestDashboardIsAnswered(t *testing.T) {
	t.Parallel()
	keys := newKeysFile(t, map[string]string{"ann": "tier = \"gold\"\n"})
	redis, cluster, grpcAt := redistest.StartTCP(t, "--maxmemory", "64mb"), redistest.StartCluster(t), freeport.Address(t)
	caddy := startWatched(t, redis, keys)
	bridge := startWatchedBridge(t, policyWith(keys, "false"), "--redis", cluster.Nodes[0].URL(), "--redis-mode", "cluster", "--redis-timeout", "5s",
		"--rls-listen", grpcAt)
	connection, err := grpc.NewClient(grpcAt, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	load := func() {
		for _, path := range []string{"/api", "/hot"} {
			caddy.ask(t.Context(), http.MethodGet, path, "X-Api-Key", keyOf("ann"))
			caddy.get(path)
			bridge.call(http.MethodPost, "/v1/check", `{"path":"`+path+`","ip":"192.0.2.7"}`)
		}
		descriptor := &ratelimit.RateLimitDescriptor{Entries: []*ratelimit.RateLimitDescriptor_Entry{{Key: "path", Value: "/api"}}}
		authorized := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+bridgeToken)
		if _, err := rls.NewRateLimitServiceClient(connection).ShouldRateLimit(authorized,
			&rls.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor}}, grpc.WaitForReady(true)); err != nil {
			t.Fatal(err)
		}
	}
	load()
	redis.Kill()
	for range 5 { // Redis does not answer some checks, and on_error decides
		caddy.get("/api")
	}
	redis.Restart()
	m := startPrometheus(t, strings.NewReplacer(), []string{caddy.admin}, []string{bridge.address})
	queries := dashboardQueries(t)
	defer func() { t.Logf("not answered: %q", queries) }()
	eventually.Until(t, 2*patience, "every query is answered", func() bool {
		load()
		queries = slices.DeleteFunc(queries, m.answers)
		pass(scrapePause)
		return len(queries) == 0
	})
	exposed := map[string]string{}
	for _, exposition := range []string{caddy.scrape(), bridge.call(http.MethodGet, "/metrics", "")} {
		maps.Copy(exposed, exposedMetrics(exposition))
	}
	documented := documentedMetrics(t)
	for name, labels := range exposed {
		if want, known := documented[name]; !known || want != labels {
			t.Errorf("%s is exposed with the labels %q, and docs/reference/metrics.md has %q", name, labels, want)
		}
	}
	for _, query := range append(dashboardQueries(t), alertQueries(t)...) {
		for _, wrong := range unknownNames(query, exposed) {
			t.Errorf("neither Caddy nor the bridge exposes %s, as in %s", wrong, query)
		}
	}
}

// alertQueries returns the expressions of the alert rules.
func alertQueries(t *testing.T) (all []string) {
	t.Helper()
	var rules struct {
		Groups []struct{ Rules []struct{ Expr string } }
	}
	if err := yaml.Unmarshal([]byte(readFile(t, deployed+"prometheus/penstock.rules.yaml")), &rules); err != nil {
		t.Fatal(err)
	}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			all = append(all, rule.Expr)
		}
	}
	return all
}

var (
	selector = regexp.MustCompile(`(penstock_[a-z0-9_]+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+)(?:=|!=|=~|!~)"`)
	grouping = regexp.MustCompile(`(?:by|on|group_left) \(([^)]*)\)`)
)

// unknownNames returns the metrics of a query that are not exposed, and the labels of the query
// that its metrics do not have. Prometheus itself adds the labels job and instance.
func unknownNames(query string, exposed map[string]string) (unknown []string) {
	all := []string{"job", "instance", "le"}
	for _, found := range selector.FindAllStringSubmatch(query, -1) {
		labels, known := exposed[found[1]]
		if !known {
			labels, known = exposed[histogramPart.ReplaceAllString(found[1], "")]
		}
		if !known {
			unknown = append(unknown, found[1])
		}
		own := append(strings.Fields(labels), "job", "instance", "le")
		all = append(all, own...)
		for _, label := range matcher.FindAllStringSubmatch(found[2], -1) {
			if !slices.Contains(own, label[1]) {
				unknown = append(unknown, found[1]+" with the label "+label[1])
			}
		}
	}
	for _, found := range grouping.FindAllStringSubmatch(query, -1) {
		for _, label := range strings.FieldsFunc(found[1], func(r rune) bool { return r == ',' || r == ' ' }) {
			if !slices.Contains(all, label) {
				unknown = append(unknown, "the label "+label)
			}
		}
	}
	return unknown
}

// dashboardQueries returns the queries of the dashboard. Their variables select all policies and
// nodes.
func dashboardQueries(t *testing.T) (all []string) {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal([]byte(readFile(t, deployed+"grafana/penstock.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	filled := strings.NewReplacer("$policy", ".+", "$instance", ".+", "$__rate_interval", "15s")
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			all = append(all, filled.Replace(target.Expr))
		}
	}
	if len(all) < 50 {
		t.Fatalf("only %d queries", len(all))
	}
	return all
}

var (
	documentedMetric = regexp.MustCompile("(?m)^\\| (`penstock_[^|]+)\\|([^|]*)\\|")
	quotedWord       = regexp.MustCompile("`([a-z_]+)`")
	exposedSeries    = regexp.MustCompile(`(?m)^(penstock_[a-z0-9_]+)(?:\{(.*)\})? \S+$`)
	histogramPart    = regexp.MustCompile(`_(bucket|sum|count)$`)
	labelName        = regexp.MustCompile(`([a-z_]+)="(?:[^"\\]|\\.)*"`)
)

// documentedMetrics returns the sorted labels of each metric in the reference.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, row := range documentedMetric.FindAllStringSubmatch(readFile(t, "../docs/reference/metrics.md"), -1) {
		var labels []string
		for _, word := range quotedWord.FindAllStringSubmatch(row[2], -1) {
			labels = append(labels, word[1])
		}
		slices.Sort(labels)
		for _, name := range quotedWord.FindAllStringSubmatch(row[1], -1) {
			all[name[1]] = strings.Join(labels, " ")
		}
	}
	return all
}

// exposedMetrics returns the sorted labels of each metric in the exposition of a process.
func exposedMetrics(text string) map[string]string {
	all := map[string]string{}
	for _, series := range exposedSeries.FindAllStringSubmatch(text, -1) {
		name, labels := series[1], []string{}
		for _, label := range labelName.FindAllStringSubmatch(series[2], -1) {
			if label[1] != "le" {
				labels = append(labels, label[1])
			}
		}
		if base := histogramPart.ReplaceAllString(name, ""); strings.Contains(text, "# TYPE "+base+" histogram\n") {
			name = base
		}
		slices.Sort(labels)
		all[name] = strings.Join(labels, " ")
	}
	return all
}

// TestAlertRulesHold tests that promtool accepts the alert rules and the configuration, and that
// the unit tests of the rules pass.
func TestAlertRulesHold(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"check", "rules", "penstock.rules.yaml"},
		{"check", "config", "--syntax-only", "prometheus.yaml"},
		{"test", "rules", "penstock.rules.test.yaml"},
	} {
		command := exec.Command("promtool", args...)
		command.Dir = deployed + "prometheus"
		if err := run(command); err != nil {
			t.Error(err)
		}
	}
}
