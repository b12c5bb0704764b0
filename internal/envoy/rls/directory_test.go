// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	envoytype "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

const clientele = `
name: shop
directory: true
identify: [{header: {name: X-User, unverified: true}}, ip]
rules: [{name: api, limit: 1/1m fixed_window, tiers: {gold: 5/1m fixed_window}}]
`

// openDirectory opens a directory in a Redis.
func openDirectory(t *testing.T, server *redistest.Server) *directory.Directory {
	t.Helper()
	store, err := redisstore.New(redisstore.Options{URL: server.URL(), Timeout: redisstore.TimeoutMax})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	eventually.Until(t, patience, "redis answers", func() bool { return store.Check(t.Context()) == nil })
	d, err := directory.Open(directory.Options{Source: redisdir.New(store), Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// patience is long enough for a Redis on a busy machine.
const patience = 10 * time.Second

func edit(t *testing.T, d *directory.Directory, e directory.Edit) {
	t.Helper()
	e.Actor, e.Reason = "tester", "a test"
	editor := directory.Editor{Source: d.Source()}
	if _, err := editor.Apply(t.Context(), e); err != nil {
		t.Fatal(err)
	}
}

// serveDirected serves a policy with a directory.
func serveDirected(t *testing.T, d *directory.Directory) *served {
	t.Helper()
	s := serve(t, rules(t, clientele), nil)
	s.options.Directory = func(*core.Ruleset) *directory.Directory { return d }
	return s
}

// served.awaitAnswer sends requests until the answer is the expected one.
func (s *served) awaitAnswer(t *testing.T, what string, want bool, ds ...*ratelimit.RateLimitDescriptor) {
	t.Helper()
	eventually.Until(t, patience, what, func() bool { return (s.ask(ds...).OverallCode == pb.RateLimitResponse_OK) == want })
}

// TestRecordsOfDescriptors: each descriptor is decided by the records of its client, and a change
// takes effect soon.
func TestRecordsOfDescriptors(t *testing.T) {
	d := openDirectory(t, redistest.Start(t))
	s := serveDirected(t, d)
	edit(t, d, directory.Edit{Client: "header.x-user:gold", Action: directory.ActionSetTier, Tier: "gold"})
	s.awaitAnswer(t, "a new client is read and passes", true, descriptor("x-user", "gold"))
	for range 4 {
		s.checkAnswer(true, descriptor("x-user", "gold"))
	}
	s.checkAnswer(false, descriptor("x-user", "gold"))
	s.awaitAnswer(t, "another one, too", true, descriptor("x-user", "ann"))
	s.checkAnswer(false, descriptor("x-user", "ann"))
	edit(t, d, directory.Edit{Client: "header.x-user:ann", Action: directory.ActionExempt})
	s.awaitAnswer(t, "an exempt client passes", true, descriptor("x-user", "ann"))
	edit(t, d, directory.Edit{Client: "header.x-user:ann", Action: directory.ActionBlock})
	s.awaitAnswer(t, "a blocked client is denied", false, descriptor("x-user", "ann"))
	s.checkAnswer(false, descriptor("x-user", "dan"), descriptor("x-user", "ann"))
	s.awaitAnswer(t, "nothing was charged", true, descriptor("x-user", "dan"))
	edit(t, d, directory.Edit{Client: "ip:192.0.2.0/24", Action: directory.ActionBlock})
	limited := descriptor("remote_address", "192.0.2.7", "x", "y")
	limited.Limit = &ratelimit.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: 1_000_000, Unit: envoytype.RateLimitUnit_HOUR}
	s.awaitAnswer(t, "a blocked network is denied, also with a limit of its own", false, limited)
	s.checkAnswer(false, descriptor("remote_address", "192.0.2.7"))
}

// TestDescriptorsWithoutRecords: while Redis does not answer, a new client is decided without a
// record, and a known client as before.
func TestDescriptorsWithoutRecords(t *testing.T) {
	server := redistest.Start(t)
	d := openDirectory(t, server)
	s := serveDirected(t, d)
	edit(t, d, directory.Edit{Client: "header.x-user:ann", Action: directory.ActionBlock})
	s.checkAnswer(false, descriptor("x-user", "ann"))
	eventually.Until(t, patience, "the client is read", func() bool {
		_, ok := d.Find("header.x-user", "ann", noon)
		return ok
	})
	server.Kill()
	s.checkAnswer(false, descriptor("x-user", "ann"))
	s.checkAnswer(true, descriptor("x-user", "new"))
	if d.Figures().Undirected.Load() == 0 {
		t.Error("no request is counted as undirected")
	}
}

// TestDescriptorsInAFlood: if the record of a descriptor's client cannot be read, because too many
// clients wait, the descriptor is over the limit, even if no rule denies it. The answer is not an
// error, because after an error Envoy would admit the request.
func TestDescriptorsInAFlood(t *testing.T) {
	server := redistest.Start(t)
	d := openDirectory(t, server)
	s := serveDirected(t, d)
	server.Pause()
	defer server.Resume()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for batch := range 10 { // there are batches of 1,024 clients each, more than may wait in total
		var names []policy.ClientName
		for i := range 1024 {
			names = append(names, policy.ClientName{Kind: "user", ID: fmt.Sprint(batch, i)})
		}
		go d.Fetch(ctx, uint32(1000+batch), names)
	}
	eventually.Until(t, patience, "the flood waits", func() bool { return d.Waiting() >= 8<<10 })
	s.checkAnswer(false, descriptor("x-user", "new"))
	if n := d.Figures().Overloads.Load(); n == 0 {
		t.Error("no overload is counted")
	}
}

const holders = `
name: shop
directory: true
identify: [{api_key: {keys: directory, on_invalid: deny}}]
rules: [{name: api, limit: 1/1m fixed_window, tiers: {gold: 5/1m fixed_window}}]
`

// TestKeysOfDescriptors: a descriptor is decided by the key that its entry names, the key's client
// and the record of that client. A key that is revoked, or that does not exist, is denied. While
// Redis does not answer, a key that was read keeps its state, and any other key is denied.
func TestKeysOfDescriptors(t *testing.T) {
	document, err := policyfile.Decode("policy.yaml", policyfile.YAML, []byte(holders))
	if err != nil {
		t.Fatal(err)
	}
	verifiers, closer, err := credential.OpenAll(document, credential.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	rs, err := document.CompileWith(verifiers)
	if err != nil {
		t.Fatal(err)
	}
	server := redistest.Start(t)
	d := openDirectory(t, server)
	s := serve(t, rs, nil)
	s.options.Directory = func(*core.Ruleset) *directory.Directory { return d }
	with := func(key string) *ratelimit.RateLimitDescriptor { return descriptor("x-api-key", key+"-and-more-bytes") }
	change := func(e directory.KeyEdit) {
		t.Helper()
		e.Actor, e.Reason = "tester", "a test"
		editor := directory.Editor{Source: d.Source()}
		if _, err := editor.ApplyKey(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	for name, tier := range map[string]string{"acme": "gold", "bad": "gold", "seen": "gold", "unseen": "gold"} {
		sum := sha256.Sum256([]byte(name + "-and-more-bytes"))
		change(directory.KeyEdit{Action: directory.KeyCreate, Name: name, Hash: hex.EncodeToString(sum[:]),
			Record: &directory.KeyRecord{Name: name, Client: "user:" + name, Tier: tier}})
	}
	edit(t, d, directory.Edit{Client: "user:bad", Action: directory.ActionBlock})
	for range 5 {
		s.awaitAnswer(t, "a key of the tier gold passes", true, with("acme"))
	}
	s.checkAnswer(false, with("acme"))
	s.checkAnswer(false, with("bad"))
	s.checkAnswer(false, with("nobody"))
	s.clock.Add(int64(counter.Minute))
	s.checkAnswer(true, with("acme"))
	change(directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"})
	s.awaitAnswer(t, "a revoked key is denied", false, with("acme"))
	s.awaitAnswer(t, "another key passes", true, with("seen"))
	server.Kill()
	s.checkAnswer(true, with("seen"))
	s.checkAnswer(false, with("acme"))
	s.checkAnswer(false, with("unseen"))
}
