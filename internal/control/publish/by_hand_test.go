// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

// plane.sql runs statements as an operator does with psql.
func (p *plane) sql(statements ...string) {
	p.t.Helper()
	for _, statement := range statements {
		if _, err := p.ledger.Pool.Exec(p.t.Context(), statement); err != nil {
			p.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// listUnpublished returns the names of what is not published, with the reasons.
func (p *plane) listUnpublished() string {
	p.t.Helper()
	all, err := p.ledger.Unpublished(p.t.Context(), policy.ClientName{}, 10)
	if err != nil {
		p.t.Fatal(err)
	}
	var texts []string
	for _, u := range all {
		texts = append(texts, u.Kind+":"+u.ID+" "+u.Problem)
	}
	return strings.Join(texts, "\n")
}

// TestRowsChangedByHandArePublished tests that changes that operators make by SQL reach Redis and
// the audit trail. Rows that are not valid must leave the record in Redis as it was, even if all
// records are written again. The reason must then be listed.
func TestRowsChangedByHandArePublished(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	p.editKey(newKey("ann"))
	p.edit(directory.Edit{Client: "user:bob", Action: directory.ActionSetLimits, Rule: "api", Limits: []string{"5/1h"}})
	p.block("ip:192.0.2.7")
	const limited, more = `{"limits":{"api":{"limits":["5/1h"],"reason":"a test"}}}`, `{"limits":{"api":{"limits":["9/1h"],"reason":"a test"}}}`
	p.awaitText("limits are in Redis", "user:bob", limited)
	p.awaitText("a block of a network is in Redis", "ip:192.0.2.7", blocked)
	p.sql("UPDATE overrides SET limits = '{9/1h}' WHERE id = 'bob'")
	p.awaitText("limits that were changed by SQL are in Redis", "user:bob", more)
	p.sql("UPDATE api_keys SET disabled = true")
	p.awaitsKeys("a key that was changed by SQL is in Redis", "ann", hashed("ann")[:8]+" inactive")
	changes, err := p.ledger.History(t.Context(), ledger.WhatClient, "user:bob", 0, 10)
	if err != nil || len(changes) != 2 || changes[0].Origin != "sql" || changes[0].Action != "edit by SQL" || *changes[0].Before != limited || *changes[0].After != more {
		t.Errorf("the changes are %+v, %v", changes, err)
	}

	p.sql("UPDATE overrides SET limits = '{5/bogus}' WHERE id = 'bob'", `UPDATE api_keys SET limits = '{"api": 5}', disabled = false`,
		"UPDATE clients SET note = E'a\\u0001' WHERE id = '192.0.2.7'", "INSERT INTO clients (kind, id, revision, updated_at) VALUES ('usr', 'x', 1, now())")
	eventually.Until(t, patience, "four are not published", func() bool { return strings.Count(p.listUnpublished(), "\n") == 3 })
	for _, reason := range []string{"ip:192.0.2.7 note", "user:bob limits for rule", "usr:x client", "~key:" + hashed("ann")} {
		if all := p.listUnpublished(); !strings.Contains(all, reason) {
			t.Errorf("%q is not a reason in\n%s", reason, all)
		}
	}
	holds := func(what string) {
		t.Helper()
		if text := p.text("user:bob"); text != more {
			t.Errorf("%s: the limits are %s", what, text)
		}
		if text := p.text("ip:192.0.2.7"); text != blocked {
			t.Errorf("%s: the network has %s", what, text)
		}
		if keys := p.keys("ann"); keys != hashed("ann")[:8]+" inactive" {
			t.Errorf("%s: the key is %s", what, keys)
		}
	}
	holds("rows are not valid")
	before, err := p.source.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p.sql("UPDATE region_publications SET generation = ''")
	eventually.Until(t, patience, "all is written again", func() bool {
		g, err := p.source.Generation(t.Context())
		return err == nil && g != before && g != ""
	})
	holds("all was written again")

	p.sql("UPDATE overrides SET limits = '{5/1h}' WHERE id = 'bob'", "UPDATE api_keys SET limits = NULL", "UPDATE clients SET note = NULL",
		"DELETE FROM clients WHERE kind = 'usr'")
	p.awaitText("limits that are valid again are in Redis", "user:bob", limited)
	p.awaitsKeys("a key that is valid again is in Redis", "ann", hashed("ann")[:8]+" valid")
	eventually.Until(t, patience, "all is published", func() bool { return p.listUnpublished() == "" })
	if v, broken, err := p.ledger.Verify(t.Context()); err != nil || broken != "" || v.Changes < 8 {
		t.Errorf("the audit trail: %+v %q %v", v, broken, err)
	}
}

// TestEditsByHandDoNotDeadlock tests that statements of an operator that change the same rows again
// and again never deadlock with the publisher, and that the publisher does not wait for them.
func TestEditsByHandDoNotDeadlock(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	p.block("user:bob")
	p.editKey(newKey("ann"))
	p.awaitText("a block is in Redis", "user:bob", blocked)
	p.sql("UPDATE clients SET note = 'first'")
	open, err := p.ledger.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(t.Context()) }()
	if _, err := open.Exec(t.Context(), "UPDATE clients SET note = 'second'"); err != nil {
		t.Fatal(err)
	}
	p.block("user:eve")
	p.awaitText("a block is in Redis while an operator has rows locked", "user:eve", blocked)
	if err := open.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	const noted = `{"block":{"reason":"a test"},"note":"second"}`
	p.awaitText("a note is in Redis", "user:bob", noted)
	for range 50 {
		p.sql("UPDATE clients SET note = note", "UPDATE api_keys SET disabled = NOT disabled")
	}
	p.sql("UPDATE clients SET note = NULL", "UPDATE api_keys SET disabled = false")
	p.awaitText("the last edit is in Redis", "user:bob", blocked)
	p.awaitsKeys("the key is in Redis", "ann", hashed("ann")[:8]+" valid")
}
