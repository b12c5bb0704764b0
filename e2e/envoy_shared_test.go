// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// sharedEnvoy is an Envoy that tests use one after the other, each with its own listeners and
// clusters. When an Envoy starts, it compiles the filter, which takes 7 seconds of processor time.
// It keeps the result as long as a listener has the filter. So a shared Envoy always has one
// listener of its own with the filter.
type sharedEnvoy struct {
	server *server
	admin  string
	folder string // the folder of the files with the listeners and clusters
	users  int    // the number of tests that have used it
}

// If there are sharedEnvoysMax shared Envoys, and all are in use, a test waits until one is unused.
// A test that already uses a shared Envoy starts another one instead, because otherwise tests with
// several Envoys could wait for each other.
const sharedEnvoysMax = 3

// envoyPool holds the shared Envoys of this run.
type envoyPool struct {
	mu      sync.Mutex
	changed *sync.Cond
	idle    []*sharedEnvoy
	running int
	users   map[string]int // by the name of a test, the number of Envoys that the test uses
}

var sharedEnvoys = newEnvoyPool()

func newEnvoyPool() *envoyPool {
	p := &envoyPool{users: map[string]int{}}
	p.changed = sync.NewCond(&p.mu)
	return p
}

// envoyPool.take returns an unused Envoy, or nil if the test must start one.
func (p *envoyPool) take(t testing.TB) *sharedEnvoy {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) == 0 && p.running >= sharedEnvoysMax && !p.serves(t.Name()) {
		p.changed.Wait()
	}
	p.users[t.Name()]++
	last := len(p.idle) - 1
	if last < 0 {
		p.running++
		return nil
	}
	e := p.idle[last]
	p.idle = p.idle[:last]
	return e
}

// envoyPool.serves reports whether the named test, or a test of which it is a subtest, uses an
// Envoy.
func (p *envoyPool) serves(name string) bool {
	for user, n := range p.users {
		if n > 0 && (name == user || strings.HasPrefix(name, user+"/")) {
			return true
		}
	}
	return false
}

// putBack ends a test's use of an Envoy. The argument e is nil if the process has ended.
func (p *envoyPool) putBack(t testing.TB, e *sharedEnvoy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users[t.Name()]--
	if e == nil {
		p.running--
	} else {
		p.idle = append(p.idle, e)
	}
	p.changed.Broadcast()
}

// dynamicEnvoy is the configuration of a shared Envoy.
const dynamicEnvoy = `node: {id: test, cluster: test}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: ADMIN}}}
dynamic_resources:
  lds_config: {resource_api_version: V3, path_config_source: {path: FOLDER/listeners.yaml, watched_directory: {path: FOLDER}}}
  cds_config: {resource_api_version: V3, path_config_source: {path: FOLDER/clusters.yaml, watched_directory: {path: FOLDER}}}
static_resources:
  listeners:
  - LISTENER
  clusters:
  - CLUSTER
  - DISCOVERY
`

// discoveryCluster is a static cluster that every shared Envoy has. Its server can configure
// filters.
const discoveryCluster = "discovery"

// discoverySocket returns the path at which the server of discoveryCluster listens.
func (shared *sharedEnvoy) discoverySocket() string { return filepath.Join(shared.folder, "discovery") }

// useEnvoy is like startEnvoy, but the process may have served other tests before, and the filter
// is the one that users load. No other test uses the process until this test ends. The addresses
// and names of the sites are new, and the counts of the method counter begin at 0. A test must use
// startEnvoy instead if it stops the process, measures its memory, needs another build of the
// filter, or has only sites without the filter.
func useEnvoy(t testing.TB, upstream http.Handler, sites ...*site) *envoy {
	t.Helper()
	shared := takeEnvoy(t)
	shared.users++
	// The test gets a server of its own, because the methods of a server fail its test.
	e := &envoy{admin: shared.admin, discovery: shared.discoverySocket(),
		server: &server{t: t, command: shared.server.command, log: shared.server.log, done: shared.server.done}}
	t.Cleanup(func() { shared.release(t, e) })
	begun := len(e.log.String())
	e.awaitListeners("draining", 0)
	e.before = e.filterCounters()
	listeners, clusters := e.configure(t, fmt.Sprintf("site-%d", shared.users), wasm(t), startUpstream(t, upstream), sites)
	e.update(shared, "clusters.yaml", "cluster_manager.cds.", "envoy.config.cluster.v3.Cluster", clusters)
	e.update(shared, "listeners.yaml", "listener_manager.lds.", "envoy.config.listener.v3.Listener", listeners)
	e.awaitListeners("active", len(sites)+1)
	for _, s := range sites {
		eventually.Until(t, envoyPatience, "Envoy listens at "+s.address, func() bool {
			connection, err := net.Dial("tcp", s.address)
			if err != nil {
				return false
			}
			connection.Close()
			return true
		})
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the shared envoy said:\n%s", e.log.String()[begun:])
		}
	})
	return e
}

// takeEnvoy returns an unused Envoy, or a new one.
func takeEnvoy(t testing.TB) (shared *sharedEnvoy) {
	t.Helper()
	if shared = sharedEnvoys.take(t); shared != nil {
		return shared
	}
	defer func() {
		if shared == nil { // the Envoy does not start, and the test fails
			sharedEnvoys.putBack(t, nil)
		}
	}()
	return newSharedEnvoy(t)
}

// newSharedEnvoy starts an Envoy without sites, and waits until it has compiled the filter.
func newSharedEnvoy(t testing.TB) *sharedEnvoy {
	t.Helper()
	folder, err := os.MkdirTemp(built, "envoy")
	if err != nil {
		t.Fatal(err)
	}
	shared := &sharedEnvoy{folder: folder, admin: freeport.Address(t)}
	e := &envoy{admin: shared.admin}
	// There is no bridge. A filter that has a policy in its configuration does not poll it.
	listeners, clusters := e.configure(t, "keep", wasm(t), "127.0.0.1:1", []*site{{direct: true, set: "policy: " + compactPolicy(t, onError("allow"))}})
	config := strings.NewReplacer("ADMIN", portOf(e.admin), "FOLDER", folder, "LISTENER", listeners[0], "CLUSTER", clusters[2],
		"DISCOVERY", strings.NewReplacer("NAME", discoveryCluster, "SOCKET", shared.discoverySocket()).Replace(http2Cluster)).Replace(dynamicEnvoy)
	for name, text := range map[string]string{"envoy.yaml": config, "listeners.yaml": resources(0, "", nil), "clusters.yaml": resources(0, "", nil)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := envoyCommand(t, filepath.Join(folder, "envoy.yaml"), "--drain-time-s", "1", "--drain-strategy", "immediate")
	command.Env = append(os.Environ(), modulePath(t)) // sites may also have the native module
	e.server = &server{t: t, command: command, log: new(eventually.Journal), done: make(chan struct{})}
	command.Stdout, command.Stderr = e.log, e.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	shared.server = e.server
	go func() { _ = command.Wait(); close(shared.server.done) }()
	e.awaitReady(t)
	eventually.Until(t, envoyPatience, "each thread has the filter", func() bool { return e.counter("penstock.policy_loaded") >= envoyVMs })
	return shared
}

// release removes the sites of a test that has ended. A failed test may leave the process in any
// state, so release then stops the process.
func (shared *sharedEnvoy) release(t testing.TB, e *envoy) {
	var unused *sharedEnvoy
	defer func() { sharedEnvoys.putBack(t, unused) }() // also if update fails the test
	if t.Failed() {
		shared.stop()
		return
	}
	e.update(shared, "listeners.yaml", "listener_manager.lds.", "", nil)
	unused = shared
}

// sharedEnvoy.stop ends the process.
func (shared *sharedEnvoy) stop() {
	shared.server.signal(syscall.SIGTERM)
	select {
	case <-shared.server.done:
	case <-time.After(10 * time.Second):
		_ = shared.server.command.Process.Kill()
		<-shared.server.done
	}
}

// stopSharedEnvoys stops all shared Envoys. No test may be running.
func stopSharedEnvoys() {
	for _, e := range sharedEnvoys.idle {
		e.stop()
	}
}

// envoy.update replaces a file of resources, and waits until Envoy has accepted it.
func (e *envoy) update(shared *sharedEnvoy, file, stats, kind string, all []string) {
	e.t.Helper()
	accepted, rejected := e.stat(stats+"update_success"), e.stat(stats+"update_rejected")
	next := filepath.Join(shared.folder, "next")
	err := os.WriteFile(next, []byte(resources(accepted+1, kind, all)), 0o600)
	if err == nil {
		err = os.Rename(next, filepath.Join(shared.folder, file))
	}
	if err != nil {
		e.t.Fatal(err)
	}
	eventually.Until(e.t, envoyPatience, "Envoy has read "+file, func() bool {
		e.mustRun()
		if e.stat(stats+"update_rejected") > rejected {
			e.t.Fatalf("envoy rejects %s:\n%s", file, e.tail())
		}
		return e.stat(stats+"update_success") > accepted
	})
}

// resources returns the text of a file with resources of one kind.
func resources(version int, kind string, all []string) string {
	var text strings.Builder
	fmt.Fprintf(&text, "version_info: \"%d\"\nresources:", version)
	if len(all) == 0 {
		text.WriteString(" []")
	}
	for _, one := range all {
		text.WriteString("\n- {\"@type\": type.googleapis.com/" + kind + ", " + strings.TrimPrefix(strings.TrimSpace(one), "{"))
	}
	return text.String() + "\n"
}

// awaitListeners waits until n listeners are in the given state.
func (e *envoy) awaitListeners(state string, n int) {
	e.t.Helper()
	eventually.Until(e.t, envoyPatience, strconv.Itoa(n)+" listeners are "+state, func() bool {
		e.mustRun()
		return e.stat("listener_manager.total_listeners_"+state) == n
	})
}

// filterCounters returns the counters of the filter by name.
func (e *envoy) filterCounters() map[string]int {
	e.t.Helper()
	all := map[string]int{}
	for line := range strings.Lines(e.read("/stats?filter=^wasmcustom[.]")) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(text); err == nil {
			all[name] = n
		}
	}
	return all
}

// envoy.counter returns by how much a counter of the filter has grown since the test began to use
// this Envoy. The counters are for all sites together.
func (e *envoy) counter(name string) int {
	e.t.Helper()
	name = "wasmcustom." + name
	return e.stat(name) - e.before[name]
}
