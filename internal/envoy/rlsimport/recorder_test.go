// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// Set by "make record-ratelimit", which builds the service from bench/rival.
var (
	theService = flag.String("record", "", "ask this envoyproxy/ratelimit, and write its answers to testdata/service")
	itsSources = flag.String("sources", "", "its sources, whose example configurations are copied there too")
)

// patience is how long the tests wait for programs on this machine.
const patience = 20 * time.Second

// recorder sends requests to the real service. Each sequence begins at the start of a second, so
// that it usually ends within that second.
type recorder struct {
	*testing.T
	redis  *redistest.Server
	client pb.RateLimitServiceClient
}

// recording.record sends the recording's requests to the real service and stores the answers.
func (r *recording) record(t *testing.T) {
	t.Helper()
	a := &recorder{T: t, redis: redistest.Start(t)}
	a.start(r)
	for _, s := range r.sequences {
		for try := 0; !a.send(s); try++ {
			if try == 20 {
				t.Fatalf("%s: %s: it never ends in the second it began in", r.path, s.name)
			}
		}
	}
}

// recorder.start starts the service with the recording's configurations.
func (a *recorder) start(r *recording) {
	a.Helper()
	root := a.TempDir()
	folder := filepath.Join(root, "it", "config")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		a.Fatal(err)
	}
	for _, f := range r.files(a.T) {
		if err := os.WriteFile(filepath.Join(folder, filepath.Base(f.Name)), f.Data, 0o600); err != nil {
			a.Fatal(err)
		}
	}
	port := func(address string) string { _, port, _ := net.SplitHostPort(address); return port }
	web, calls := freeport.Address(a), freeport.Address(a)
	service := exec.Command(*theService)
	var log eventually.Journal
	service.Stdout, service.Stderr = &log, &log
	service.Env = append(os.Environ(), "USE_STATSD=false", "DISABLE_STATS=true", "LOG_LEVEL=error", "REDIS_SOCKET_TYPE=unix", "REDIS_URL="+a.redis.Addr,
		"RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=it", "RUNTIME_WATCH_ROOT=false", "HOST=127.0.0.1", "GRPC_HOST=127.0.0.1",
		"DEBUG_HOST=127.0.0.1", "PORT="+port(web), "GRPC_PORT="+port(calls), "DEBUG_PORT="+port(freeport.Address(a)))
	service.Env = append(service.Env, r.settings...)
	if err := service.Start(); err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() {
		_ = service.Process.Kill()
		_ = service.Wait()
		if a.Failed() {
			a.Log(log.String())
		}
	})
	eventually.Until(a, patience, "the service is healthy", func() bool {
		response, err := http.Get("http://" + web + "/healthcheck")
		if err != nil {
			return false
		}
		return errors.Join(response.Body.Close()) == nil && response.StatusCode == http.StatusOK
	})
	conn, err := grpc.NewClient(calls, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		a.Fatal(err)
	}
	a.Cleanup(func() { _ = conn.Close() })
	a.client = pb.NewRateLimitServiceClient(conn)
}

// recorder.send empties the counters and sends the requests of one sequence. It returns true if
// each part between waits took place within one second, and if no window of a minute or more ended
// in the meantime.
func (a *recorder) send(s *sequence) (within bool) {
	a.Helper()
	longer := time.Minute
	began := a.next(time.Second)
	if err := a.redis.Client().FlushAll(context.Background()).Err(); err != nil {
		a.Fatal(err)
	}
	within = true
	second := began
	for _, step := range s.steps {
		if step.wait != "" {
			span := map[string]time.Duration{"second": time.Second, "minute": time.Minute}[step.wait]
			if span == 0 {
				a.Fatalf("wait %q: is not a unit to wait for", step.wait)
			}
			if span == time.Minute {
				longer = time.Hour
			}
			within = within && time.Now().Truncate(time.Second).Equal(second)
			second = a.next(span)
			continue
		}
		step.there = answerText(a.client.ShouldRateLimit(context.Background(), step.request))
	}
	now := time.Now()
	return within && now.Truncate(time.Second).Equal(second) && now.Truncate(longer).Equal(began.Truncate(longer))
}

// recorder.next waits for the next second or minute, and returns its start.
func (a *recorder) next(span time.Duration) time.Time {
	a.Helper()
	then := time.Now().Truncate(span).Add(span)
	eventually.Until(a, span+patience, "the next "+span.String(), func() bool { return !time.Now().Before(then) })
	return time.Now().Truncate(time.Second)
}

// theirs maps the service's own configurations to the folders of testdata/service that contain
// copies.
var theirs = map[string]string{
	"examples": "examples/ratelimit/config",
	"tests":    "test/config",
}

// copyConfigurations updates the copies in testdata/service: the service's examples, some
// configurations of its tests, and those in its README.
func copyConfigurations(t *testing.T) {
	t.Helper()
	version := regexp.MustCompile(`[0-9a-f]{12}$`).FindString(filepath.Clean(*itsSources))
	keep := func(name, origin string, text []byte) {
		head := fmt.Sprintf("# Of github.com/envoyproxy/ratelimit at %s, %s, which is under the Apache License 2.0.\n", version, origin)
		if err := os.WriteFile(filepath.Join(testdata, name), append([]byte(head), bytes.TrimLeft(text, "\n")...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for folder, of := range theirs {
		found, err := filepath.Glob(filepath.Join(testdata, folder, "*.yaml"))
		if err != nil || len(found) == 0 {
			t.Fatalf("testdata/service/%s has no configuration: %v", folder, err)
		}
		for _, path := range found {
			base := filepath.Base(path)
			text, err := os.ReadFile(filepath.Join(*itsSources, of, base))
			if err != nil {
				t.Fatal(err)
			}
			keep(filepath.Join(folder, base), of+"/"+base, text)
		}
	}
	readme, err := os.ReadFile(filepath.Join(*itsSources, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[string]int{}
	for _, block := range regexp.MustCompile("(?s)\n```yaml\n(domain: .*?)```").FindAllSubmatch(readme, -1) {
		domain := strings.TrimSpace(strings.TrimPrefix(strings.SplitN(string(block[1]), "\n", 2)[0], "domain:"))
		if strings.HasPrefix(domain, "<") { // a description of the format
			continue
		}
		shown[domain]++
		name := domain
		if n := shown[domain]; n > 1 {
			name = fmt.Sprintf("%s-%d", domain, n)
		}
		keep(filepath.Join("readme", name+".yaml"), "README.md", block[1])
	}
}
