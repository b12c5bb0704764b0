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

// siteMax bounds the number of sites of a process. Each site watches a file, and the kernel permits
// only 128 watches for all processes together.
const siteMax = 48

// groupedFront divides the stories into groups. It runs each group against a process of its own,
// which has a site for each story.
type groupedFront struct {
	t      testing.TB
	name   string // the name of the front in the corpus
	redis  *redistest.Server
	absent string // the URL of a Redis that does not exist
	groups []storyGroup
	// start starts the process of a group, which uses the Redis at the URL. It returns the
	// addresses of the sites, in the order of the policy files.
	start     func(redis string, policies []string) (process *server, addresses []string)
	running   *server // the process of the current group
	addresses []string
}

// storyGroup is a sequence of stories that share a process. Either all of these stories have a
// Redis, or none of them. No two of them have the same namespace.
type storyGroup struct {
	away     bool
	policies []string       // the files of their policies
	index    map[string]int // the indexes of the policies, by the file and line of the story
	names    map[string]bool
}

// newGroupedFront divides the stories into groups. The argument attrs maps the attribute names in
// the stories to the front's attribute names.
func newGroupedFront(t testing.TB, name string, attrs map[string]string, stories []conformance.Story) *groupedFront {
	t.Helper()
	f := &groupedFront{t: t, name: name, redis: redistest.Start(t), absent: "unix://" + filepath.Join(t.TempDir(), "nobody.sock")}
	set := conformance.Setting{Now: time.Now(), KeySetURL: conformance.ServeKeySet(t), Attrs: attrs}
	var group *storyGroup
	for i := range stories {
		s := &stories[i]
		if _, excepted := s.Except[name]; excepted {
			continue
		}
		if group == nil || group.away != s.Away || group.names[s.Namespace()] || len(group.names) == siteMax {
			f.groups = append(f.groups, storyGroup{away: s.Away, index: map[string]int{}, names: map[string]bool{}})
			group = &f.groups[len(f.groups)-1]
		}
		group.index[s.Place], group.names[s.Namespace()] = len(group.policies), true
		group.policies = append(group.policies, s.Write(t, t.TempDir(), set))
	}
	return f
}

// addressOf returns the address of the story's site. If the process of the story's group does not
// run yet, it stops the previous process and starts this one.
func (f *groupedFront) addressOf(s *conformance.Story) string {
	f.t.Helper()
	for ; len(f.groups) > 0; f.groups = f.groups[1:] {
		g := &f.groups[0]
		if i, ok := g.index[s.Place]; ok {
			if f.running == nil {
				url := f.redis.URL()
				if g.away {
					url = f.absent
				}
				f.running, f.addresses = f.start(url, g.policies)
			}
			return f.addresses[i]
		}
		if f.running != nil {
			_ = f.running.command.Process.Signal(syscall.SIGTERM)
			<-f.running.done
			f.running = nil
		}
	}
	f.t.Fatalf("%s has no site", s.Place)
	return ""
}

func (f *groupedFront) begin(_ testing.TB, s *conformance.Story) conformance.Asker {
	address := f.addressOf(s)
	return func(t testing.TB, e *conformance.Exchange) conformance.Answer {
		before := f.redis.Calls("evalsha")
		answer := e.Request.Send(t, address)
		if settles := e.For(f.name).Settled != nil; settles && answer.Passed {
			eventually.Until(t, 10*time.Second, "the settlement is in Redis", func() bool {
				return f.redis.Calls("evalsha") >= before+2 // the charge and the settlement
			})
		}
		return answer
	}
}

// runConformance runs the conformance corpus against a front whose processes are started by the
// function named start.
func runConformance(t *testing.T, name string, attrs map[string]string, start func(redis string, policies []string) (*server, []string)) {
	t.Helper()
	stories, wrong := conformance.Load(t), conformance.LoadWrong(t)
	all := slices.Concat(stories, wrong)
	f := newGroupedFront(t, name, attrs, all)
	f.start = start
	conformance.Run(t, name, all[:len(stories)], f.begin)
	conformance.RunWrong(t, name, all[len(stories):], f.begin)
}
