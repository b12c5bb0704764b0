// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// running is a bridge that runs inside the test process.
type running struct {
	t       *testing.T
	said    *eventually.Journal
	stop    context.CancelFunc
	ended   chan error
	address string
}

// startBridge starts a bridge on a free port of this machine, or on the addresses in args.
func startBridge(t *testing.T, args ...string) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{t: t, said: new(eventually.Journal), stop: stop, ended: make(chan error, 1)}
	cmd := newBridge()
	cmd.SetErr(r.said)
	cmd.SetArgs(append([]string{"--listen", "127.0.0.1:0", "--drain-delay", "0s"}, args...))
	go func() { r.ended <- cmd.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-r.ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the bridge said:\n%s", r.said)
		}
	})
	r.eventually(`the bridge listens" address=(\S+)`)
	r.address = regexp.MustCompile(`the bridge listens" address=(\S+)`).FindStringSubmatch(r.said.String())[1]
	return r
}

// running.eventually waits until the bridge's log matches the regular expression.
func (r *running) eventually(what string) {
	r.t.Helper()
	pattern := regexp.MustCompile(what)
	eventually.Until(r.t, 20*time.Second, "it says "+what, func() bool {
		select {
		case err := <-r.ended:
			r.ended <- nil
			r.t.Fatalf("it ended: %v", err)
		default:
		}
		return pattern.MatchString(r.said.String())
	})
}

func (r *running) do(client *http.Client, method, path, body string) (int, string) {
	r.t.Helper()
	request, err := http.NewRequest(method, "http://"+r.address+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return response.StatusCode, response.Proto + " " + string(text)
}

// newHTTPClient returns a client for one version of HTTP: for HTTP/2 if two is true, otherwise for
// HTTP/1.
func newHTTPClient(two bool) *http.Client {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	return &http.Client{Transport: &http.Transport{Protocols: protocols}}
}

// TestBridgeByEnvironment tests that BUCKET_SIZE and REFILL_RATE give each client address its own
// token bucket, over both versions of HTTP.
func TestBridgeByEnvironment(t *testing.T) {
	t.Setenv("BUCKET_SIZE", "3")
	t.Setenv("REFILL_RATE", "0.001")
	r := startBridge(t)
	for i, want := range []string{`"remaining":2`, `"remaining":1`, `"remaining":0`, `"outcome":"denied"`} {
		status, text := r.do(newHTTPClient(i%2 == 1), "POST", "/v1/check", `{"path":"/x","ip":"192.0.2.7"}`)
		if status != 200 || !strings.Contains(text, want) || strings.HasPrefix(text, "HTTP/2") != (i%2 == 1) {
			t.Errorf("request %d: %d %s", i, status, text)
		}
	}
	if _, text := r.do(newHTTPClient(false), "POST", "/v1/check", `{"path":"/x","ip":"192.0.2.8"}`); !strings.Contains(text, `"remaining":2`) {
		t.Error(text)
	}
	r.eventually(`limit="?1/1000s burst 3`)
}

// TestBridgeReloadsAndStops tests that the bridge reads its policy file again after SIGHUP, that it
// answers running calls after SIGTERM, and that it then removes its socket.
func TestBridgeReloadsAndStops(t *testing.T) {
	// not t.TempDir: a socket's path is at most 107 bytes
	folder, err := os.MkdirTemp("", "penstock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	file, socket := filepath.Join(folder, "policy.yaml"), filepath.Join(folder, "s")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("rules: [{name: slow, limit: 1/1s fixed_window, action: throttle, throttle: {max_delay: 30s, max_waiting: 9}}]")
	r := startBridge(t, "--policy", file, "--listen", "unix:"+socket, "--socket-mode", "0600", "--drain-delay", "1s")
	if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	r.address = "bridge"
	if status, text := r.do(client, "GET", "/readyz", ""); status != 200 || !strings.Contains(text, `"ready":true`) {
		t.Error(status, text)
	}
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.eventually("SIGHUP: the policy file was read")
	write("rules: [{name: slow, limit: 1/1s fixed_windo}]")
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	r.eventually("the edited policy file is rejected")
	r.stop()
	r.eventually("the bridge stops")
	if status, text := r.do(client, "GET", "/readyz", ""); status != 503 || !strings.Contains(text, "about to stop") {
		t.Error("it is still ready:", status, text)
	}
	if status, text := r.do(client, "POST", "/v1/check", `{"path":"/x"}`); status != 200 {
		t.Error("nothing is answered any more:", status, text)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	r.ended <- nil
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Error("the socket is left behind", err)
	}
}

// TestBridgeServesEnvoysProtocol tests that the bridge serves Envoy's rate limit protocol at a
// second address, in addition to its own protocol.
func TestBridgeServesEnvoysProtocol(t *testing.T) {
	r := startBridge(t, "--rls-listen", "127.0.0.1:0", "--xds-listen", "127.0.0.1:0", "--xds-wasm", "/etc/penstock.wasm")
	r.eventually(`over gRPC" for="Envoy's rate limit protocol" address=127.0.0.1`)
	r.eventually(`over gRPC" for="Envoy's extension discovery" address=127.0.0.1`)
}

// TestBridgeRejectsOptions tests that the error for each invalid option names the remedy.
func TestBridgeRejectsOptions(t *testing.T) {
	folder := t.TempDir()
	short, empty, filter := filepath.Join(folder, "short"), filepath.Join(folder, "empty"), filepath.Join(folder, "filter")
	for name, text := range map[string]string{short: "hunter2\n", empty: "\n", filter: "cluster: c\n token : 0123456789abcdef\n"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ env, args, want string }{
		{"", "--listen 0.0.0.0:0", "--token-file"},
		{"", "--listen :0", "--token-file"},
		{"", "--listen [::]:0 --tls-cert x", "--tls-key"},
		{"", "--listen nowhere", "host:port"},
		{"", "--listen unix:", "unix:/run"},
		{"", "--socket-mode 8", "0660"},
		{"", "--client-ca x", "needs TLS"},
		{"", "--rls-listen :0", "other machines can reach --rls-listen \":0\""},
		{"", "--xds-listen :0 --xds-wasm x", "other machines can reach --xds-listen \":0\""},
		{"", "--xds-listen 127.0.0.1:0 --xds-wasm x --xds-filter " + filter, "would send it to every caller"},
		{"", "--xds-listen 127.0.0.1:0", "--xds-wasm"},
		{"", "--xds-wasm x", "--xds-listen"},
		{"", "--xds-listen 127.0.0.1:0 --xds-wasm x --xds-filter " + short, "name: value"},
		{"", "--token short", "rand -hex 16"},
		{"", "--token {env.NOT_THERE}", "NOT_THERE"},
		{"", "--token 0123456789abcdef --token-file " + short, "both given"},
		{"", "--token-file " + short, "7 characters"},
		{"", "--token-file " + empty, "is empty"},
		{"", "--token 0123456789abcdéf", "header cannot carry"},
		{"", "--redis http://x", "scheme"},
		{"", "--redis redis://u:{env.NOT_THERE}@localhost", "NOT_THERE"},
		{"", "--redis-username u", "--redis redis://"},
		{"", "--redis redis://localhost --counters-max 5", "maxmemory"},
		{"", "--redis redis://localhost --bytes-max 33554432", "maxmemory"},
		{"", "--bytes-max 1000", "--bytes-max 1000 is too little: write 16777216 or more"},
		{"", "--remember-denials=false", "--redis redis://localhost:6379"},
		{"", "--calls-max -1", "--calls-max -1 is negative: leave it out for the default"},
		{"", "--waiting-max -5 --counters-max -1", "--waiting-max -5 is negative"},
		{"", "--drain-delay -1s", "--drain-delay"},
		{"", "--policy x.txt", "x.txt"},
		{"REDIS_ADDR=redis://secret@host:1", "", "--redis"},
		{"REDIS_ADDR=host", "", "host:port"},
		{"BUCKET_SIZE=5", "--policy p.yaml", "unset BUCKET_SIZE"},
		{"REFILL_RATE=5", "--policy p.yaml", "unset REFILL_RATE"},
		{"BUCKET_SIZE=0", "", "1 at least"},
		{"BUCKET_SIZE=1.5", "", "1 at least"},
		{"BUCKET_SIZE=010", "", `BUCKET_SIZE is "010", which begins with 0, which some parsers read as octal: write 10`},
		{"BUCKET_SIZE=+010", "", "write 10"},
		{"BUCKET_SIZE=00", "", "1 at least"},
		{"REFILL_RATE=010", "", `REFILL_RATE is "010", which begins with 0, which some parsers read as octal: write 10`},
		{"REFILL_RATE=02.5", "", "write 2.5"},
		{"REFILL_RATE=00.5", "", "write 0.5"},
		{"REFILL_RATE=00", "", "above 0"},
		{"REFILL_RATE=0", "", "above 0"},
		{"REFILL_RATE=-1", "", "above 0"},
		{"REFILL_RATE=1e3", "", "above 0"},
		{"REFILL_RATE=1/3", "", "above 0"},
		{"REFILL_RATE=0.00000000001", "", "limit"},
	} {
		bridgeRejects(t, c.env, c.args, c.want)
	}
}

// TestRefillRateIsExact compares limits from REFILL_RATE with exact fractions.
func TestRefillRateIsExact(t *testing.T) {
	for rate, want := range map[string]string{"1.0": "1/1s burst 10", "0.5": "1/2s burst 10", "2.25": "9/4s burst 10",
		"100": "100/1s burst 10", "0.1": "1/10s burst 10", "0.010": "1/100s burst 10", "0.333": "333/1000s burst 10"} {
		if got, err := bucket("10", rate); got != want || err != nil {
			t.Errorf("%s: %q %v, want %q", rate, got, err, want)
		}
	}
}

// TestRedisByEnvironment tests that an environment variable alone suffices to configure Redis, and
// that a flag overrides the variable.
func TestRedisByEnvironment(t *testing.T) {
	for _, c := range []struct{ env, flag, want string }{
		{"", "", ""},
		{"REDIS_ADDR=cache:6380", "", "redis://cache:6380"},
		{"REDIS_MODE=standalone", "", "redis://localhost:6379"},
		{"REDIS_MODE=standalone REDIS_ADDR=cache:1", "", "redis://cache:1"},
		{"REDIS_MODE=single REDIS_ADDR=cache:1", "", "redis://cache:1"},
		{"REDIS_ADDR=cache:6380", "rediss://other", "rediss://other"},
		{"REDIS_ADDR=cache:6380 REDIS_PASSWORD=p", "", "redis://cache:6380 p"},
		{"REDIS_MODE=cluster REDIS_ADDRS=a:1,b:2", "", "cluster a:1 b:2"},
		{"REDIS_MODE=sentinel REDIS_ADDRS=a:1,b:2 REDIS_MASTER=m REDIS_SENTINEL_PASSWORD=q REDIS_PASSWORD=p", "", "p sentinel a:1 b:2 m q"},
	} {
		f := new(bridgeFlags)
		f.redis.URL = c.flag
		if err := f.redisFrom(environmentOf(c.env), slog.New(slog.DiscardHandler)); err != nil {
			t.Error(err)
		}
		o := &f.redis
		words := append([]string{o.URL, o.Password, o.Mode}, append(o.Addrs, o.Master, o.SentinelPassword)...)
		if got := strings.Join(strings.Fields(strings.Join(words, " ")), " "); got != c.want {
			t.Errorf("%s, --redis %q: %q, want %q", c.env, c.flag, got, c.want)
		}
	}
}
