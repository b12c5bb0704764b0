// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"encoding/json"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

var record = flag.String("record", "", "write what this release writes to Redis into testdata/releases, under the commit of the release")

// releasesFolder has a folder for each earlier release, named by its commit, with the values that
// the release wrote to Redis.
const releasesFolder = "testdata/releases"

// recordedAt is the time at which the recorded edits were made.
var recordedAt = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// releaseEdit is a line of edits.json.
type releaseEdit struct {
	Client *directory.Edit
	Key    *directory.KeyEdit
}

// storedValue is a value in Redis: a text, the members of a sorted set whose scores are 0, or the
// fields of the entries of a stream.
type storedValue struct {
	Key, Type string
	Values    []string
}

// editAsReleases makes the same edits as the earlier releases, which edits.json lists.
func editAsReleases(t *testing.T, source directory.Source) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(releasesFolder, "edits.json"))
	if err != nil {
		t.Fatal(err)
	}
	var edits []releaseEdit
	if err := json.Unmarshal(text, &edits); err != nil {
		t.Fatal(err)
	}
	editor := directory.Editor{Source: source, Now: func() time.Time { return recordedAt }}
	for _, e := range edits {
		if e.Client != nil {
			_, err = editor.Apply(t.Context(), *e.Client)
		} else {
			_, err = editor.ApplyKey(t.Context(), *e.Key)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// dumpRedis returns all values of the directory, by their keys. The generation, which is random,
// has the value "random".
func dumpRedis(t *testing.T, client redistest.Client) (all []storedValue) {
	t.Helper()
	ctx := t.Context()
	keys := client.Keys(ctx, "rl1:~*").Val()
	slices.Sort(keys)
	for _, key := range keys {
		v := storedValue{Key: key, Type: client.Type(ctx, key).Val()}
		switch v.Type {
		case "string":
			v.Values = []string{client.Get(ctx, key).Val()}
		case "zset":
			v.Values = client.ZRange(ctx, key, 0, -1).Val()
		case "stream":
			for _, entry := range client.XRange(ctx, key, "-", "+").Val() {
				for field, value := range entry.Values {
					v.Values = append(v.Values, field, value.(string))
				}
			}
		}
		if strings.HasPrefix(key, "rl1:~generation:") {
			v.Values = []string{"random"}
		}
		all = append(all, v)
	}
	return all
}

// restoreRedis writes recorded values.
func restoreRedis(t *testing.T, client redistest.Client, all []storedValue) {
	t.Helper()
	_, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for _, v := range all {
			switch v.Type {
			case "string":
				p.Set(t.Context(), v.Key, v.Values[0], 0)
			case "zset":
				for _, member := range v.Values {
					p.ZAdd(t.Context(), v.Key, redis.Z{Member: member})
				}
			case "stream":
				for i := 0; i < len(v.Values); i += 2 {
					p.XAdd(t.Context(), &redis.XAddArgs{Stream: v.Key, Values: v.Values[i : i+2]})
				}
			default:
				t.Errorf("%s is a %s", v.Key, v.Type)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// releasesOf returns what each earlier release wrote, by its commit.
func releasesOf(t *testing.T) map[string][]storedValue {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(releasesFolder, "*", "redis.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no release is recorded: %v", err)
	}
	releases := map[string][]storedValue{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []storedValue
		if err := json.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		releases[filepath.Base(filepath.Dir(file))] = all
	}
	return releases
}

// TestEarlierReleasesReadTheseRecords tests that this release writes the same bytes to Redis as
// earlier releases for the same edits, so that earlier releases can read them.
func TestEarlierReleasesReadTheseRecords(t *testing.T) {
	server := redistest.Start(t)
	editAsReleases(t, sourceOf(t, redisstore.Options{URL: server.URL()}))
	wrote := dumpRedis(t, server.Client())
	if *record != "" {
		text, err := json.MarshalIndent(wrote, "", "  ")
		folder := filepath.Join(releasesFolder, *record)
		if err == nil {
			err = os.MkdirAll(folder, 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, "redis.json"), append(text, '\n'), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for commit, recorded := range releasesOf(t) {
		for i := range max(len(wrote), len(recorded)) {
			var now, then storedValue
			if i < len(wrote) {
				now = wrote[i]
			}
			if i < len(recorded) {
				then = recorded[i]
			}
			if now.Key != then.Key || now.Type != then.Type || !slices.Equal(now.Values, then.Values) {
				t.Fatalf("this release writes\n%q\nand %s wrote\n%q", now, commit, then)
			}
		}
	}
}

// TestRecordsOfEarlierReleases tests records and keys that an earlier release wrote. They are in
// force, except for parts that have ended, and can be edited further, and the history can be read.
func TestRecordsOfEarlierReleases(t *testing.T) {
	for commit, recorded := range releasesOf(t) {
		t.Run(commit, func(t *testing.T) {
			server := redistest.Start(t)
			restoreRedis(t, server.Client(), recorded)
			source := sourceOf(t, redisstore.Options{URL: server.URL()})
			d := open(t, directory.Options{Source: source})
			checkRecordsOfReleases(t, d)
			checkKeysOfReleases(t, d, source)
			history, err := source.History(t.Context(), policy.ClientName{}, 100)
			if err != nil || len(history) < 24 || history[len(history)-1].Action != "set-tier gold" || history[len(history)-1].Reason != "paid" {
				t.Errorf("the history has %d entries, %v: %+v", len(history), err, history)
			}
			page, err := (&directory.Editor{Source: source}).List(t.Context(), directory.ListQuery{Most: 100})
			if err != nil || len(page.Clients) != 10 {
				t.Errorf("the list has %+v, %v", page, err)
			}
			change := edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
			if b, a := change.Before, change.After; b.Tier != "gold" || len(b.Grants) != 1 || a.Block == nil || a.Tier != "gold" || len(a.Limits) != 2 || a.Note != b.Note {
				t.Errorf("a further edit changes %+v to %+v", b, a)
			}
		})
	}
}

func checkRecordsOfReleases(t *testing.T, d *directory.Directory) {
	t.Helper()
	ann := fetch(t, d, "user", "ann")
	if ann == nil || ann.Tier != "gold" || ann.Blocked {
		t.Fatalf("user:ann has %+v", ann)
	}
	if set, ok := ann.Overrides.Of("api"); !ok || len(set.Limits) != 2 || set.Limits[0].Count() != 500 {
		t.Errorf("user:ann has the limits %+v for the rule api", set)
	}
	for _, c := range []struct {
		kind, id, tenant string
		blocked, exempt  bool
	}{{"user", "bob", "", true, false}, {"user", "dan", "acme", false, true}, {"header.x-user", "Zoë", "", false, false}, {"tenant", "acme", "", false, false}} {
		if r := fetch(t, d, c.kind, c.id); r == nil || r.Blocked != c.blocked || r.Exempt != c.exempt || r.Tenant != c.tenant {
			t.Errorf("%s:%s has %+v", c.kind, c.id, r)
		}
	}
	if r := fetch(t, d, "user", "gone"); r != nil {
		t.Errorf("a forgotten client has %+v", r)
	}
	one, other := d.FindAddr(netip.MustParseAddr("192.0.2.7"), now()), d.FindAddr(netip.MustParseAddr("192.0.2.8"), now())
	if one == nil || !one.Exempt || other == nil || !other.Blocked || d.FindAddr(netip.MustParseAddr("2001:db8::1"), now()) == nil {
		t.Errorf("networks have %+v and %+v", one, other)
	}
}

func checkKeysOfReleases(t *testing.T, d *directory.Directory, source directory.Source) {
	t.Helper()
	for key, want := range map[string]policy.CredentialState{"first": policy.CredentialValid, "next": policy.CredentialValid, "lost": policy.CredentialRevoked,
		"off": policy.CredentialInactive, "later": policy.CredentialInactive, "made up": policy.CredentialUnknown} {
		who, state := askKey(t, d, key)
		if state != want {
			t.Errorf("the key %q is %v, want %v", key, state, want)
		}
		if state != policy.CredentialValid {
			continue
		}
		if set, ok := who.Overrides.Of("api"); who.User != "u" || who.APIKey != "acme" || who.Tier != "gold" || !ok || set.Limits[0].Count() != 9 {
			t.Errorf("the key %q identifies %+v", key, who)
		}
	}
	editKeys(t, source, directory.KeyEdit{Action: directory.KeyRevoke, Name: "acme"})
	awaitState(t, d, "first", policy.CredentialRevoked)
	awaitState(t, d, "next", policy.CredentialRevoked)
}
