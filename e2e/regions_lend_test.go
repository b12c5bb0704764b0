// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock/penstock/internal/test/certtest"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// lendingPolicy gives each client 30 units: 15 in us, 9 in eu and 6 in ap.
const lendingPolicy = `name: shop
on_error: deny
regions: {us: 50, eu: 30, ap: 20}
across: lease
identify: [{header: {name: X-User, unverified: true}}]
rules: [{name: all, limit: 30/31d fixed_window}]
`

// roundTripMillis is the time of a round trip between two regions, in milliseconds.
const roundTripMillis = 200

// lending holds three regions, each with a Redis, a Caddy and an agent. The links between the
// agents have a delay.
type lending struct {
	t      *testing.T
	policy string
	folder string
	names  []string
	redis  map[string]*redistest.Server
	sites  map[string]*process // each Caddy
	listen map[string]string   // the address of each agent
	admin  map[string]string
	agents map[string]*server
	links  map[[2]string]*link // by the names of the calling and the called region
}

func startLending(t *testing.T, policy string) *lending {
	t.Helper()
	l := &lending{t: t, folder: t.TempDir(), names: []string{"us", "eu", "ap"}, redis: map[string]*redistest.Server{},
		sites: map[string]*process{}, listen: map[string]string{}, admin: map[string]string{}, agents: map[string]*server{}, links: map[[2]string]*link{}}
	issueAgentCertificates(t, l.folder)
	l.policy = filepath.Join(l.folder, "policy.yaml")
	if err := os.WriteFile(l.policy, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range l.names {
		l.redis[name], l.listen[name], l.admin[name] = redistest.Start(t), freeport.Address(t), socket(t)
	}
	for _, from := range l.names {
		for _, to := range l.names {
			if from != to {
				way := newLink(t, l.listen[to])
				way.addToxic("latency", map[string]int{"latency": roundTripMillis / 2})
				l.links[[2]string{from, to}] = way
			}
		}
	}
	for _, from := range l.names {
		l.startAgent(from)
		l.sites[from] = startRegionalCaddy(t, from, policy, l.redis[from])
	}
	return l
}

// startAgent starts the agent of a region, and waits until it listens.
func (l *lending) startAgent(name string) {
	l.t.Helper()
	l.agents[name] = l.startAgentAt(name, l.listen[name], l.admin[name])
}

func (l *lending) startAgentAt(name, listen, admin string) *server {
	l.t.Helper()
	args := []string{"region", "--name", name, "--policy", l.policy, "--redis", l.redis[name].URL(), "--listen", listen,
		"--admin-listen", "unix:" + admin, "--tls-cert", filepath.Join(l.folder, name+".pem"),
		"--tls-key", filepath.Join(l.folder, name+".key"), "--client-ca", filepath.Join(l.folder, "ca.pem")}
	for _, peer := range l.names {
		if way := l.links[[2]string{name, peer}]; way != nil {
			args = append(args, "--peer", peer+"=https://"+way.proxy.Listen)
		}
	}
	s := startServer(l.t, exec.Command(penstockProgram(l.t), args...))
	eventually.Until(l.t, patience, "the agent of "+name+" hears its proxies", func() bool {
		s.mustRun()
		return strings.Contains(penstock(l.t, "regions", "--agent", "unix:"+admin).out, name+" hears its proxies")
	})
	return s
}

// lending.take sends a client's request to a region, and reports whether it is admitted.
func (l *lending) take(region, user string) bool {
	l.t.Helper()
	a, err := ask(http.DefaultClient, "http://"+l.sites[region].address+"/", "X-User", user)
	if err != nil || a.status != http.StatusOK && a.status != http.StatusTooManyRequests {
		l.t.Fatalf("%s: status %d, error %v", region, a.status, err)
	}
	return a.status == http.StatusOK
}

// admitAll sends a client's requests to a region until n of them have been admitted.
func (l *lending) admitAll(region, user string, n int) {
	l.t.Helper()
	admitted := 0
	eventually.Until(l.t, patience, user+" gets all units in "+region, func() bool {
		for l.take(region, user) {
			admitted++
		}
		if admitted > n {
			l.t.Fatalf("%s: %d of %d units were admitted", user, admitted, n)
		}
		return admitted == n
	})
}

// checkNothingLeft checks that no region admits a further request of a client.
func (l *lending) checkNothingLeft(user string) {
	l.t.Helper()
	for range 3 {
		for _, region := range l.names {
			if l.take(region, user) {
				l.t.Errorf("%s got a unit more in %s", user, region)
			}
		}
	}
}

// lending.cut cuts all links, or restores them.
func (l *lending) cut(cut bool) {
	for _, way := range l.links {
		if cut {
			way.cut()
		} else {
			way.reconnect()
		}
	}
}

// startEnvoy starts an Envoy in a region with two sites. One has the filter, and the other has
// Envoy's own filter, which calls the rate limit service of the same bridge.
func (l *lending) startEnvoy(region string) (filter, service *site, bridge *bridge) {
	l.t.Helper()
	filter, service = &site{set: "on_error: deny\ndeadline: 10s"}, &site{filter: garbageRLS, routes: userRoute}
	useEnvoy(l.t, nil, filter, service)
	bridge = filter.startBridge(l.t, lendingPolicy, "--region", region, "--redis", l.redis[region].URL(), "--redis-timeout", "5s",
		"--rls-listen", "unix:"+service.grpc)
	eventually.Until(l.t, patience, "Envoy has reached the service", func() bool {
		return service.get(l.t, "/", "X-User", "warm").header.Get("X-RateLimit-Limit") != ""
	})
	return filter, service, bridge
}

// userRoute is a route that makes Envoy send the name of the user to the rate limit service.
const userRoute = `{match: {prefix: /}, route: {cluster: upstream, timeout: 30s, rate_limits: [{actions: [
  {request_headers: {header_name: x-user, descriptor_key: x-user}}]}]}},`

// checkBurst sends 60 requests of a client to an address of a region at once. It checks that the
// client gets all of its units, and that no region admits more. It calls the function named scrape
// to get the metrics of the process that decides.
func (l *lending) checkBurst(region, address, user string, scrape func() string) {
	l.t.Helper()
	var admitted atomic.Int64
	var asking sync.WaitGroup
	for range 60 {
		asking.Go(func() {
			if a, err := ask(http.DefaultClient, "http://"+address+"/", "X-User", user); err != nil {
				l.t.Error(err)
			} else if a.status == http.StatusOK {
				admitted.Add(1)
			}
		})
	}
	asking.Wait()
	n := int(admitted.Load())
	l.t.Logf("%s: a burst of 60 got %d of 30 units", user, n)
	l.admitAll(region, user, 30-n) // on a slow machine, a loan may come too late for a request
	l.checkNothingLeft(user)
	if metrics := scrape(); !strings.Contains(metrics, "penstock_loan_waits_total{") || n < 30 && !strings.Contains(metrics, `{result="late"}`) {
		l.t.Errorf("%s: a burst of 60 got %d units:\n%s", user, n, metrics)
	}
}

// TestRegionsLend tests "across: lease" with regions that are 200 ms apart. A client gets the whole
// limit in one region, although that region has only the smallest part. No region admits more. The
// requests of a burst wait for the loans in Caddy, in Envoy's filter and in the rate limit service.
// If the regions are cut off from each other, each region admits its part. After an agent was
// killed and restarted, a client again gets the whole limit.
func TestRegionsLend(t *testing.T) {
	t.Parallel()
	l := startLending(t, lendingPolicy)
	l.startAgentAt("ap", freeport.Address(t), socket(t)) // a second agent does no harm
	filter, service, bridge := l.startEnvoy("ap")
	l.checkBurst("ap", l.sites["ap"].address, "ann", l.sites["ap"].scrape)
	l.checkBurst("ap", filter.address, "dan", bridge.scrape)
	l.checkBurst("ap", service.address, "eve", bridge.scrape)

	l.cut(true)
	for region, part := range map[string]int{"us": 15, "eu": 9, "ap": 6} {
		for range part {
			if !l.take(region, "bob") {
				t.Errorf("bob has fewer than %d units in %s", part, region)
			}
		}
	}
	l.checkNothingLeft("bob")

	l.agents["us"].kill()
	l.cut(false)
	l.startAgent("us")
	l.admitAll("eu", "carol", 30)
	l.checkNothingLeft("carol")
	l.checkNothingLeft("bob")

	eventually.Until(t, patience, "the nodes of eu name their region", func() bool {
		return strings.Contains(penstock(t, "nodes", "--redis", l.redis["eu"].URL()).out, " in eu")
	})
	if shown := penstock(t, "regions", "--agent", "unix:"+l.admin["eu"]).mustSucceed(t); !strings.Contains(shown, "\nus ") ||
		!strings.Contains(shown, "\nap ") {
		t.Errorf("penstock regions prints\n%s", shown)
	}
}

// TestRegionAgentIsClosed tests that an agent does not lend to a caller without a certificate of
// the regions' authority, and that it starts only with all flags that it needs.
func TestRegionAgentIsClosed(t *testing.T) {
	t.Parallel()
	folder, policy := t.TempDir(), filepath.Join(t.TempDir(), "policy.yaml")
	issueAgentCertificates(t, folder)
	if err := os.WriteFile(policy, []byte(lendingPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	redis, listen := redistest.Start(t), freeport.Address(t)
	args := []string{"region", "--name", "eu", "--policy", policy, "--redis", redis.URL(), "--listen", listen}
	penstock(t, args...).mustFail(t, "--client-ca")
	penstock(t, append(args, "--tls-cert", filepath.Join(folder, "us.pem"), "--tls-key", filepath.Join(folder, "us.key"),
		"--client-ca", filepath.Join(folder, "ca.pem"))...).mustFail(t, "URI:penstock:region:eu")
	args = append(args, "--tls-cert", filepath.Join(folder, "eu.pem"), "--tls-key", filepath.Join(folder, "eu.key"),
		"--client-ca", filepath.Join(folder, "ca.pem"), "--peer", "us=https://127.0.0.1:1")
	penstock(t, args...).mustFail(t, "add --peer ap=https://")
	penstock(t, append(args, "--peer", "mars=https://127.0.0.1:1")...).mustFail(t, "mars")
	s := startServer(t, exec.Command(penstockProgram(t), append(args, "--peer", "ap=https://127.0.0.1:1")...))
	eventually.Until(t, patience, "the agent listens", func() bool {
		s.mustRun()
		connection, err := net.Dial("tcp", listen)
		if err != nil {
			return false
		}
		connection.Close()
		return true
	})
	strange := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: newTrustingConfig(t, folder), DisableKeepAlives: true}}
	response, err := strange.Post("https://"+listen+"/v1/loans", "application/json",
		strings.NewReader(`{"key":"cmwxOnNob3A6YWxsOng6MjY3ODQwMHM6Znc=","limit":"30/31d fixed_window","want":1}`))
	if err == nil {
		response.Body.Close()
		t.Errorf("a caller without a certificate was answered %s", response.Status)
	}
	checkSilentCallers(t, s, listen, folder)
}

// checkSilentCallers opens more connections to an agent than the agent keeps open, and sends
// nothing over them. It checks that another agent is answered nevertheless.
func checkSilentCallers(t *testing.T, s *server, listen, folder string) {
	t.Helper()
	const many, most = 600, 256 + 32 // connections, and files of the process
	for range many {
		connection, err := net.Dial("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(folder, "us.pem"), filepath.Join(folder, "us.key"))
	if err != nil {
		t.Fatal(err)
	}
	config := newTrustingConfig(t, folder)
	config.Certificates = []tls.Certificate{pair}
	agent := &http.Client{Timeout: patience, Transport: &http.Transport{TLSClientConfig: config, DisableKeepAlives: true}}
	response, err := agent.Post("https://"+listen+"/v1/loans", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.command.Process.Pid))
	if err != nil || len(open) > most {
		t.Errorf("the agent has %d files open after %d connections, want at most %d, %v", len(open), many, most, err)
	}
}

// newTrustingConfig returns a configuration that trusts the authority, but has no certificate of
// its own.
func newTrustingConfig(t *testing.T, folder string) *tls.Config {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(text)
	return &tls.Config{RootCAs: pool}
}

// issueAgentCertificates writes the files of a certificate authority, and of certificates for the
// agents of the regions us, eu and ap on this machine.
func issueAgentCertificates(t *testing.T, folder string) {
	t.Helper()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca := certtest.NewAuthority(t, file("ca.pem"), file("ca.key"))
	for _, region := range []string{"us", "eu", "ap"} {
		ca.Issue(t, file(region+".pem"), file(region+".key"), certtest.Region(region))
	}
}
