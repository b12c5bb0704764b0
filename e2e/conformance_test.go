// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/conformance"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// caddyFront runs the stories against Caddy: one process for each group of stories, with a site for
// each story.
type caddyFront struct {
	t       testing.TB
	redis   *redistest.Server
	groups  []caddyGroup
	running *process // the process of the current group
}

// caddyGroup is a sequence of stories that share a Caddy.
type caddyGroup struct {
	caddyfile string
	addresses map[string]string // addresses of the sites, by the file and line of the story
	names     map[string]bool   // namespaces of their policies
	away      bool
}

// caddyGroupMax bounds the sites of a Caddy, because each site watches a file, and the kernel
// grants 128 watches to all processes together.
const caddyGroupMax = 48

// newCaddyFront divides the stories into groups. Either all stories of a group have a Redis, or
// none has. No two sites of a group share a namespace.
func newCaddyFront(t testing.TB, stories []conformance.Story) *caddyFront {
	t.Helper()
	f := &caddyFront{t: t, redis: redistest.Start(t)}
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t),
		Attrs: map[string]string{"query": "http.request.uri.query", "protocol": "http.request.proto"}}
	upstream, absent := startUpstream(t, conformance.Upstream()), "unix://"+filepath.Join(t.TempDir(), "nobody.sock")
	var group *caddyGroup
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except["caddy"]; excepted {
			continue
		}
		if group == nil || group.away != s.Away || group.names[s.Namespace()] || len(group.names) == caddyGroupMax {
			f.groups = append(f.groups, caddyGroup{caddyfile: caddyHead(f.redis.URL()), addresses: map[string]string{},
				names: map[string]bool{}, away: s.Away})
			group = &f.groups[len(f.groups)-1]
			if s.Away {
				group.caddyfile = caddyHead(absent)
			}
		}
		address := freeport.Address(t)
		group.addresses[s.Place], group.names[s.Namespace()] = address, true
		group.caddyfile += fmt.Sprintf(":%s {\n\tpenstock {\n\t\tpolicy %s\n\t}\n\treverse_proxy %s\n}\n", portOf(address),
			s.Write(t, t.TempDir(), set), upstream)
	}
	return f
}

// addressOf returns the address of the story's site, and starts the Caddy of its group if
// necessary.
func (f *caddyFront) addressOf(s *conformance.Story) string {
	f.t.Helper()
	for len(f.groups) > 0 {
		if address, ok := f.groups[0].addresses[s.Place]; ok {
			if f.running == nil {
				f.running = startCaddy(f.t, f.groups[0].caddyfile)
			}
			f.running.awaitListening(address)
			return address
		}
		if f.running != nil {
			_ = f.running.command.Process.Signal(syscall.SIGTERM)
			<-f.running.done
			f.running = nil
		}
		f.groups = f.groups[1:]
	}
	f.t.Fatalf("%s has no site", s.Place)
	return ""
}

// caddyHead is the configuration that the sites share. The deadline is long, because only stories
// without Redis test its absence, and there connecting fails at once.
func caddyHead(redis string) string {
	return "{\n\tadmin ADMIN\n\tpenstock {\n\t\tstore redis " + redis + " {\n\t\t\ttimeout 5s\n\t\t}\n\t}\n}\n:SITE {\n\trespond ok\n}\n"
}

func (f *caddyFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.addressOf(s)
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		before := f.redis.Calls("evalsha")
		answer := e.Request.Send(t, address)
		if settles := e.For("caddy").Settled != nil; settles && answer.Passed {
			eventually.Until(t, 10*time.Second, "the settlement is in Redis", func() bool {
				return f.redis.Calls("evalsha") >= before+2 // the charge and the settlement
			})
		}
		return answer
	}
}

// TestConformanceOfCaddy runs the conformance corpus against Caddy.
func TestConformanceOfCaddy(t *testing.T) {
	t.Parallel()
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newCaddyFront(t, all)
	conformance.Run(t, "caddy", all[:len(stories)], f.begin)
	conformance.RunWrong(t, "caddy", all[len(stories):], f.begin)
}
