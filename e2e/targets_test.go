// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// targetsCaddyfile has a rule that limits a path, a rule that limits a host, and a rule that blocks
// a path. The header field X-Upstream selects the upstream.
const targetsCaddyfile = `{
	admin ADMIN
	servers {
		protocols h1 h2 h2c h3
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
	}
}
(limited) {
	penstock {
		rule path {
			match path /admin/**
			limit 3/31d
		}
		rule host {
			match host admin.example
			limit 3/31d
		}
		rule never {
			match path /blocked/**
			action block
		}
	}
	@go header X-Upstream go
	@node header X-Upstream node
	@nginx header X-Upstream nginx
	@files header X-Upstream files
	@respond header X-Upstream respond
	reverse_proxy @go {$GO_UPSTREAM}
	reverse_proxy @node {$NODE_UPSTREAM}
	reverse_proxy @nginx {$NGINX_UPSTREAM}
	file_server @files {
		root {$FILES}
	}
	@path path /admin/*
	@blocked path /blocked/*
	@host host admin.example
	vars @path served_path path-admin
	vars @blocked served_path path-blocked
	vars @host served_host host-admin
	respond @respond "respond {vars.served_path} {vars.served_host}"
}
:SITE {
	import limited
}
`

const (
	targetsAsks  = 5 // requests in each form
	targetsLimit = 3
)

// TestEveryFormOfATarget tests that no form of a request evades the rules. A client is served a
// limited path or host no more often than the limit, and a blocked path is never served.
func TestEveryFormOfATarget(t *testing.T) {
	t.Parallel()
	p := startTargets(t)
	t.Run("HTTP/1.1", func(t *testing.T) { sendEveryTarget(t, caddyUpstreams, http1To(p.address, "1.1")) })
	t.Run("HTTP/1.0", func(t *testing.T) { sendEveryTarget(t, caddyUpstreams, http1To(p.address, "1.0")) })
	t.Run("HTTP/2", func(t *testing.T) { sendEveryTarget(t, caddyUpstreams, http2To(p.address)) })
}

const targetsPolicy = `name: targets
rules:
  - {name: path, match: {path: /admin/**}, limit: 3/31d}
  - {name: host, match: {host: admin.example}, limit: 3/31d}
  - {name: never, match: {path: /blocked/**}, action: block}
`

// TestEveryFormOfATargetInEnvoy is [TestEveryFormOfATarget] for Envoy with the filter.
func TestEveryFormOfATargetInEnvoy(t *testing.T) {
	t.Parallel()
	s := &site{manager: "use_remote_address: true, xff_num_trusted_hops: 1, http_protocol_options: {accept_http_10: true}, delayed_close_timeout: 0.01s, " +
		"upgrade_configs: [{upgrade_type: CONNECT}]",
		cluster: bridgeCluster + "\n  - " + clusterAt("node", startNode(t, nodeProgram)) + "\n  - " + clusterAt("nginx", startNginx(t, nginxConfiguration)),
		routes:  routesBy("node") + routesBy("nginx") + "{match: {connect_matcher: {}}, route: {cluster: upstream}},"}
	useEnvoy(t, http.HandlerFunc(goSays), s)
	s.startBridge(t, targetsPolicy)
	upstreams := []string{"go", "node", "nginx"}
	t.Run("HTTP/1.1", func(t *testing.T) { sendEveryTarget(t, upstreams, http1To(s.address, "1.1")) })
	t.Run("HTTP/1.0", func(t *testing.T) { sendEveryTarget(t, upstreams, http1To(s.address, "1.0")) })
	t.Run("HTTP/2", func(t *testing.T) { sendEveryTarget(t, upstreams, http2To(s.address)) })
}

// routesBy returns the routes for requests whose field X-Upstream names the given cluster,
// including CONNECT requests.
func routesBy(name string) string {
	header := "headers: [{name: x-upstream, string_match: {exact: " + name + "}}]"
	return "{match: {connect_matcher: {}, " + header + "}, route: {cluster: " + name + "}}," +
		"{match: {prefix: /, " + header + "}, route: {cluster: " + name + "}},"
}

// clusterAt returns a cluster with the one server at the address.
func clusterAt(name, address string) string {
	return "{name: " + name + ", type: STATIC, connect_timeout: 1s, load_assignment: {cluster_name: " + name +
		", endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: " + portOf(address) + "}}}}]}]}}"
}

// TestTargetsThatAreNotServed tests that requests whose target has no path, or whose host is
// invalid, are answered with 400 and counted. Some unusual requests that are valid are served.
func TestTargetsThatAreNotServed(t *testing.T) {
	t.Parallel()
	p := startTargets(t)
	send := http1To(p.address, "1.1")
	for i, form := range []requestForm{{"GET", "x:http://h/y", "h"}, {"GET", "x:y", "h"}, {"GET", "*", "h"}, {"GET", "http:?x", "h"},
		{"GET", "/", "h:1:2"}, {"GET", "/", "%68"}, {"GET", "/", "[::1%25eth0]:80"}, {"HEAD", "x:y", "h"}} {
		answer := send(form, clientAddress(i), "go")
		if !strings.HasPrefix(answer, "HTTP/1.1 400 ") || !strings.Contains(answer, "application/problem+json") ||
			strings.Contains(answer, `"status":400`) != (form.method != "HEAD") {
			t.Errorf("%q: %.300s", form, answer)
		}
		if got := p.metric("penstock_invalid_targets_total"); int(got) != i+1 {
			t.Errorf("%q: %v are counted, want %d", form, got, i+1)
		}
	}
	for i, form := range []requestForm{{"GET", "http://h", "x"}, {"GET", "//x", "h"}, {"OPTIONS", "*", "h"},
		{"GET", "/", "A_b.c.:80"}, {"GET", "/", "[::1]:80"}} {
		if answer := send(form, clientAddress(100+i), "go"); !strings.HasPrefix(answer, "HTTP/1.1 200 ") {
			t.Errorf("%q: %.300s", form, answer)
		}
	}
}

var caddyUpstreams = []string{"go", "node", "nginx", "files", "respond"}

// startTargets runs a Caddy with targetsCaddyfile.
func startTargets(t *testing.T) *process {
	files := t.TempDir()
	for _, word := range []string{"admin", "blocked"} {
		if err := os.MkdirAll(filepath.Join(files, word), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(files, word, "x"), []byte("files path-"+word), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return startCaddy(t, targetsCaddyfile, "FILES="+files, "GO_UPSTREAM="+startUpstream(t, http.HandlerFunc(goSays)),
		"NODE_UPSTREAM="+startNode(t, nodeProgram), "NGINX_UPSTREAM="+startNginx(t, nginxConfiguration))
}

// targetSender sends a request in the given form, and returns the whole answer. The parameter
// address is the address of the client, and upstream is the name of the upstream.
type targetSender func(f requestForm, address, upstream string) string

// http1To returns a sender of HTTP/1 requests, each over a new connection.
func http1To(to, version string) targetSender {
	return func(f requestForm, address, upstream string) string {
		connection, err := net.Dial("tcp", to)
		if err != nil {
			return "error: " + err.Error()
		}
		defer connection.Close()
		_ = connection.SetDeadline(time.Now().Add(f.patience()))
		_, _ = io.WriteString(connection, f.http1(version, address, upstream))
		answer, _ := io.ReadAll(connection)
		return string(answer)
	}
}

// sendEveryTarget sends every form to every upstream, each time as a different client. It fails the
// test if a resource was served too often.
func sendEveryTarget(t *testing.T, upstreams []string, send targetSender) {
	type job struct {
		upstream string
		form     requestForm
		blocked  bool
		address  string
	}
	var jobs []job
	for _, upstream := range upstreams {
		for _, form := range append(targetForms(), hostForms()...) {
			jobs = append(jobs, job{upstream, form, false, clientAddress(len(jobs))})
			if form.blocked() != form {
				jobs = append(jobs, job{upstream, form.blocked(), true, clientAddress(len(jobs))})
			}
		}
	}
	queue := make(chan job)
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for j := range queue {
				served, last := sendTarget(func() string { return send(j.form, j.address, j.upstream) })
				for word, n := range served {
					if n > targetsLimit || word == "path-blocked" && n > 0 {
						t.Errorf("%s: %q served %s %d of %d times:\n%.400s", j.upstream, j.form, word, n, targetsAsks, last)
					}
				}
			}
		})
	}
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	group.Wait()
	t.Logf("%d forms, each asked for up to %d times", len(jobs), targetsAsks)
}

// sendTarget sends a request several times. Outside "make exam", it stops after the first answer if
// that is not a resource with a rule. It returns how often each such resource was served, and the
// last answer.
func sendTarget(send func() string) (served map[string]int, last string) {
	served = map[string]int{}
	for range targetsAsks {
		last = send()
		for _, word := range []string{"path-admin", "host-admin", "path-blocked"} {
			if strings.Contains(last, word) {
				served[word]++
			}
		}
		if len(served) == 0 && examOr(false, true) {
			break
		}
	}
	return served, last
}

// clientAddress returns the address of the n-th client.
func clientAddress(n int) string { return fmt.Sprintf("10.%d.%d.%d", n>>16&255, n>>8&255, n&255) }
