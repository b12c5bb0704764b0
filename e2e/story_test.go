// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// storyPolicy limits a user by week and by month. With limits by day, a test that runs at midnight
// might fail.
const storyPolicy = `name: shop
directory: true
events: {denied: all}
identify: [{header: {name: X-User, unverified: true}}]
rules:
  - {name: api, match: {path: /api/*}, limit: 5/week, tiers: {gold: 20/week}}
  - {name: export, match: {path: /export}, limit: 10/month}
`

// story holds two Caddys and an Envoy that count in one Redis, and the transcript of a test. Envoy
// has two sites: one has the filter and a bridge, and one has the native module.
type story struct {
	t       *testing.T
	redis   *redistest.Server
	caddies []*process
	files   []*policyFile // of the Caddys
	bridge  *bridge
	fronts  []storyFront
	// targets holds the flags that make a process or Redis the target of a command.
	targets map[string][]string
	names   []string // pairs for strings.NewReplacer: a text of this run, and its replacement in the transcript
	told    strings.Builder
}

// storyFront is a front with its address.
type storyFront struct{ name, address string }

// startStory starts the processes. The transcript names a process in place of its address.
func startStory(t *testing.T, redis *redistest.Server) *story {
	t.Helper()
	s := &story{t: t, redis: redis, targets: map[string][]string{"redis": {"--redis", redis.URL()}}}
	s.names = []string{redis.URL(), "redis://redis:6379", redis.Addr, "redis:6379"}
	for i := range 2 {
		file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
		file.edit(storyPolicy)
		p, name := startCaddy(t, directed, "PENSTOCK_REDIS="+redis.URL(), "POLICY="+file.path), fmt.Sprintf("caddy-%d", i+1)
		s.caddies, s.files = append(s.caddies, p), append(s.files, file)
		s.fronts = append(s.fronts, storyFront{name, p.address})
		s.targets[name] = []string{"--admin", p.admin}
		s.names = append(s.names, p.admin, name+":2019", file.path, "policy.yaml")
	}
	s.startEnvoy()
	return s
}

func (s *story) startEnvoy() {
	t := s.t
	t.Helper()
	filter := &site{set: relaxedDeadline}
	native := &site{filter: moduleFilter("directory: {}\n" + strings.Replace(storyPolicy, "directory: true\n", "", 1) + inRedis(s.redis))}
	useEnvoy(t, nil, filter, native)
	admin, token := freeport.Address(t), filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(operatorsToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.bridge = filter.startBridge(t, storyPolicy, "--redis", s.redis.URL(), "--redis-timeout", "5s", "--admin-listen", admin, "--admin-token-file", token)
	s.targets["bridge"] = []string{"--bridge", "http://" + admin, "--bridge-token-file", token}
	s.names = append(s.names, admin, "bridge:8442", token, "token", s.bridge.policy.path, "policy.yaml")
	s.fronts = append(s.fronts, storyFront{"envoy with the filter", filter.address}, storyFront{"envoy with the module", native.address})
}

// story.log adds a paragraph to the transcript.
func (s *story) log(format string, args ...any) {
	text := strings.NewReplacer(s.names...).Replace(fmt.Sprintf(format, args...))
	s.told.WriteString(strings.TrimRight(text, "\n") + "\n")
}

// story.print logs the transcript.
func (s *story) print() { s.t.Logf("the transcript:\n%s", s.told.String()) }

// story.run runs a command against a target, and writes it and its output to the transcript.
func (s *story) run(target string, args ...string) (out string) {
	s.t.Helper()
	out, _ = s.runTimed(target, args...)
	return out
}

// runTimed is like the method named run, and also returns the time at which the command ended.
func (s *story) runTimed(target string, args ...string) (out string, ended time.Time) {
	s.t.Helper()
	args = append(args, s.targets[target]...)
	result := penstock(s.t, args...)
	ended = time.Now()
	line := "$ penstock"
	for _, arg := range args {
		if strings.ContainsAny(arg, " *") {
			arg = `"` + arg + `"`
		}
		line += " " + arg
	}
	out = result.mustSucceed(s.t)
	s.log("%s\n%s", line, out)
	return out, ended
}

// story.ask sends a request of a user over a new connection, so that any worker of Envoy may decide
// it.
func (s *story) ask(front storyFront, path, user string) answer {
	s.t.Helper()
	a, err := ask(&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+front.address+path, "X-User", user)
	if err != nil {
		s.t.Fatalf("%s: %v", front.name, err)
	}
	return a
}

// The promise is that a change takes effect within a second. The test allows more time because
// other tests may keep a process from running.
const (
	heldWithin = 5 * time.Second
	heldInARow = 10 // consecutive answers, so that each worker of an Envoy gives some
)

// story.change runs a command, and waits until every front answers a user with the given status
// several times in a row. It adds to the transcript how long after the command that began.
func (s *story) change(path, user string, status int, target string, args ...string) {
	s.t.Helper()
	_, ended := s.runTimed(target, args...)
	held, row := make([]time.Duration, len(s.fronts)), make([]int, len(s.fronts))
	eventually.Until(s.t, patience, fmt.Sprintf("%s gets %d for %s on every front", user, status, path), func() bool {
		all := true
		for i, front := range s.fronts {
			if row[i] == heldInARow {
				continue
			}
			switch a := s.ask(front, path, user); {
			case a.status != status:
				row[i] = 0
			case row[i] == 0:
				held[i], row[i] = time.Since(ended), 1
			default:
				row[i]++
			}
			all = all && row[i] == heldInARow
		}
		return all
	})
	var since []string
	for i, front := range s.fronts {
		if held[i] > heldWithin {
			s.t.Errorf("%s answers %d only %v after the command %v", front.name, status, held[i], args)
		}
		since = append(since, fmt.Sprintf("%s %d ms", front.name, held[i].Milliseconds()))
	}
	s.log("# %s for %s: %d, after the end of the command at %s\n", user, path, status, strings.Join(since, ", "))
}

// story.exhaust sends requests of a user until every front answers 429.
func (s *story) exhaust(path, user string) {
	s.t.Helper()
	for _, front := range s.fronts {
		eventually.Until(s.t, patience, front.name+" answers 429", func() bool {
			return s.ask(front, path, user).status == http.StatusTooManyRequests
		})
	}
}
