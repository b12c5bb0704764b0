// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

const byKey = shared + `:SITE {
	penstock {
		identify api_key {
			keys_file KEYS
		}
		identify ip
		rule api 1000000/30d fixed_window {
			tiers gold 2000000/30d fixed_window
		}
	}
	respond "{http.penstock.client}"
}
`

// keyHolder is the owner of an API key, who sends requests without a pause.
type keyHolder struct {
	name             string
	asked, refused   atomic.Int64
	limit            atomic.Int64 // of the last answer
	lastGood         atomic.Int64 // when the last admitted request was sent, in Unix microseconds
	tiers            sync.Map     // all limits that answers have reported
	body, challenged atomic.Pointer[string]
}

func (h *keyHolder) askUntil(p *process, done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
		}
		sent := time.Now()
		a := p.ask(context.Background(), http.MethodGet, "/", "X-API-Key", keyOf(h.name))
		h.asked.Add(1)
		switch {
		case a.status == http.StatusOK && a.body == h.name:
			limit := a.number("X-RateLimit-Limit")
			h.limit.Store(limit)
			h.tiers.Store(limit, true)
			h.lastGood.Store(max(h.lastGood.Load(), sent.UnixMicro()))
		case a.status == http.StatusUnauthorized:
			h.refused.Add(1)
			challenge := a.header.Get("WWW-Authenticate")
			h.body.Store(&a.body)
			h.challenged.Store(&challenge)
		default:
			p.t.Errorf("%s: %d %q", h.name, a.status, a.body)
		}
	}
}

// editWithin bounds the time until an edit of a keys file is in force. It allows for two polls on a
// busy machine.
const editWithin = 6 * time.Second

// TestKeysAreEditedUnderLoad edits the keys file of two running Caddys. One key is revoked, and
// another gets another tier. A broken edit changes nothing and is logged. Requests with the
// unchanged key are served all the time, and no request is lost or counted twice.
func TestKeysAreEditedUnderLoad(t *testing.T) {
	t.Parallel()
	entries := map[string]string{"steady": `tier = "gold"`, "revoked": `tier = "gold"`, "moved": ""}
	keys := newKeysFile(t, entries)
	redis := redistest.Start(t)
	nodes := fleet(t, 2, redis, strings.ReplaceAll(byKey, "KEYS", keys.path))
	steady, revoked, moved := &keyHolder{name: "steady"}, &keyHolder{name: "revoked"}, &keyHolder{name: "moved"}
	done := make(chan struct{})
	var load sync.WaitGroup
	for _, p := range nodes {
		for _, h := range []*keyHolder{steady, revoked, moved} {
			load.Go(func() { h.askUntil(p, done) })
		}
	}
	logged := func(text string) func() bool {
		return func() bool {
			return strings.Contains(nodes[0].log.String(), text) && strings.Contains(nodes[1].log.String(), text)
		}
	}
	busy := func() bool { return revoked.asked.Load() > 100 && moved.limit.Load() == 1_000_000 }
	eventually.Until(t, patience, "everybody is served", busy)

	keys.write("[[keys]]\nid = \"steady\"\nhash = \"" + keyOf("steady") + "\"\n")
	eventually.Until(t, patience, "the broken edit is in the log", logged("an edit of a file is rejected, its previous content stays in force"))
	if n := revoked.refused.Load() + steady.refused.Load() + moved.refused.Load(); n > 0 {
		t.Errorf("a broken edit has refused %d requests", n)
	}
	edited := maps.Clone(entries)
	edited["revoked"] += "\nrevoked = true\nreason = \"found in a public repository\""
	edited["moved"] = `tier = "gold"`
	keys.edit(edited)
	written := time.Now()
	eventually.Until(t, patience, "the revoked key is refused, and the moved one has its tier", func() bool {
		return revoked.refused.Load() > 10 && moved.limit.Load() == 2_000_000
	})
	<-time.After(time.Until(written.Add(editWithin)))
	close(done)
	load.Wait()

	if good := time.UnixMicro(revoked.lastGood.Load()).Sub(written); good > editWithin {
		t.Errorf("the revoked key was good for %v more", good)
	}
	if body, challenge := *revoked.body.Load(), *revoked.challenged.Load(); !strings.Contains(body, "The credential was revoked.") ||
		!strings.Contains(challenge, "invalid_token") || strings.Contains(body, "public repository") {
		t.Errorf("the revoked key is told %q, %q", body, challenge)
	}
	steady.tiers.Range(func(limit, _ any) bool {
		if limit != int64(2_000_000) {
			t.Errorf("the key that was not edited had a limit of %d", limit)
		}
		return true
	})
	if steady.refused.Load()+moved.refused.Load() > 0 {
		t.Errorf("keys that were not revoked were refused %d times", steady.refused.Load()+moved.refused.Load())
	}
	for _, h := range []*keyHolder{steady, revoked, moved} {
		want := h.asked.Load() - h.refused.Load()
		if got := sum(readUsed(t, redis, "rl1:who:api:{api_key:"+h.name+"}:*")); got != want {
			t.Errorf("%s: %d counted, %d admitted", h.name, got, want)
		}
	}
	for _, p := range nodes {
		if strings.Contains(p.log.String(), keyOf("")) || strings.Contains(p.scrape(), keyOf("")) {
			t.Error("the log or the metrics hold a key")
		}
	}
	if n := nodes[0].metric(`penstock_credentials_total{method="api_key",policy="who",state="revoked"}`); n < 1 {
		t.Errorf("the metric of revoked keys is %v", n)
	}
}
