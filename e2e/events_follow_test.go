// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// followedPolicy reports the denials of one of its two rules.
const followedPolicy = `name: shop
identify: [{header: {name: X-User, unverified: true}}]
events: {denied: none, admitted: 0}
rules:
  - {name: api, match: {path: /api*}, limit: 1/31d, events: {denied: all}}
  - {name: quiet, match: {path: /quiet*}, limit: 1/31d}
`

// followedEvents is a running command "penstock events --follow".
type followedEvents struct {
	t       *testing.T
	command *exec.Cmd
	mu      sync.Mutex
	out     bytes.Buffer
	said    bytes.Buffer // its standard error
}

// lockedBuffer is a buffer to which a command writes while a test reads it.
type lockedBuffer struct {
	mu   *sync.Mutex
	into *bytes.Buffer
}

func (b *lockedBuffer) Write(text []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.into.Write(text)
}

// follow starts the command, and waits until it follows the given number of nodes.
func follow(t *testing.T, nodes int, args ...string) *followedEvents {
	t.Helper()
	f := &followedEvents{t: t, command: exec.Command(penstockProgram(t), append([]string{"events", "--follow", "--json"}, args...)...)}
	f.command.Stdout, f.command.Stderr = &lockedBuffer{&f.mu, &f.out}, &lockedBuffer{&f.mu, &f.said}
	if err := f.command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.command.Process.Kill() })
	eventually.Until(t, patience, "the command follows all nodes", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.Count(f.said.String()[strings.LastIndex(f.said.String(), "events of")+1:], "(caddy)") == nodes
	})
	return f
}

// followedEvents.counts returns the number of denials by rule and client.
func (f *followedEvents) counts() map[string]int {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	whole := f.out.String()[:strings.LastIndexByte(f.out.String(), '\n')+1]
	for line := range strings.Lines(whole) {
		var e eventLine
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			f.t.Fatalf("%q: %v", line, err)
		}
		counts[fmt.Sprint(e.Kind, " ", e.Rule, " ", e.Client)] += e.Count
	}
	return counts
}

// awaitCounts waits until the counts are as wanted.
func (f *followedEvents) awaitCounts(want map[string]int) {
	f.t.Helper()
	var got map[string]int
	defer func() {
		if !maps.Equal(got, want) {
			f.t.Logf("the events are %v, want %v", got, want)
		}
	}()
	eventually.Until(f.t, patience, fmt.Sprint("the events are ", want), func() bool {
		got = f.counts()
		return maps.Equal(got, want)
	})
}

// followedEvents.interrupt ends the command as Ctrl-C does.
func (f *followedEvents) interrupt() {
	f.t.Helper()
	if err := f.command.Process.Signal(syscall.SIGINT); err != nil {
		f.t.Fatal(err)
	}
	if err := f.command.Wait(); err != nil {
		f.t.Errorf("after SIGINT: %v, %s", err, f.said.String())
	}
}

// TestEventsAreFollowed tests that each follower gets the denials of every node exactly once,
// through a node or through Redis. A follower shows only the denials that it selects, and only
// those under rules that report denials.
func TestEventsAreFollowed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	file := newRenamedFile(t, filepath.Join(t.TempDir(), "policy.yaml"))
	file.edit(followedPolicy)
	var nodes []*process
	for range 2 {
		nodes = append(nodes, startCaddy(t, directed, "PENSTOCK_REDIS="+server.URL(), "POLICY="+file.path))
	}
	deny := func(node *process, path, user string, n int) {
		t.Helper()
		for range n {
			node.ask(t.Context(), "GET", path, "X-User", user)
		}
	}
	const ann, bob = "denied api header.x-user:ann", "denied api header.x-user:bob"
	deny(nodes[0], "/api", "ann", 3) // 2 of these are denied before the command follows
	all := follow(t, 2, "--admin", nodes[1].admin)
	one := follow(t, 2, "--redis", server.URL(), "--client", "header.x-user:bob", "--rule", "api")
	here := follow(t, 1, "--admin", nodes[1].admin, "--this-node", "-n", "0")
	all.awaitCounts(map[string]int{ann: 2})
	deny(nodes[0], "/api", "bob", 4)
	deny(nodes[1], "/api", "bob", 5)
	deny(nodes[1], "/quiet", "bob", 5)
	deny(nodes[1], "/api", "ann", 1)
	all.awaitCounts(map[string]int{ann: 3, bob: 8})
	one.awaitCounts(map[string]int{bob: 8})
	here.awaitCounts(map[string]int{ann: 1, bob: 5})
	penstock(t, "events", "--admin", nodes[0].admin).mustSucceed(t)
	if out := penstock(t, "events", "--admin", nodes[0].admin, "--client", "header.x-user:ann").mustSucceed(t); strings.Count(out, "header.x-user:ann") < 2 ||
		strings.Contains(out, "bob") || !strings.Contains(out, "COUNT") {
		t.Errorf("without --follow:\n%s", out)
	}
	file.edit(strings.Replace(followedPolicy, ", events: {denied: all}", "", 1)[:strings.Index(followedPolicy, "events:")] +
		"rules: [{name: api, limit: 1/31d}]\n")
	eventually.Until(t, patience, "the command reports that nothing is reported", func() bool {
		return strings.Contains(penstock(t, "events", "--admin", nodes[0].admin).diagnostics, "reports events: write events in a policy")
	})
	for _, f := range []*followedEvents{all, one, here} {
		f.interrupt()
	}
	penstock(t, "events", "--admin", nodes[0].admin, "--client", "ann").mustFail(t, "has no form KIND:ID")
	penstock(t, "events", "--admin", "127.0.0.1:1", "--follow").mustFail(t, "is it running")
	penstock(t, "events", "--admin", nodes[0].admin, "--rule", "").mustFail(t, "--rule is empty")
}
