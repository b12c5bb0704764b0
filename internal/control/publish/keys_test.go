// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// newKey returns the edit that creates a key of a user of the same name.
func newKey(name string) directory.KeyEdit {
	return directory.KeyEdit{Action: directory.KeyCreate, Name: name, Hash: hashed(name), Actor: "x", Reason: "a test",
		Record: &directory.KeyRecord{Name: name, Client: "user:" + name}}
}

func (p *plane) editKey(e directory.KeyEdit) {
	p.t.Helper()
	e.Reason = "a test"
	if _, err := p.ledger.EditKeys(p.t.Context(), ledger.Actor{Name: "ops"}, e); err != nil {
		p.t.Fatal(err)
	}
}

// plane.keys returns what an operator sees of the keys of a name in Redis: their hashes and states.
func (p *plane) keys(name string) string {
	p.t.Helper()
	editor := directory.Editor{Source: p.source}
	shown, err := editor.KeysOf(p.t.Context(), name)
	if err != nil {
		return err.Error()
	}
	var texts []string
	for _, k := range shown.Keys {
		texts = append(texts, k.Hash[:8]+" "+k.State)
	}
	return strings.Join(texts, ", ")
}

func (p *plane) awaitsKeys(what, name, keys string) {
	p.t.Helper()
	eventually.Until(p.t, patience, what, func() bool { return p.keys(name) == keys })
}

const noKeys = `there is no API key of the name %q in the directory`

// TestKeysReachRedis tests that edits of keys are published with their names and their history,
// that an editor over Redis is rejected, and that a Redis that was emptied gets the keys again.
func TestKeysReachRedis(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.start()
	eventually.Until(t, patience, "Redis is filled", p.isComplete)
	first, second := hashed("ann")[:8], hashed("second")[:8]
	p.editKey(newKey("ann"))
	p.awaitsKeys("a key is in Redis", "ann", first+" valid")
	p.editKey(directory.KeyEdit{Action: directory.KeyDisable, Name: "ann"})
	p.awaitsKeys("a key is switched off", "ann", first+" inactive")
	p.editKey(directory.KeyEdit{Action: directory.KeyEnable, Name: "ann"})
	p.editKey(directory.KeyEdit{Action: directory.KeyRotate, Name: "ann", Hash: hashed("second"), Until: time.Now().Add(time.Hour)})
	both := first + " valid, " + second + " valid"
	if second < first {
		both = second + " valid, " + first + " valid"
	}
	p.awaitsKeys("two keys overlap", "ann", both)
	if err := p.redis.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	p.awaitsKeys("an emptied Redis gets the keys again", "ann", both)
	eventually.Until(t, patience, "Redis is filled", p.isComplete)
	editor := directory.Editor{Source: p.source}
	if _, err := editor.ApplyKey(t.Context(), newKey("bob")); err == nil || !strings.Contains(err.Error(), "penstock key --control URL") {
		t.Errorf("an edit of Redis beside the control plane: %v", err)
	}
	p.editKey(directory.KeyEdit{Action: directory.KeyRevoke, Name: "ann"})
	p.awaitsKeys("keys are revoked", "ann", strings.ReplaceAll(both, "valid", "revoked"))
	var history []directory.Entry
	var err error
	eventually.Until(t, patience, "the history is in Redis", func() bool {
		history, err = p.source.History(t.Context(), mustName(t, "user:ann"), 10)
		return err != nil || len(history) > 0
	})
	if err != nil || len(history) == 0 || history[0].Actor != "ops" || history[0].Action != "key revoke ann" || history[0].Key == "" {
		t.Errorf("the history in Redis is %+v, %v", history, err)
	}
	p.edit(directory.Edit{Client: "user:ann", Action: directory.ActionForget})
	p.awaitsKeys("a forgotten client has no keys", "ann", fmt.Sprintf(noKeys, "ann"))
	eventually.Until(t, patience, "no values of removed keys are left", func() bool {
		return p.redis.Client().Exists(t.Context(), "rl1:~key:"+hashed("ann"), "rl1:~key:"+hashed("second"), "rl1:~keys:{~directory}").Val() == 0
	})
}

// TestKeysOfAnEarlierReleaseAreImported tests that keys are imported, with their tiers, from a
// Redis whose control plane had only clients, and that unreadable keys are removed.
func TestKeysOfAnEarlierReleaseAreImported(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	_, end := p.start()
	p.block("user:bob")
	p.awaitText("a block is in Redis", "user:bob", blocked)
	end()
	for _, statement := range []string{"DELETE FROM key_imports", "UPDATE region_publications SET generation = 'control-OLD'"} {
		if _, err := p.ledger.Pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.source.SetGeneration(t.Context(), "control-OLD"); err != nil {
		t.Fatal(err)
	}
	editor := directory.Editor{Source: p.source}
	sold := newKey("sold")
	sold.Record.Tier = "gold"
	for _, e := range []directory.KeyEdit{sold, newKey("ann"), {Action: directory.KeyRevoke, Name: "ann", Actor: "x", Reason: "leaked"}} {
		if _, err := editor.ApplyKey(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.redis.Client().Set(t.Context(), "rl1:~key:"+hashed("bad"), "no record", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.source.AddKey(t.Context(), directory.KeyName{Name: "bad", Hash: hashed("bad")}, 0); err != nil {
		t.Fatal(err)
	}
	p.start()
	eventually.Until(t, patience, "all is published", func() bool {
		g, err := p.source.Generation(t.Context())
		return err == nil && strings.HasPrefix(g, directory.ControlledKeysPrefix)
	})
	for name, state := range map[string]string{"sold": " valid", "ann": " revoked"} {
		found, err := p.ledger.KeysNamed(t.Context(), name)
		if err != nil || len(found) != 1 || found[0].CreatedBy != "control" || p.keys(name) != hashed(name)[:8]+state {
			t.Errorf("%s: %+v, %v; in Redis %s", name, found, err, p.keys(name))
		}
	}
	if bad := p.keys("bad"); bad != fmt.Sprintf(noKeys, "bad") {
		t.Errorf("what nobody can read is still there: %s", bad)
	}
}
