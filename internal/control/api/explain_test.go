// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/explain"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

const explainedPolicy = `identify: [{api_key: {keys: directory, on_invalid: deny}}, {header: {name: X-User, unverified: true}}, ip]\n` +
	`rules: [{name: api, match: {path: /api/*}, limit: 2/1d, tiers: {gold: 10/1h}}, {name: all, limit: 100/1h}]\n`

// serveWithCounters serves an API that reads the counters of a Redis.
func serveWithCounters(t *testing.T) (*served, *redistest.Server, counter.Store) {
	t.Helper()
	redis := redistest.Start(t)
	store, err := redisstore.New(redisstore.Options{URL: redis.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return serve(t, func(o *Options) { o.Regions = []Region{{Counters: store}} }), redis, store
}

// served.explained puts a policy in force, with records of clients, a network and a key.
func (s *served) explained() (key string) {
	s.t.Helper()
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/policies/limits", `{"format":"yaml","text":"`+explainedPolicy+`",`+reason+`}`, "If-None-Match", "*"), 200)
	s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/policies/limits/publication", `{"step":"all",`+reason+`}`), 200)
	s.checkAnswer(s.ask(ledger.Editor, "PUT", "/v1/tiers/gold", `{`+reason+`}`), 200)
	for name, edit := range map[string]string{"header.x-user:ann": `"action":"set-limit","rule":"api","limits":["7/1d"]`, "header.x-user:bob": `"action":"block"`,
		"header.x-user:zoe": `"action":"set-tier","tier":"gold"`, "ip:192.0.2.0/24": `"action":"exempt"`} {
		s.checkAnswer(s.ask(ledger.Editor, "POST", client(name)+"/edits", `{`+edit+`,`+reason+`}`), 200)
	}
	a := s.checkAnswer(s.ask(ledger.Editor, "POST", "/v1/keys", `{"record":{"name":"acme","client":"api_key:acme","tier":"gold"},`+reason+`}`), 201)
	_, key, _ = strings.Cut(a.body, `"key":"`)
	key, _, _ = strings.Cut(key, `"`)
	return key
}

// TestExplanationsAreThoseOfNodes tests which rule, limit and record apply to requests, that
// nothing is charged, and that an outage of Redis is reported.
func TestExplanationsAreThoseOfNodes(t *testing.T) {
	t.Parallel()
	s, redis, store := serveWithCounters(t)
	key := s.explained()
	s.chargeOne(store, "eve")
	const path = "/v1/policies/limits/explanation"
	for _, c := range []struct {
		fields string
		status int
		wants  []string
	}{
		{`"client":"header.x-user:ann"`, 200, []string{`"limit":"7/1d"`, `"limits_of":"this client's record"`, `"name":"header.x-user:ann"`, `"outcome":"allowed"`}},
		{`"headers":{"X-User":["bob"]}`, 200, []string{`"status":403`, `"name":"header.x-user:bob"`}},
		{`"client":"header.x-user:zoe"`, 200, []string{`"limit":"10/1h"`, `"limits_of":"tier gold"`}},
		{`"client":"api_key:acme"`, 200, []string{`"limit":"10/1h"`, `"limits_of":"tier gold"`}},
		{`"headers":{"X-API-Key":["` + key + `"]}`, 200, []string{`"kind":"api_key"`, `"limit":"10/1h"`, `"name":"~key:`}},
		{`"headers":{"X-API-Key":["pk_of_nobody_0123456789_0123456789_012345678"]}`, 200, []string{`"status":401`}},
		{`"ip":"192.0.2.7"`, 200, []string{`"outcome":"exempt"`, `"name":"ip:192.0.2.0/24"`}},
		{`"client":"header.x-user:eve"`, 200, []string{`"limit":"2/1d"`, `"used":0,`, `"records":[]`, `"revision":1`}},
		{`"client":"header.x-user:eve","counters":true`, 200, []string{`"limit":"2/1d"`, `"used":1,"remaining":1`, `"store":"Redis"`}},
		{`"client":"header.x-user:eve","counters":true,"region":"eu"`, 422, []string{"this control plane has no regions"}},
		{`"client":"eve"`, 422, []string{"body.client"}},
		{`"ip":"eve"`, 422, []string{"body.ip"}},
		{`"tier":"gold"`, 422, []string{"name it"}},
		{`"revision":9`, 404, nil},
	} {
		a := s.checkAnswer(s.ask(ledger.Viewer, "POST", path, `{"path":"/api/a?b=c",`+c.fields+`}`), c.status, c.wants...)
		if strings.Contains(a.body, key) {
			t.Errorf("%s: the answer contains the API key", c.fields)
		}
	}
	s.checkAnswer(s.ask(ledger.Viewer, "POST", "/v1/policies/none/explanation", `{"path":"/"}`), 404)
	for range 2 { // a look charges nothing
		s.checkAnswer(s.ask(ledger.Viewer, "GET", client("header.x-user:eve")+"/remaining", ""), 200, `"limit":"2/1d"`, `"used":1,"remaining":1`, `"used":1,"remaining":99`)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("header.x-user:ann")+"/remaining?policy=limits&rule=api", ""), 200, `"limit":"7/1d"`, `"remaining":7`,
		`"record":{"limits":`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("api_key:acme")+"/remaining?rule=api", ""), 200, `"limit":"10/1h"`, `"remaining":10`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("cookie.none:x")+"/remaining", ""), 422, "there is no client")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("header.x-user:ann")+"/remaining?rule=none", ""), 422, "has a rule")
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("header.x-user:ann")+"/remaining?policy=none", ""), 404)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("ip:192.0.2.7")+"/remaining", ""), 200, `"name":"ip:192.0.2.0/24"`)
	redis.Stop()
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("header.x-user:eve")+"/remaining", ""), 503, "counters in Redis could not be read")
	s.checkAnswer(s.ask(ledger.Viewer, "POST", path, `{"path":"/api/a","client":"header.x-user:eve","counters":true}`), 503, "counters in Redis could not be read")
	s.checkAnswer(s.ask(ledger.Viewer, "POST", path, `{"path":"/api/a","client":"header.x-user:eve"}`), 200, `"limit":"2/1d"`)
}

// chargeOne charges a request of a user as a node does.
func (s *served) chargeOne(store counter.Store, user string) {
	s.t.Helper()
	revision, err := s.ledger.Revision(s.t.Context(), "limits", 0)
	if err != nil {
		s.t.Fatal(err)
	}
	p, err := policyOf(documentOf(revision))
	if err != nil {
		s.t.Fatal(err)
	}
	var plan core.Plan
	plan.Add(p.Ruleset, &explain.Request{Description: explain.Description{Method: "GET", Path: "/api/a", Headers: http.Header{"X-User": {user}},
		Peer: netip.MustParseAddr("198.51.100.1"), Now: counter.Micros(time.Now().UnixMicro())}})
	if err := store.Take(s.t.Context(), plan.Checks(), plan.Results()); err != nil {
		s.t.Fatal(err)
	}
}

// walkExplanations asks for what applies to a client.
func (s *served) walkExplanations() {
	s.t.Helper()
	s.checkAnswer(s.ask(ledger.Viewer, "POST", "/v1/policies/shop/explanation", `{"path":"/"}`), 200, `"policy":"shop"`, `"rules":[{`)
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("ip:192.0.2.7")+"/remaining?policy=shop", ""), 200, `"client":"ip:192.0.2.7"`, `"counters":[{`)
}

// TestNamesThatNoRowCanHave: names that PostgreSQL does not accept have no record, and are not
// reported as an outage of the database.
func TestNamesThatNoRowCanHave(t *testing.T) {
	t.Parallel()
	s, _, _ := serveWithCounters(t)
	s.explained()
	for _, fields := range []string{`"headers":{"X-User":["a\u0000b"]}`, `"client":"header.x-user:a\u0000b"`, `"client":"api_key:a\u0000b"`} {
		s.checkAnswer(s.ask(ledger.Viewer, "POST", "/v1/policies/limits/explanation", `{"path":"/api/a",`+fields+`}`), 200, `"records":[]`)
	}
	for _, name := range []string{"header.x-user:a%00b", "header.x-user:a%ffb"} {
		s.checkAnswer(s.ask(ledger.Viewer, "GET", "/v1/clients/"+name+"/remaining", ""), 200, `"records":[]`)
	}
	s.checkAnswer(s.ask(ledger.Viewer, "GET", client("ip:192.0.2.7")+"/remaining?policy=%00", ""), 422, "query.policy")
}

// TestExplanationsAreBounded: at most explainingMax explanations are made at a time. A request that
// waits for a turn ends when its time is over. A request that finds the queue full is answered at
// once. One caller cannot fill the queue.
func TestExplanationsAreBounded(t *testing.T) {
	t.Parallel()
	e := newExplaining()
	var leave func()
	for range explainingMax {
		var err error
		if leave, err = e.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.enter(ended); err == nil {
		t.Error("more explanations are made at a time than explainingMax")
	}
	fill := func(name string) (dequeue func()) {
		for next, ok := e.enqueue(name); ok; next, ok = e.enqueue(name) {
			dequeue = next
		}
		return dequeue
	}
	ann, bob := "ann", "bob"
	for e.countOf(ann) == e.countOf("") || e.countOf(bob) == e.countOf("") || e.countOf(ann) == e.countOf(bob) {
		ann, bob = ann+"-", bob+"+"
	}
	fill(ann)
	if taken := len(e.queue) - explainingMax; taken != explainingQueue/2 {
		t.Errorf("one caller takes %d places of %d", taken, explainingQueue)
	}
	dequeue := fill(bob)
	if _, err := e.enter(t.Context()); err == nil || len(e.queue) != explainingQueue {
		t.Errorf("more requests wait than explainingQueue: %d", len(e.queue))
	}
	leave()
	dequeue()
	if _, err := e.enter(t.Context()); err != nil {
		t.Errorf("a turn that was left cannot be taken: %v", err)
	}
}
