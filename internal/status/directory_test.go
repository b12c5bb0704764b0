// SPDX-License-Identifier: Apache-2.0

package status

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"testing"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/credential"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/store/memstore"
	"github.com/penstock/penstock/internal/test/request"
)

// TestStatusOfAKeyOfTheDirectory: the first look with a key reads the key, and then the record of
// its client. The answer has that client's own limits.
func TestStatusOfAKeyOfTheDirectory(t *testing.T) {
	source := new(directory.Memory)
	editor := directory.Editor{Source: source}
	const key = "a-key-of-the-directory-0123456789"
	sum := sha256.Sum256([]byte(key))
	if _, err := editor.ApplyKey(t.Context(), directory.KeyEdit{Action: directory.KeyCreate, Name: "acme", Hash: hex.EncodeToString(sum[:]), Actor: "tester",
		Reason: "a test", Record: &directory.KeyRecord{Name: "acme", Client: "user:ann"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := editor.Apply(t.Context(), directory.Edit{Client: "user:ann", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"77/1h"},
		Actor: "tester", Reason: "a test"}); err != nil {
		t.Fatal(err)
	}
	d, err := policyfile.Decode("policy.yaml", policyfile.YAML,
		[]byte("name: shop\nidentify: [{api_key: {keys: directory}}]\nrules: [{name: api, limit: 5/1h}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	verifiers, closer, err := credential.OpenAll(d, credential.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer closer.Close()
	rs, err := d.CompileWith(verifiers)
	if err != nil {
		t.Fatal(err)
	}
	store, err := memstore.New(memstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	clients, err := directory.Open(directory.Options{Source: source})
	if err != nil {
		t.Fatal(err)
	}
	defer clients.Close()
	var answer Answer
	look := &Looker{Store: store, Directory: clients, Plan: new(core.Plan)}
	asked, salt := &request.Attributes{MethodText: http.MethodGet, PathText: "/", Headers: map[string]string{"X-Api-Key": key}}, new([16]byte)
	if err := answer.Add(look, rs, asked); err != nil {
		t.Fatal(err)
	}
	if answer.Client != "ann" || len(answer.Limits) != 1 || answer.Limits[0].Limit != 77 {
		t.Errorf("%+v", answer)
	}
	fresh, err := directory.Open(directory.Options{Source: source})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	look.Directory = fresh
	var places []int32
	if got := look.Choose(func(p *core.Plan) *core.Ruleset {
		places = append(places, p.Place(rs, asked, salt))
		return rs
	}); got != rs || len(places) < 2 || places[len(places)-1] != core.PlaceOf(&policy.Identity{User: "ann"}, salt) {
		t.Errorf("by the owner of a key that was not read yet, the places are %v", places)
	}
}
