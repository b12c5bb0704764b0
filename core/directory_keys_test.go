// SPDX-License-Identifier: Apache-2.0

package core

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// withKeys is a directory with one API key, which it has read only if the field read is set.
type withKeys struct {
	oneRecord
	who   *policy.Identity
	state policy.CredentialState
	read  bool
}

func (d *withKeys) FindKey([32]byte, counter.Micros) (*policy.Identity, policy.CredentialState, bool) {
	return d.who, d.state, d.read
}

// fromDirectory is a verifier that looks up every key in the directory of its [policy.Asker].
type fromDirectory struct{}

func (v fromDirectory) Verify(key string) (*policy.Identity, policy.CredentialState) {
	return v.VerifyFor(new(policy.Asker), key)
}

func (fromDirectory) VerifyFor(asker *policy.Asker, key string) (*policy.Identity, policy.CredentialState) {
	if asker.Keys == nil {
		return nil, policy.CredentialInvalid
	}
	who, state, ok := asker.Keys.FindKey([32]byte{}, 0)
	if !ok {
		*asker.Unread = append(*asker.Unread, policy.ClientName{Kind: policy.KindKey, ID: "hash of " + key})
		return nil, policy.CredentialInvalid
	}
	return who, state
}

// TestKeysOfTheDirectory tests that a plan names the API key that the directory has not read, and
// looks up the records of its owner once the key is known. A request whose key cannot be read has
// an invalid credential, or is denied if records are required.
func TestKeysOfTheDirectory(t *testing.T) {
	rs := mustCompile(t, forcePolicy(t, fromDirectory{}, false))
	var a policy.Attributes = &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-Key": "secret"}}
	d := &withKeys{oneRecord: oneRecord{&policy.ClientRecord{Tier: "gold"}}}
	var plan Plan
	plan.UseDirectory(d)
	plan.Add(rs, a)
	want := []policy.ClientName{{Kind: policy.KindKey, ID: "hash of secret"}}
	if got := plan.Unresolved(); !slices.Equal(got, want) {
		t.Fatalf("unresolved are %v, want %v", got, want)
	}
	if got := plan.Decide(); got.Client.Kind != "" {
		t.Errorf("a key that is not read has the client %+v", got.Client)
	}
	d.read, d.who, d.state = true, &policy.Identity{Kind: "user", ID: "ann", User: "ann", APIKey: "k"}, policy.CredentialValid
	plan.Retry()
	ask := func() { plan.Add(rs, a) }
	if ask(); len(plan.Unresolved()) != 0 || plan.Checks()[0].Limit.Count() != 50 {
		t.Errorf("unresolved are %v, the limit is %v; want none and that of the tier gold", plan.Unresolved(), plan.Checks()[0].Limit)
	}
	if n := testing.AllocsPerRun(100, func() { plan.Retry(); ask() }); n != 0 {
		t.Errorf("a known key costs %v allocations", n)
	}
	d.who, d.state = nil, policy.CredentialRevoked
	plan.Retry()
	ask()
	if got := plan.Decide(); got.Outcome != OutcomeUnauthorized || got.Credential != policy.CredentialRevoked {
		t.Errorf("a revoked key: %v, %v", got.Outcome, got.Credential)
	}
	d.read = false
	plan.Retry()
	plan.RequireRecords()
	ask()
	if got := plan.Decide(); !got.Denied() || !plan.Unchecked() {
		t.Errorf("with required records: %v, status %d", got.Outcome, got.Status)
	}
}

// TestKeysWithoutADirectory tests that a key is not valid where there is no directory.
func TestKeysWithoutADirectory(t *testing.T) {
	p := forcePolicy(t, fromDirectory{}, false)
	p.Identify[0].DenyInvalid = true
	a := &client{peer: netip.MustParseAddr("192.0.2.1"), header: map[string]string{"X-Key": "secret"}}
	var plan Plan
	plan.Add(mustCompile(t, p), a)
	if got := plan.Decide(); got.Outcome != OutcomeUnauthorized || got.Credential != policy.CredentialInvalid {
		t.Errorf("%v, %v", got.Outcome, got.Credential)
	}
}
