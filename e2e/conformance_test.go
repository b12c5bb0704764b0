// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/conformance"
	"github.com/penstock/penstock/internal/redistest"
)

// caddyFront is Caddys with a site for each story.
type caddyFront struct {
	redis     *redistest.Server
	addresses map[string]string // of its site, by the story's place
}

// newCaddyFront starts the Caddys: one that counts in a Redis, one whose Redis is not there, and another one in that Redis
// for namespaces that the first has, since no two sites of a Caddy may have a rule of one name there.
func newCaddyFront(t testing.TB, stories []conformance.Story) *caddyFront {
	t.Helper()
	f := &caddyFront{redis: redistest.Start(t), addresses: map[string]string{}}
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t),
		Attrs: map[string]string{"query": "http.request.uri.query", "protocol": "http.request.proto"}}
	upstream, known := startUpstream(t, conformance.Upstream()), map[string]bool{}
	first, second := caddyHead(f.redis.URL()), caddyHead(f.redis.URL())
	away := caddyHead("unix://" + filepath.Join(t.TempDir(), "nobody.sock"))
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except["caddy"]; excepted {
			continue
		}
		f.addresses[s.Place] = laterAddress(t)
		in := &first
		switch {
		case s.Away:
			in = &away
		case known[s.Namespace()]:
			in = &second
		}
		known[s.Namespace()] = true
		*in += fmt.Sprintf(":%s {\n\tpenstock {\n\t\tpolicy %s\n\t}\n\treverse_proxy %s\n}\n", portOf(f.addresses[s.Place]),
			s.Write(t, t.TempDir(), set), upstream)
	}
	for _, caddyfile := range []string{first, second, away} {
		startCaddy(t, caddyfile)
	}
	return f
}

// caddyHead is what the sites share. The deadline is long: what these tests are about is not what happens without Redis,
// but in stories that say so, and there nobody answers at all.
func caddyHead(redis string) string {
	return "{\n\tadmin ADMIN\n\tpenstock {\n\t\tstore redis " + redis + " {\n\t\t\ttimeout 5s\n\t\t}\n\t}\n}\n:SITE {\n\trespond ok\n}\n"
}

func (f *caddyFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.addresses[s.Place]
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		before := f.redis.Calls("evalsha")
		answer := e.Request.Send(t, address)
		if settles := e.For("caddy").Settled != nil; settles && answer.Passed {
			eventually(t, 10*time.Second, "the settlement is in Redis", func() bool {
				return f.redis.Calls("evalsha") >= before+2 // the charge, and what the response made of it
			})
		}
		return answer
	}
}

// TestConformanceOfCaddy tells the corpus to a Caddy.
func TestConformanceOfCaddy(t *testing.T) {
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newCaddyFront(t, all)
	conformance.Run(t, "caddy", all[:len(stories)], f.begin)
	conformance.RunWrong(t, "caddy", all[len(stories):], f.begin)
}
