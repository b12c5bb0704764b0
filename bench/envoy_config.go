// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// The paths at which tools/setup.sh and bench/run.sh put these files.
const (
	envoyProgram    = ".cache/envoy/bin/envoy"
	penstockProgram = ".cache/bench/penstock"
	penstockWasm    = ".cache/bench/penstock.wasm"
	vmWasm          = ".cache/bench/vm.wasm"
	modules         = ".cache/bench/modules"
)

// envoyPatience bounds how long Envoy may take to compile a filter on a loaded machine.
const envoyPatience = 2 * time.Minute

const manager = `node: {id: bench, cluster: bench}
admin: {address: {socket_address: {address: 127.0.0.1, port_value: ADMIN}}}
static_resources:
  listeners:
  - {name: http, address: {socket_address: {address: 127.0.0.1, port_value: PORT}}, filter_chains: [{filters: [
      {name: envoy.filters.network.http_connection_manager, typed_config: {
        "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
        stat_prefix: http, use_remote_address: true, generate_request_id: false,
        route_config: {virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, ROUTE}]}]},
        http_filters: [FILTER
          {name: envoy.filters.http.router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}
  clusters:
  - {name: upstream, type: STATIC, connect_timeout: 1s, circuit_breakers: {thresholds: [{max_connections: 4096, max_requests: 65536}]},
      load_assignment: {cluster_name: upstream, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: UPSTREAM}}}}]}]}}
  - {name: service, type: STATIC, connect_timeout: 1s, circuit_breakers: {thresholds: [{max_requests: 65536, max_pending_requests: 65536}]},
      load_assignment: {cluster_name: service, endpoints: [{lb_endpoints: [{endpoint: {address: SERVICE}}]}]},
      typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        {"@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {SERVICEPROTOCOL: {}}}}}
`

// The routes of an Envoy under measurement.
const (
	routeProxied  = "route: {cluster: upstream}"
	routeDirect   = `direct_response: {status: 200, body: {inline_string: "ok"}}`
	routeByRemote = "route: {cluster: upstream, rate_limits: [{actions: [{remote_address: {}}]}]}"
)

// filterRival is Envoy's own filter that calls a rate limit service.
const filterRival = `{name: envoy.filters.http.ratelimit, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit, domain: bench, timeout: 1s, failure_mode_deny: true,
  rate_limit_service: {transport_api_version: V3, grpc_service: {envoy_grpc: {cluster_name: service}}}}},`

// filterLocal returns Envoy's own local rate limit filter, which has one bucket for the listener.
func filterLocal(limit int) string {
	return fmt.Sprintf(`{name: envoy.filters.http.local_ratelimit, typed_config: {
  "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit, stat_prefix: local,
  token_bucket: {max_tokens: %[1]d, tokens_per_fill: %[1]d, fill_interval: 3600s},
  filter_enabled: {default_value: {numerator: 100}}, filter_enforced: {default_value: {numerator: 100}}}},`, limit)
}

// filterWasm returns a WebAssembly filter with its configuration.
func filterWasm(file, configuration string) string {
	return fmt.Sprintf(`{name: wasm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, config: {
  name: penstock, root_id: penstock, failure_policy: FAIL_RELOAD,
  configuration: {"@type": type.googleapis.com/google.protobuf.StringValue, value: %q},
  vm_config: {vm_id: penstock, runtime: envoy.wasm.runtime.v8, code: {local: {filename: %q}}}}}},`, configuration, file)
}

// envoySetting is the configuration of an Envoy.
type envoySetting struct {
	route, filter string
	upstream      int    // a port
	service       string // host:port or the path of a socket; "" for none
	workers       int
	http1         bool // call the service by HTTP/1 instead of HTTP/2
}

// startEnvoy starts an Envoy and waits until it is ready. The result named took is the time from
// the start until then.
func startEnvoy(b *bench, s envoySetting) (p *process, url, admin string, took time.Duration, err error) {
	port, err := laterPort()
	if err != nil {
		return nil, "", "", 0, err
	}
	adminPort, err := laterPort()
	if err != nil {
		return nil, "", "", 0, err
	}
	service := "{socket_address: {address: 127.0.0.1, port_value: 1}}"
	if host, servicePort, err := net.SplitHostPort(s.service); err == nil {
		service = fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", host, servicePort)
	} else if s.service != "" {
		service = fmt.Sprintf("{pipe: {path: %q}}", s.service)
	}
	protocol := "http2_protocol_options"
	if s.http1 {
		protocol = "http_protocol_options"
	}
	text := strings.NewReplacer("SERVICEPROTOCOL", protocol, "ADMIN", strconv.Itoa(adminPort), "PORT", strconv.Itoa(port), "ROUTE", s.route, "FILTER", s.filter,
		"UPSTREAM", strconv.Itoa(s.upstream), "SERVICE", service).Replace(manager)
	file, err := b.file("envoy.yaml", text)
	if err != nil {
		return nil, "", "", 0, err
	}
	begin := time.Now()
	p, err = b.start("Envoy", []string{"ENVOY_DYNAMIC_MODULES_SEARCH_PATH=" + modules}, envoyProgram, "-c", file, "--concurrency", strconv.Itoa(s.workers), "--use-dynamic-base-id",
		"--disable-hot-restart", "--log-level", "warning")
	if err != nil {
		return nil, "", "", 0, err
	}
	admin = fmt.Sprintf("http://127.0.0.1:%d", adminPort)
	err = p.until(envoyPatience, "ready", func() bool { return answers(admin + "/ready") })
	took = time.Since(begin)
	return p, fmt.Sprintf("http://127.0.0.1:%d/", port), admin, took, err
}

// answers reports whether a GET is answered with 200.
func answers(url string) bool {
	response, err := http.Get(url)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	return response.StatusCode == http.StatusOK
}

// answersAnother reports whether a client at another address, which is not measured, gets a 200.
func answersAnother(url string) bool {
	another := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{LocalAddr: another}).DialContext}}
	response, err := client.Get(url)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// startUpstream starts a server that answers every request with a few bytes until the benchmark
// ends. The server does not parse requests, because it shares the processors with the measured
// systems.
func startUpstream() (port int, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serveLean(c)
		}
	}()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// serveLean sends an answer whenever it has read the end of a request's header. It need not parse
// more, because Envoy sends a GET in one piece and waits for the answer.
func serveLean(c net.Conn) {
	defer c.Close()
	answer := []byte("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
	buffer := make([]byte, 8192)
	for length := 0; ; {
		n, err := c.Read(buffer[length:])
		if err != nil {
			return
		}
		if length += n; length < 4 || string(buffer[length-4:length]) != "\r\n\r\n" {
			continue
		}
		length = 0
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}
