// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// envoyVariable is the environment variable that names the Envoy for the tests.
const envoyVariable = "PENSTOCK_ENVOY"

// envoyProgram is the path of Envoy. By default it is the path at which tools/setup.sh puts Envoy.
var envoyProgram = either(os.Getenv(envoyVariable), "../.cache/envoy/bin/envoy")

// envoyPatience bounds the start of Envoy, which first compiles the filter. On a busy machine, this
// takes long.
const envoyPatience = 3 * time.Minute

// site is a listener of an Envoy, with the filter in front of the upstream. An Envoy takes seconds
// to start, so it usually has many sites. Each site has its own bridge.
type site struct {
	// set holds further lines of the filter's configuration, in addition to the cluster and the
	// poll interval.
	set string
	// object is set if the filter gets its configuration as a JSON object, as from a pluginConfig
	// of Istio, instead of lines.
	object bool
	// cluster is the bridge's cluster in YAML, in which NAME stands for its name and SOCKET for the
	// bridge's socket. If it is "", bridgeCluster is used. Other clusters may follow, each after a
	// newline and " - ".
	cluster string
	// The field named is the name of the cluster that the filter calls. If it is "", the filter
	// calls the bridge's cluster.
	named string
	// filter is the filter in YAML, in which WASM_CONFIG stands for the filter's configuration, and
	// RPC_CLUSTER for the cluster of the bridge's gRPC service. If it is "", wasmFilter is used.
	filter string
	// rpcCluster is the cluster of the bridge's gRPC service in YAML, with NAME and SOCKET as in
	// the field cluster. If it is "", http2Cluster is used.
	rpcCluster string
	// direct is set if Envoy sends the response itself, without the upstream.
	direct bool
	// manager holds further settings of the connection manager. If it is "", the setting is
	// use_remote_address.
	manager string
	// routes holds further routes, which precede the route for all requests. Each ends with a
	// comma. BRIDGE stands for the bridge's cluster.
	routes string
	// two is set if Envoy uses HTTP/2 to the upstream.
	two bool

	// limited is the path with a limit of 100. If it is "", the path is /.
	limited string

	envoy   *envoy
	name    string // the prefix of its statistics
	address string // the address of the listener
	bridge  string // the socket that the bridge must listen on
	grpc    string // the socket for gRPC, if filter is set
}

// listener is the Envoy configuration of a site.
const listener = `{name: NAME, address: {socket_address: {address: 127.0.0.1, port_value: PORT}}, filter_chains: [{filters: [
  {name: envoy.filters.network.http_connection_manager, typed_config: {
    "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
    stat_prefix: NAME, MANAGER, normalize_path: false,
    route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [ROUTES {match: {prefix: /}, ACTION}]}]},
    http_filters: [
      FILTER,
      {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}`

// wasmFilter is the filter with its configuration.
const wasmFilter = `{name: penstock, typed_config: WASM_CONFIG}`

const wasmConfig = `{"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {
        name: penstock, root_id: penstock, failure_policy: FAIL_RELOAD, reload_config: {backoff: {base_interval: 0.2s}},
        configuration: SETTINGS,
        vm_config: {vm_id: penstock, runtime: envoy.wasm.runtime.v8, code: {local: {filename: WASM_FILE}}}}}`

// upstreamCluster is the cluster of the server behind the sites. Without enable_trailers, Envoy
// would drop the trailers of HTTP/1.1 responses, and with them a cost.
const upstreamCluster = `{name: upstream, type: STATIC, connect_timeout: 1s,
  typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
    {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {http_protocol_options: {enable_trailers: true}}}},
  circuit_breakers: {thresholds: [{max_connections: 4096, max_requests: 65536, max_pending_requests: 65536}]},
  load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: PORT}}}}]}]}}`

// envoy is a running Envoy.
type envoy struct {
	*server
	admin  string
	before map[string]int // the counters of the filter at the time when the test began to use a shared Envoy
	// discovery is the socket of [discoveryCluster] in a shared Envoy.
	discovery string
}

// startEnvoy starts a new Envoy with the sites, which runs until the test ends. Behind the sites is
// a server with the handler named upstream. If upstream is nil, the server answers 200 and "ok".
// The argument wasm is the path of the filter.
func startEnvoy(t testing.TB, wasm string, upstream http.Handler, sites ...*site) *envoy {
	t.Helper()
	return startEnvoyIn(t, nil, wasm, upstream, sites...)
}

// startEnvoyIn is startEnvoy with further environment variables.
func startEnvoyIn(t testing.TB, env []string, wasm string, upstream http.Handler, sites ...*site) *envoy {
	t.Helper()
	e := &envoy{admin: freeport.Address(t)}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, []byte(e.configuration(t, wasm, startUpstream(t, upstream), sites)), 0o600); err != nil {
		t.Fatal(err)
	}
	command := envoyCommand(t, file)
	command.Env = append(os.Environ(), env...)
	e.server = startServer(t, command)
	e.awaitReady(t)
	return e
}

// awaitReady waits until Envoy listens.
func (e *envoy) awaitReady(t testing.TB) {
	t.Helper()
	eventually.Until(t, envoyPatience, "Envoy is ready", func() bool {
		e.mustRun()
		response, err := http.Get("http://" + e.admin + "/ready")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

// envoyCommand returns the command that runs Envoy. The test fails if Envoy is not installed.
func envoyCommand(t testing.TB, file string, args ...string) *exec.Cmd {
	t.Helper()
	if _, err := os.Stat(envoyProgram); err != nil {
		t.Fatalf("these tests need Envoy: run make setup: %v", err)
	}
	return exec.Command(envoyProgram, append([]string{"-c", file, "--concurrency", "2", "--use-dynamic-base-id",
		"--disable-hot-restart", "--log-level", "warning"}, args...)...)
}

// envoy.configuration returns the complete configuration of an Envoy with the sites.
func (e *envoy) configuration(t testing.TB, wasm, upstream string, sites []*site) string {
	t.Helper()
	listeners, clusters := e.configure(t, "site", wasm, upstream, sites)
	return "node: {id: test, cluster: test}\nadmin: {address: {socket_address: {address: 127.0.0.1, port_value: " + portOf(e.admin) +
		"}}}\nstatic_resources:\n  listeners:\n  - " + strings.Join(listeners, "\n  - ") + "\n  clusters:\n  - " +
		strings.Join(clusters, "\n  - ") + "\n"
}

// envoy.configure gives each site an address, and a name that begins with prefix. It returns the
// listeners and clusters of the sites.
func (e *envoy) configure(t testing.TB, prefix, wasm, upstream string, sites []*site) (listeners, clusters []string) {
	t.Helper()
	for i, s := range sites {
		s.envoy, s.name, s.address, s.bridge = e, prefix+"-"+strconv.Itoa(i), freeport.Address(t), socket(t)
		action := "route: {cluster: " + upstreamOf(s.two) + ", timeout: 30s, internal_redirect_policy: {max_internal_redirects: 3}, " +
			"rate_limits: [{actions: [{remote_address: {}}, {request_headers: {header_name: \":path\", descriptor_key: path}}]}]}"
		if s.direct {
			action = "direct_response: {status: 200, body: {inline_string: ok}}"
		}
		filter := strings.Replace(either(s.filter, wasmFilter), "WASM_CONFIG", wasmConfig, 1)
		filter = strings.NewReplacer("SETTINGS", s.settings(), "WASM_FILE", wasm, "RPC_CLUSTER", s.bridgeName()+"-grpc").Replace(filter)
		listeners = append(listeners, strings.NewReplacer("NAME", s.name, "PORT", portOf(s.address), "ACTION", action, "FILTER", filter,
			"MANAGER", either(s.manager, "use_remote_address: true"), "ROUTES", strings.ReplaceAll(s.routes, "BRIDGE", s.bridgeName())).Replace(listener))
	}
	clusters = append(clusters, strings.ReplaceAll(upstreamCluster, "PORT", portOf(upstream)),
		strings.NewReplacer("PORT", portOf(upstream), "name: upstream", "name: upstream-2", "http_protocol_options: {enable_trailers: true}",
			"http2_protocol_options: {}").Replace(upstreamCluster))
	for _, s := range sites {
		own := strings.NewReplacer("NAME", s.bridgeName(), "SOCKET", s.bridge).Replace(either(s.cluster, bridgeCluster))
		clusters = append(clusters, strings.Split(own, "\n  - ")...)
		if s.filter != "" {
			s.grpc = socket(t)
			clusters = append(clusters, strings.NewReplacer("NAME", s.bridgeName()+"-grpc", "SOCKET", s.grpc).
				Replace(either(s.rpcCluster, http2Cluster)))
		}
	}
	return listeners, clusters
}

// upstreamOf returns the name of the cluster of the server behind the sites. Envoy calls it by
// HTTP/2 if the argument is set.
func upstreamOf(two bool) string {
	if two {
		return "upstream-2"
	}
	return "upstream"
}

// bridgeName returns the name of the cluster of the site's bridge.
func (s *site) bridgeName() string { return strings.Replace(s.name, "site", "bridge", 1) }

// site.settings returns the filter's configuration in YAML.
func (s *site) settings() string {
	lines := append([]string{"cluster: " + either(s.named, s.bridgeName())}, strings.Split(strings.TrimSpace(s.set), "\n")...)
	if !strings.Contains(s.set, "poll: ") {
		lines = append(lines, "poll: 500ms")
	}
	text := strings.Join(lines, "\n")
	if s.object {
		var fields []string
		for _, line := range lines {
			name, value, _ := strings.Cut(line, ": ")
			if value != "true" {
				value = strconv.Quote(value)
			}
			fields = append(fields, strconv.Quote(name)+":"+value)
		}
		text = "{" + strings.Join(fields, ",") + "}"
	}
	return `{"@type": type.googleapis.com/google.protobuf.StringValue, value: ` + strconv.Quote(text) + "}"
}

// socket returns a path for a socket that does not exist yet.
func socket(t testing.TB) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "bridge") // not t.TempDir, because a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	return filepath.Join(folder, "s")
}

func portOf(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }

// startUpstream runs a server with the handler until the test ends. If the handler is nil, the
// server answers 200 and "ok".
func startUpstream(t testing.TB, handler http.Handler) (address string) {
	t.Helper()
	if handler == nil {
		handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })
	}
	return serveAt(t, "tcp", "127.0.0.1:0", handler)
}

// serveAt serves HTTP/1.1, and HTTP/2 without TLS, until the test ends.
func serveAt(t testing.TB, network, address string, handler http.Handler) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: handler, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// envoy.stat returns the value of one of Envoy's statistics, or 0 if it does not exist.
func (e *envoy) stat(name string) int {
	e.t.Helper()
	for line := range strings.Lines(e.read("/stats?filter=^" + name + "$")) {
		if rest, ok := strings.CutPrefix(line, name+": "); ok {
			n, err := strconv.Atoi(strings.TrimSpace(rest))
			if err != nil {
				e.t.Fatal(err)
			}
			return n
		}
	}
	return 0
}

// envoy.read requests a page of the admin endpoint.
func (e *envoy) read(path string) string {
	e.t.Helper()
	response, err := http.Get("http://" + e.admin + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(body)
}

// awaitPolicyLoad calls change(), which gives the filter another policy. It then waits until the
// main thread and each worker of Envoy have loaded that policy.
func (e *envoy) awaitPolicyLoad(t testing.TB, change func()) {
	t.Helper()
	const threads = 3
	before := e.counter("penstock.policy_loaded")
	change()
	eventually.Until(t, 30*time.Second, "the filter has the policy", func() bool {
		return e.counter("penstock.policy_loaded") >= before+threads
	})
}

// site.get sends a GET to the site, and fails the test if there is no answer.
func (s *site) get(t testing.TB, path string, header ...string) answer {
	t.Helper()
	a, err := ask(http.DefaultClient, "http://"+s.address+path, header...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// ask sends a GET with header fields. In the list of fields, each name is followed by its value.
func ask(client *http.Client, url string, header ...string) (answer, error) {
	request, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return answer{}, err
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Add(header[i], header[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, string(body)}, err
}

// bridge is a running bridge.
type bridge struct {
	*server
	policy  *policyFile
	args    []string
	listen  string
	program string // "" for penstockProgram
	env     []string
}

// startBridge runs a bridge for the site until the test ends. The argument args holds further
// flags. startBridge returns when the bridge answers and the filter has the policy.
func (s *site) startBridge(t testing.TB, policy string, args ...string) *bridge {
	t.Helper()
	b := newBridge(t, policy, args...)
	b.listen = s.bridge
	s.envoy.awaitPolicyLoad(t, func() { b.run(t) })
	return b
}

// newBridge returns a bridge that is not started yet.
func newBridge(t testing.TB, policy string, args ...string) *bridge {
	t.Helper()
	b := &bridge{policy: newAlternatingFile(t, filepath.Join(t.TempDir(), "policy.yaml")), args: args, listen: socket(t)}
	b.policy.edit(policy)
	return b
}

// bridge.transport returns a transport that sends every request to the bridge, regardless of the
// request's host.
func (b *bridge) transport() http.RoundTripper {
	return &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", b.listen)
	}}
}

// bridge.run starts the process.
func (b *bridge) run(t testing.TB) {
	t.Helper()
	b.runAt(t, "unix", b.listen)
}

// runAt starts the process and waits until it accepts connections at the given address. The address
// may come from a further flag --listen in b.args.
func (b *bridge) runAt(t testing.TB, network, address string) {
	t.Helper()
	command := exec.Command(either(b.program, penstockProgram(t)), append([]string{"bridge", "--listen", "unix:" + b.listen, "--policy", b.policy.path,
		"--drain-delay", "50ms"}, b.args...)...)
	command.Env = append(os.Environ(), b.env...)
	b.server = startServer(t, command)
	eventually.Until(t, 20*time.Second, "the bridge answers", func() bool {
		b.mustRun()
		connection, err := net.Dial(network, address)
		if err != nil {
			return false
		}
		connection.Close()
		return true
	})
}

// server is a process that runs until the test ends.
type server struct {
	t       testing.TB
	command *exec.Cmd
	log     *eventually.Journal
	done    chan struct{} // closed when the process has ended
}

// dataRace is the text that a program which was built with -race logs if it has a data race.
const dataRace = "WARNING: DATA RACE"

func startServer(t testing.TB, command *exec.Cmd) *server {
	t.Helper()
	s := &server{t: t, command: command, log: new(eventually.Journal), done: make(chan struct{})}
	command.Stdout, command.Stderr = s.log, s.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = command.Wait(); close(s.done) }()
	t.Cleanup(func() {
		s.signal(syscall.SIGCONT)
		s.signal(syscall.SIGTERM)
		select {
		case <-s.done:
		case <-time.After(10 * time.Second):
			s.kill()
		}
		if strings.Contains(s.log.String(), dataRace) {
			t.Errorf("%s has a data race", filepath.Base(command.Path))
		}
		if t.Failed() {
			t.Logf("%s said:\n%s", filepath.Base(command.Path), s.tail())
		}
	})
	return s
}

// server.tail returns the end of the process's log.
func (s *server) tail() string {
	const most = 8 << 10
	text := s.log.String()
	return text[max(0, len(text)-most):]
}

// mustRun fails the test if the process has ended.
func (s *server) mustRun() {
	s.t.Helper()
	select {
	case <-s.done:
		s.t.Fatalf("%s ended:\n%s", filepath.Base(s.command.Path), s.tail())
	default:
	}
}

func (s *server) signal(sig syscall.Signal) { _ = s.command.Process.Signal(sig) }

// server.freeze suspends the process. It returns when no thread of the process runs any more.
func (s *server) freeze() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	eventually.Until(s.t, patience, "the process is frozen", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.command.Process.Pid))
		if err != nil || len(threads) == 0 {
			s.t.Fatal("no threads: ", err)
		}
		return !slices.ContainsFunc(threads, func(thread string) bool {
			text, err := os.ReadFile(thread)
			return err == nil && !strings.Contains(string(text), ") T ")
		})
	})
}

// server.kill ends the process as in a crash.
func (s *server) kill() {
	s.signal(syscall.SIGKILL)
	<-s.done
}
