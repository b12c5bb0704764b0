// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The programs of the rivals. bench/run.sh builds those that are written in Go, with the versions
// of dependencies that they require themselves. The others are measured if they are installed.
const (
	rateLimitProgram  = ".cache/bench/ratelimit"
	gubernatorProgram = ".cache/bench/gubernator"
	limitadorProgram  = "limitador-server"
	nginxProgram      = "nginx"
)

// absent is the error for a program that is not installed. The table then says "not installed".
type absent struct{ program string }

func (a absent) Error() string { return a.program + " is not installed" }

// installed finds a program in .cache/bench or on the path.
func installed(program string) (string, error) {
	ours := filepath.Join(".cache/bench", program)
	if _, err := os.Stat(ours); err == nil {
		return ours, nil
	}
	for _, place := range []string{program, "/usr/sbin/" + program} {
		if path, err := exec.LookPath(place); err == nil {
			return path, nil
		}
	}
	return "", absent{program}
}

// isAbsent reports whether err means that a program is not installed.
func isAbsent(err error) bool {
	var a absent
	return errors.As(err, &a)
}

// ports returns n different ports from laterPort.
func ports(n int) (all []int, err error) {
	for range n {
		port, err := laterPort()
		if err != nil {
			return nil, err
		}
		all = append(all, port)
	}
	return all, nil
}

// statistics reports whether envoyproxy/ratelimit exports the counts of its decisions. The service
// is never configured to send them to statsd, because without a statsd server it logs several lines
// per request.
type statistics bool

const (
	noStatistics  statistics = false
	forPrometheus statistics = true // as Penstock's bridge does
)

// rateLimit starts envoyproxy/ratelimit over a Redis, with one limit an hour for each
// remote_address.
func (b *bench) rateLimit(redisAddress string, limit int, keeps statistics) (p *process, address string, err error) {
	root := filepath.Join(b.dir, fmt.Sprintf("ratelimit-%d", len(b.started)))
	folder := filepath.Join(root, "bench", "config")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, "", err
	}
	rules := fmt.Sprintf("domain: bench\ndescriptors:\n  - key: remote_address\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", limit)
	if err := os.WriteFile(filepath.Join(folder, "bench.yaml"), []byte(rules), 0o600); err != nil {
		return nil, "", err
	}
	at, err := ports(4)
	if err != nil {
		return nil, "", err
	}
	environment := []string{"LOG_LEVEL=error", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redisAddress,
		"RUNTIME_ROOT=" + root, "RUNTIME_SUBDIRECTORY=bench", "RUNTIME_WATCH_ROOT=false",
		fmt.Sprintf("PORT=%d", at[0]), fmt.Sprintf("DEBUG_PORT=%d", at[1]), fmt.Sprintf("GRPC_PORT=%d", at[2])}
	if keeps {
		environment = append(environment, "USE_STATSD=false", "USE_PROMETHEUS=true", fmt.Sprintf("PROMETHEUS_ADDR=127.0.0.1:%d", at[3]))
	} else {
		environment = append(environment, "DISABLE_STATS=true")
	}
	if p, err = b.start("ratelimit", environment, rateLimitProgram); err != nil {
		return nil, "", err
	}
	health := fmt.Sprintf("http://127.0.0.1:%d/healthcheck", at[0])
	return p, fmt.Sprintf("127.0.0.1:%d", at[2]), p.until(10*time.Second, "healthy", func() bool { return answers(health) })
}

// bench.limitador starts Limitador with one limit an hour for each remote_address. The argument
// storage is "memory", "redis" or "redis_cached".
func (b *bench) limitador(storage, redisAddress string, limit int) (p *process, address string, err error) {
	program, err := installed(limitadorProgram)
	if err != nil {
		return nil, "", err
	}
	file, err := b.file("limits.yaml", fmt.Sprintf("- namespace: bench\n  max_value: %d\n  seconds: 3600\n  conditions: []\n"+
		"  variables: [\"descriptors[0].remote_address\"]\n", limit))
	if err != nil {
		return nil, "", err
	}
	at, err := ports(2)
	if err != nil {
		return nil, "", err
	}
	args := []string{file, "--rls-ip", "127.0.0.1", "--rls-port", fmt.Sprint(at[0]), "--http-ip", "127.0.0.1", "--http-port", fmt.Sprint(at[1]), storage}
	if redisAddress != "" {
		args = append(args, "redis://"+redisAddress)
	}
	if p, err = b.start("Limitador", []string{"RUST_LOG=error"}, program, args...); err != nil {
		return nil, "", err
	}
	address = fmt.Sprintf("127.0.0.1:%d", at[0])
	return p, address, p.until(10*time.Second, "listens", func() bool { return listens(address) })
}

// gubernator starts nodes of gubernator that know each other. They need no limits, because each
// request contains its limit.
func (b *bench) gubernator(nodes int) (all []*process, addresses []string, err error) {
	at, err := ports(2 * nodes)
	if err != nil {
		return nil, nil, err
	}
	for i := range nodes {
		addresses = append(addresses, fmt.Sprintf("127.0.0.1:%d", at[i]))
	}
	for i := range nodes {
		p, err := b.start("gubernator", nil, gubernatorProgram, addresses[i], fmt.Sprintf("127.0.0.1:%d", at[nodes+i]), strings.Join(addresses, ","))
		if err != nil {
			return nil, nil, err
		}
		all = append(all, p)
	}
	for i, p := range all {
		if err := p.until(20*time.Second, "listens", func() bool { return listens(addresses[i]) }); err != nil {
			return nil, nil, err
		}
	}
	return all, addresses, nil
}

// nginx starts nginx with one worker. The arguments zone and use are the directives limit_req_zone
// and limit_req, or "". The configuration makes nginx look for a file first, because otherwise it
// would answer before it evaluates limit_req.
func (b *bench) nginx(zone, use string) (p *process, url string, err error) {
	program, err := installed(nginxProgram)
	if err != nil {
		return nil, "", err
	}
	port, err := laterPort()
	if err != nil {
		return nil, "", err
	}
	prefix := filepath.Join(b.dir, fmt.Sprintf("nginx-%d", port))
	if err := os.MkdirAll(prefix, 0o755); err != nil {
		return nil, "", err
	}
	file, err := b.file("nginx.conf", fmt.Sprintf(`daemon off; master_process off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/error crit;
events { worker_connections 1024; }
http {
	access_log off; keepalive_requests 1000000000;
	client_body_temp_path %[1]s/b; proxy_temp_path %[1]s/p; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
	%[3]s
	server { listen 127.0.0.1:%[2]d; root %[1]s; location / { %[4]s try_files /none @answer; } location @answer { return 200 ok; } }
}
`, prefix, port, zone, use))
	if err != nil {
		return nil, "", err
	}
	if p, err = b.start("nginx", nil, program, "-c", file, "-p", prefix); err != nil {
		return nil, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	return p, "http://" + address + "/", p.until(10*time.Second, "listens", func() bool { return listens(address) })
}
