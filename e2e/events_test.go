// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// eventLine is a line in a log of events.
type eventLine struct {
	Time, Kind, Policy, Version, Rule, Limit, Decision, Client, Tier, IP, Method, Path, Node, Reason, State string
	Status                                                                                                  int
	Count                                                                                                   int
	Seconds                                                                                                 float64
}

// readEvents reads the events of a file. The test fails if a line is not an event.
func readEvents(t *testing.T, path string) (all []eventLine) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	if text = text[:strings.LastIndexByte(string(text), '\n')+1]; len(text) == 0 {
		return nil
	}
	for line := range strings.Lines(string(text)) {
		var e eventLine
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// deniedBy returns how many denials of a client the events of a file report, and the last of these
// events.
func deniedBy(t *testing.T, path, client string) (n int, last eventLine) {
	t.Helper()
	for _, e := range readEvents(t, path) {
		if e.Kind == "denied" && e.Client == client {
			n, last = n+e.Count, e
		}
	}
	return n, last
}

// awaitDenials waits until the events of a file report at least the wanted number of denials.
func awaitDenials(t *testing.T, path, client string, want int) (last eventLine) {
	t.Helper()
	eventually.Until(t, patience, "the denials are in the log", func() bool {
		var n int
		n, last = deniedBy(t, path, client)
		return n >= want
	})
	if n, _ := deniedBy(t, path, client); n != want {
		t.Fatalf("%d denials are in the log, want %d", n, want)
	}
	return last
}

const eventsCaddyfile = `{
	admin ADMIN
	log default {
		exclude penstock.events
	}
	log events {
		include penstock.events
		output file LOG
		format json
	}
	penstock {
		name shop
		events_to TO
		events {
			ip prefix
		}
	}
}
:SITE {
	penstock {
		rule api 5/31d {
			match path /api/*
		}
	}
	respond "ok"
}
`

// TestCaddyReportsDenials tests that every denial is in the events, which go to a file and, after a
// reload, to Caddy's own log. If events cannot be written, requests are still decided, and a metric
// counts the lost events.
func TestCaddyReportsDenials(t *testing.T) {
	t.Parallel()
	const limit, denials = 5, 150
	folder := t.TempDir()
	file, log := filepath.Join(folder, "events.ndjson"), filepath.Join(folder, "caddy.log")
	text := strings.Replace(eventsCaddyfile, "LOG", log, 1)
	p := startCaddy(t, strings.Replace(text, "TO", file, 1))
	denied := func(n int) {
		t.Helper()
		for range n {
			if a := p.get("/api/x?secret"); a.status != 429 {
				t.Fatalf("status %d, want 429", a.status)
			}
		}
	}
	for range limit {
		p.get("/api/x")
	}
	denied(denials)
	const client = "ip:127.0.0.0/24"
	last := awaitDenials(t, file, client, denials)
	want := eventLine{Time: last.Time, Kind: "denied", Policy: last.Policy, Version: last.Version, Rule: "api", Limit: "5/31d", Decision: "denied",
		Client: client, IP: "127.0.0.0/24", Method: "GET", Path: "/api/*", Node: last.Node, Status: 429, Count: last.Count}
	if last != want || last.Policy == "" || last.Version == "" || last.Node == "" {
		t.Errorf("event %+v, want %+v", last, want)
	}
	if lines := len(readEvents(t, file)); lines > denials/2 {
		t.Errorf("%d events of %d equal denials", lines, denials)
	}
	report := penstock(t, "client", "--json", "--admin", p.admin, "--client", "ip:127.0.0.1")
	var remembered struct{ Denials []eventLine }
	if err := json.Unmarshal([]byte(report.out), &remembered); err != nil || len(remembered.Denials) == 0 ||
		remembered.Denials[0].Rule != "api" || remembered.Denials[0].Path != "/api/*" || remembered.Denials[0].Time != last.Time {
		t.Errorf("the client's last denials: %v, %+v, want that of %s", err, remembered, last.Time)
	}
	p.write(strings.Replace(text, "events_to TO", "", 1))
	if err := p.reload(); err != nil {
		t.Fatal(err)
	}
	denied(denials)
	awaitDenials(t, log, client, denials)
	p.write(strings.Replace(text, "TO", "/dev/full", 1))
	if err := p.reload(); err != nil {
		t.Fatal(err)
	}
	denied(denials)
	eventually.Until(t, patience, "the metric counts what could not be written", func() bool {
		return strings.Contains(p.scrape(), `penstock_events_dropped_total{reason="sink"} 150`)
	})
	denied(1)
	p.write(strings.Replace(text, "TO", folder, 1))
	if err := p.reload(); err == nil || !strings.Contains(err.Error(), "is a directory: write the path of a file") {
		t.Errorf("a directory for the events: %v", err)
	}
}

// TestEnvoyReportsDenials tests that every denial of the filter and of the rate limit service is in
// the events of the bridge. Requests are decided even if events cannot be written.
func TestEnvoyReportsDenials(t *testing.T) {
	t.Parallel()
	const limit, denials = 5, 150
	const policy = "name: shop\nevents: {}\nrules: [{name: api, match: {path: /api/*}, limit: 5/31d}, {name: closed, match: {path: /closed}, action: block}]\n"
	redis, file := redistest.Start(t), filepath.Join(t.TempDir(), "events.ndjson")
	filter, service, full := new(site), &site{filter: builtInFilter}, new(site)
	e := useEnvoy(t, nil, filter, service, full)
	b := newBridge(t, policy, "--rls-listen", "unix:"+service.grpc, "--token", bridgeToken, "--events", file+".rls")
	b.listen = service.bridge
	b.run(t)
	for _, one := range []struct {
		*site
		events string
	}{{filter, file}, {full, "/dev/full"}} {
		b := newBridge(t, strings.Replace(policy, "shop", one.name, 1), "--redis", redis.URL(), "--events", one.events)
		b.listen = one.bridge
		e.awaitPolicyLoad(t, func() { b.run(t) })
	}
	for i, s := range []*site{filter, service, full} {
		eventually.Until(t, patience, "the limit is used up", func() bool { return s.get(t, "/api/x").status == 429 })
		for range denials - 1 {
			if a := s.get(t, "/api/x"); a.status != 429 {
				t.Fatalf("site %d: status %d, want 429", i, a.status)
			}
		}
		for range denials {
			s.get(t, "/closed") // Envoy's own filter answers with 429 as well
		}
	}
	if e.counter("penstock.remembered") == 0 {
		t.Error("the filter has asked about each denial")
	}
	for _, path := range []string{file, file + ".rls"} {
		awaitDenials(t, path, "ip:127.0.0.1", 2*denials)
		counts := map[string]int{}
		for _, one := range readEvents(t, path) {
			counts[fmt.Sprint(one.Rule, " ", one.Decision, " ", one.Limit, " ", one.Path, " ", one.Client, " ", one.Method)] += one.Count
		}
		method := "GET"
		if strings.HasSuffix(path, ".rls") {
			method = "" // no descriptor contains the method
		}
		want := map[string]int{"api denied 5/31d /api/* ip:127.0.0.1 " + method: denials, "closed blocked  /closed ip:127.0.0.1 " + method: denials}
		if !maps.Equal(counts, want) {
			t.Errorf("%s: %v, want %v", path, counts, want)
		}
	}
}
