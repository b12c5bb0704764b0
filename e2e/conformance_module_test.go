// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/conformance"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// moduleFront runs the stories against Envoy with the native module: one process for each group of
// stories, with a site for each story.
type moduleFront struct {
	t       testing.TB
	redis   *redistest.Server
	groups  []moduleGroup
	running *envoy // the process of the current group
}

// moduleGroup is a sequence of stories that share an Envoy. No two of them share a namespace.
type moduleGroup struct {
	settings []string
	index    map[string]int // of the sites, by the file and line of the story
	names    map[string]bool
	away     bool
	sites    []*site
}

// newModuleFront divides the stories into groups, as for Caddy.
func newModuleFront(t testing.TB, stories []conformance.Story) *moduleFront {
	t.Helper()
	f := &moduleFront{t: t, redis: redistest.Start(t)}
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t),
		Attrs: map[string]string{"query": "request.query", "protocol": "request.protocol"}}
	absent := "store: {type: redis, url: \"unix://" + filepath.Join(t.TempDir(), "nobody.sock") + "\", timeout: 5s}\n"
	var group *moduleGroup
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except["module"]; excepted {
			continue
		}
		if group == nil || group.away != s.Away || group.names[s.Namespace()] || len(group.names) == caddyGroupMax {
			f.groups = append(f.groups, moduleGroup{index: map[string]int{}, names: map[string]bool{}, away: s.Away})
			group = &f.groups[len(f.groups)-1]
		}
		store := inRedis(f.redis)
		if s.Away {
			store = absent
		}
		group.index[s.Place], group.names[s.Namespace()] = len(group.settings), true
		group.settings = append(group.settings, "policy: "+s.Write(t, t.TempDir(), set)+"\n"+store)
	}
	return f
}

// siteOf returns the story's site, and starts the Envoy of its group if necessary.
func (f *moduleFront) siteOf(s *conformance.Story) *site {
	f.t.Helper()
	for ; len(f.groups) > 0; f.groups = f.groups[1:] {
		g := &f.groups[0]
		if i, ok := g.index[s.Place]; ok {
			if f.running == nil {
				f.running, g.sites = startModule(f.t, module(f.t), conformance.Upstream(), g.settings...)
			}
			return g.sites[i]
		}
		if f.running != nil {
			_ = f.running.command.Process.Signal(syscall.SIGTERM)
			<-f.running.done
			f.running = nil
		}
	}
	f.t.Fatalf("%s has no site", s.Place)
	return nil
}

func (f *moduleFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.siteOf(s).address
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		before := f.redis.Calls("evalsha")
		answer := e.Request.Send(t, address)
		if settles := e.For("module").Settled != nil; settles && answer.Passed {
			eventually.Until(t, 10*time.Second, "the settlement is in Redis", func() bool {
				return f.redis.Calls("evalsha") >= before+2 // the charge and the settlement
			})
		}
		return answer
	}
}

// TestConformanceOfModule runs the conformance corpus against Envoy with the native module.
func TestConformanceOfModule(t *testing.T) {
	t.Parallel()
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newModuleFront(t, all)
	conformance.Run(t, "module", all[:len(stories)], f.begin)
	conformance.RunWrong(t, "module", all[len(stories):], f.begin)
}
