// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// sourceOf returns a source over Redis servers, and waits until they are ready.
func sourceOf(t *testing.T, o redisstore.Options) *redisdir.Source {
	t.Helper()
	o.Timeout = time.Second
	store, err := redisstore.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	var keys []string // the addresses of all servers of a cluster
	for i := range 200 {
		keys = append(keys, fmt.Sprint("rl1:~who:user:", i))
	}
	values := make([][]byte, len(keys))
	eventually.Until(t, 20*time.Second, "every server of Redis answers", func() bool {
		return store.Check(t.Context()) == nil && store.Values(t.Context(), keys, values) == nil
	})
	return redisdir.New(store)
}

// lifeOfAKey tests creating, rotating, revoking and listing a key in a source.
func lifeOfAKey(t *testing.T, source directory.Source) {
	t.Helper()
	d := open(t, directory.Options{Source: source})
	awaitState(t, d, "first", policy.CredentialUnknown)
	editKeys(t, source, creation("acme", "user:u", "first"))
	awaitState(t, d, "first", policy.CredentialValid)
	_, next := hashOf("next")
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyRotate, Name: "acme", Hash: next, Until: time.Now().Add(time.Hour)})
	awaitState(t, d, "next", policy.CredentialValid)
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"})
	awaitState(t, d, "first", policy.CredentialRevoked)
	awaitState(t, d, "next", policy.CredentialRevoked)
	if page, err := (&directory.Editor{Source: source}).KeyPage(t.Context(), directory.KeyQuery{Most: 10}); err != nil || len(page.Keys) != 2 {
		t.Errorf("the list has %+v, %v", page, err)
	}
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyForget, Name: "acme"})
	awaitState(t, d, "first", policy.CredentialUnknown)
}

// TestKeysInACluster tests that keys can be edited in a cluster, where the records and the names
// are on different servers.
func TestKeysInACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	c.AwaitOrder()
	lifeOfAKey(t, sourceOf(t, redisstore.Options{Mode: redisstore.ModeCluster, Addrs: c.Addrs()}))
}

// TestPrivileges tests that the documented rights are enough to edit keys. For a process that only
// reads, it tests that the rights are enough to receive changes.
func TestPrivileges(t *testing.T) {
	server := redistest.StartTCP(t)
	user := func(name, rights string) directory.Source {
		words := []any{"acl", "setuser", name, "on", ">secret"}
		for word := range strings.FieldsSeq(rights) {
			words = append(words, word)
		}
		if err := server.Client().Do(t.Context(), words...).Err(); err != nil {
			t.Fatal(err)
		}
		return sourceOf(t, redisstore.Options{URL: "redis://" + name + ":secret@" + server.Addr})
	}
	reader := user("reader", redisstore.LeastPrivilege+" "+redisdir.ReadPrivilege)
	editor := user("editor", redisstore.LeastPrivilege+" "+redisdir.ReadPrivilege+" "+redisdir.EditPrivilege)
	lifeOfAKey(t, editor)
	d := open(t, directory.Options{Source: reader})
	awaitState(t, d, "told", policy.CredentialUnknown)
	editKeys(t, editor, creation("told", "user:u", "told"))
	awaitState(t, d, "told", policy.CredentialValid)
	_, hash := hashOf("other")
	if _, err := reader.AddKey(t.Context(), directory.KeyName{Name: "other", Hash: hash}, 0); err == nil {
		t.Error("a process that reads may write")
	}
}

// TestAMovingSlotFailsNoRead reads made-up clients while a slot of a cluster moves. The server of
// the slot redirects the read of each name that it does not have. Other clients must be read
// nevertheless, so that a blocked client stays blocked.
func TestAMovingSlotFailsNoRead(t *testing.T) {
	c := redistest.StartCluster(t)
	c.AwaitOrder()
	source := sourceOf(t, redisstore.Options{Mode: redisstore.ModeCluster, Addrs: c.Addrs()})
	for _, id := range []string{"{moving}blocked", "blocked elsewhere"} {
		edit(t, source, directory.Edit{Client: "user:" + id, Action: directory.ActionBlock})
	}
	slot := c.Slot("rl1:~who:user:{moving}blocked")
	to := c.Master(0)
	if to == c.Master(slot) {
		to = c.Master(1<<14 - 1)
	}
	for _, step := range []struct {
		name string
		move func()
	}{
		{"before a move", func() {}},
		{"a move has begun", func() { c.BeginMove(slot, to) }},
		{"the keys have moved", func() { c.MoveKeys(slot, to, 100) }},
		{"the slot has moved", func() { c.EndMove(slot, to) }},
	} {
		step.move()
		d := open(t, directory.Options{Source: source})
		for i := range 3 {
			if !d.Fetch(t.Context(), 1, []policy.ClientName{{Kind: "user", ID: fmt.Sprint("{moving}made up ", i)}}) {
				t.Errorf("%s: a client without a record is denied", step.name)
			}
		}
		for _, id := range []string{"{moving}blocked", "blocked elsewhere"} {
			d.Fetch(t.Context(), 2, []policy.ClientName{{Kind: "user", ID: id}})
			if r, ok := d.Find("user", id, now()); !ok || r == nil || !r.Blocked {
				t.Errorf("%s: %q is not blocked: %+v, known %v, the source works: %v", step.name, id, r, ok, d.Works())
			}
		}
	}
}
