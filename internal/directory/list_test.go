// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/directory/redisdir"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/test/redistest"
)

// listAll lists all clients page by page. It returns the clients, and how many pages there were. It
// fails the test if a page has more clients than requested, unless several clients share one place
// in Redis.
func listAll(t *testing.T, source directory.Source, query directory.ListQuery) (clients map[string]directory.Listed, pages int) {
	t.Helper()
	clients = map[string]directory.Listed{}
	editor := directory.Editor{Source: source}
	for {
		page, err := editor.List(t.Context(), query)
		if err != nil {
			t.Fatalf("%+v: %v", query, err)
		}
		if pages++; len(page.Clients) > max(query.Most, 8) || pages > 1000 {
			t.Fatalf("%+v: page %d has %d clients", query, pages, len(page.Clients))
		}
		for _, one := range page.Clients {
			clients[one.Client] = one
		}
		if query.After = page.After; query.After == "" {
			return clients, pages
		}
	}
}

// TestList tests that the pages of a list contain exactly the clients that the query selects, and
// no API key.
func TestList(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		want := map[string][]string{}
		add := func(client string, block bool) {
			action := directory.Edit{Client: client, Action: directory.ActionSetTier, Tier: "gold"}
			if block {
				action = directory.Edit{Client: client, Action: directory.ActionBlock}
			}
			edit(t, source, action)
			kind, _, _ := strings.Cut(client, ":")
			want[kind], want[""] = append(want[kind], client), append(want[""], client)
			if block {
				want["blocked"] = append(want["blocked"], client)
			}
		}
		for i := range 70 {
			add(fmt.Sprintf("user:u_%d", i), i%7 == 0)
			add(fmt.Sprintf("header.x-a*:%d", i), false)
			add(fmt.Sprintf("ip:10.0.%d.0/24", i), i%10 == 0)
		}
		add("header.x-ab:0", false)
		add("tenant:t_1", false)
		ending := directory.Edit{Client: "user:ended", Action: directory.ActionBlock, Until: time.Now().Add(time.Hour)}
		edit(t, source, ending)
		want[""], want["user"] = append(want[""], "user:ended"), append(want["user"], "user:ended")
		editKeys(t, source, creation("acme", "user:u", "a key"))
		for _, most := range []int{1, 9, 1000} {
			for _, kind := range []string{"", "user", "header.x-a*", "ip", "tenant", "api_key"} {
				got, pages := listAll(t, source, directory.ListQuery{Kind: kind, Most: most})
				names := slices.Sorted(maps.Keys(got))
				if slices.Sort(want[kind]); !slices.Equal(names, want[kind]) {
					t.Errorf("kind %q in pages of %d: %d clients in %d pages, want %d", kind, most, len(names), pages, len(want[kind]))
				}
			}
		}
		later := directory.Editor{Source: source, Now: func() time.Time { return ending.Until }}
		page, err := later.List(t.Context(), directory.ListQuery{Blocked: true, Most: 1000})
		if err != nil || page.After != "" || len(page.Clients) != len(want["blocked"]) {
			t.Errorf("blocked when one block has ended: %+v %v, want %d", page, err, len(want["blocked"]))
		}
		if got, _ := listAll(t, source, directory.ListQuery{Blocked: true, Most: 5}); len(got) != len(want["blocked"])+1 {
			t.Errorf("blocked now: %d, want one more than %d", len(got), len(want["blocked"]))
		}
	})
}

// TestListDeniesNonsense tests that a query that cannot be answered is an error.
func TestListDeniesNonsense(t *testing.T) {
	source := inRedis(t, redistest.Start(t).URL())
	editor := directory.Editor{Source: source}
	for want, queries := range map[error][]directory.ListQuery{
		directory.ErrEdit: {{}, {Most: -1}, {Most: directory.ListMax + 1}, {Most: 1, Kind: "usr"}, {Most: 1, Kind: "user:*"}},
		directory.ErrPlace: {{Most: 1, After: "x"}, {Most: 1, After: "scan:1@elsewhere:6379"}, {Most: 1, After: "scan:-1"},
			{Most: 1, Kind: "ip", After: "scan:"}, {Most: 1, Kind: "user", After: "network:"}, {Most: 1, After: "scan:\xff@" + strings.Repeat("x", 9000)}},
	} {
		for _, query := range queries {
			if page, err := editor.List(t.Context(), query); !errors.Is(err, want) || len(err.Error()) > 500 {
				t.Errorf("%.60q: %v, %.600v", query.After, page, err)
			}
		}
	}
}

// TestListHoldsItsBounds tests that the text of a page is bounded, that no client is omitted
// because of this, and that records that other programs wrote to Redis are listed with their
// problems.
func TestListHoldsItsBounds(t *testing.T) {
	server := redistest.Start(t)
	source, db := inRedis(t, server.URL()), server.Client()
	big := func(i int) string {
		var rules []string
		for r := range 28 {
			rules = append(rules, fmt.Sprintf(`"r%d":{"limits":["%d/1h"],"reason":"%s"}`, r, i+1, strings.Repeat("r", 500)))
		}
		return `{"limits":{` + strings.Join(rules, ",") + `}}`
	}
	pipe := db.Pipeline()
	for i := range 400 {
		pipe.Set(t.Context(), fmt.Sprintf("rl1:~who:user:%d", i), big(i), 0)
	}
	pipe.Set(t.Context(), "rl1:~who:user:garbage", "{", 0)
	pipe.Set(t.Context(), "rl1:~who:user:later", `{"v":9}`, 0)
	pipe.Set(t.Context(), "rl1:~who:user:huge", strings.Repeat("x", 1<<20), 0)
	pipe.Set(t.Context(), "rl1:~who:user:field", `{"`+strings.Repeat("f", 9000)+`":1}`, 0)
	pipe.Set(t.Context(), "rl1:~who:"+strings.Repeat("k", 1<<16), "{}", 0)
	pipe.RPush(t.Context(), "rl1:~who:user:list", "x")
	for i := range 3000 { // these are counters of clients
		pipe.Set(t.Context(), fmt.Sprintf("rl1:shop:api:{user:%d}", i), "1", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	got, pages := listAll(t, source, directory.ListQuery{Most: directory.ListMax})
	shown, problems, size := 0, map[string]string{}, 0
	for name, one := range got {
		if one.Record != nil {
			shown++
			continue
		}
		problems[name] = one.Problem
		if size = max(size, len(name)+len(one.Problem)); one.Problem == "" {
			t.Errorf("%s has neither a record nor a problem", name)
		}
	}
	for _, name := range []string{"garbage", "later", "huge", "field", "list"} {
		if problems["user:"+name] == "" {
			t.Errorf("%s has no problem", name)
		}
	}
	if len(got) != 406 || size > 2000 || shown < 130 || pages == 1 && shown > 160 {
		t.Errorf("%d clients on %d pages, %d with their records; the greatest problem has %d bytes", len(got), pages, shown, size)
	}
}

// TestListInACluster tests that a list has the records of every server of a cluster.
func TestListInACluster(t *testing.T) {
	c := redistest.StartCluster(t)
	c.AwaitOrder()
	source := sourceOf(t, redisstore.Options{Mode: redisstore.ModeCluster, Addrs: c.Addrs()})
	for i := range 60 {
		edit(t, source, directory.Edit{Client: fmt.Sprintf("user:u_%d", i), Action: directory.ActionSetTier, Tier: "gold"})
	}
	if got, _ := listAll(t, source, directory.ListQuery{Most: 9}); len(got) != 60 {
		t.Errorf("%d clients, want 60", len(got))
	}
}

// TestListNeedsItsRight tests that a list works with the documented rights, and that the error
// names a right that is missing.
func TestListNeedsItsRight(t *testing.T) {
	server := redistest.StartTCP(t)
	list := func(name, rights string) error {
		words := []any{"acl", "setuser", name, "on", ">secret"}
		for word := range strings.FieldsSeq(rights) {
			words = append(words, word)
		}
		if err := server.Client().Do(context.Background(), words...).Err(); err != nil {
			t.Fatal(err)
		}
		editor := directory.Editor{Source: sourceOf(t, redisstore.Options{URL: "redis://" + name + ":secret@" + server.Addr})}
		_, err := editor.List(t.Context(), directory.ListQuery{Kind: "user", Most: 1})
		return err
	}
	rights := redisstore.LeastPrivilege + " " + redisdir.ReadPrivilege
	if err := list("lister", rights+" "+redisdir.BulkPrivilege); err != nil {
		t.Errorf("with the right: %v", err)
	}
	if err := list("reader", rights); !errors.Is(err, directory.ErrSource) || !strings.Contains(err.Error(), "a list needs the right +scan") {
		t.Errorf("without the right: %v", err)
	}
}
