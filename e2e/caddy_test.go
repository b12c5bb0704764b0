// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binary is the Caddy that this run built.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "penstock-e2e")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "caddy")
	build := exec.Command("go", "build", "-o", binary, "../cmd/caddy")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building caddy: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// process is a running Caddy.
type process struct {
	t       testing.TB
	address string // of the site
	admin   string
	file    string // the Caddyfile
	log     syncBuffer
	command *exec.Cmd
	done    chan struct{} // closed when the process has ended
}

// syncBuffer is a buffer that a process writes and a test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// startCaddy runs the binary on a Caddyfile, in which SITE stands for the site's port and ADMIN for the address of the
// admin endpoint, until the test ends.
func startCaddy(t testing.TB, caddyfile string, env ...string) *process {
	t.Helper()
	p := &process{t: t, address: freeAddress(t), admin: freeAddress(t), file: filepath.Join(t.TempDir(), "Caddyfile")}
	p.write(caddyfile)
	p.copyPolicies()
	command := exec.Command(binary, "run", "--config", p.file)
	command.Env = append(environment(t), env...)
	command.Stdout, command.Stderr = &p.log, &p.log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	p.command, p.done = command, done
	go func() { _ = command.Wait(); close(done) }()
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			_ = command.Process.Kill()
			<-done
		}
		if t.Failed() {
			t.Logf("caddy at %s said:\n%s", p.address, p.log.String())
		}
	})
	eventually(t, 20*time.Second, "caddy answers", func() bool {
		select {
		case <-done:
			t.Fatalf("caddy ended:\n%s", p.log.String())
		default:
		}
		connection, err := net.Dial("tcp", p.address)
		if err != nil {
			return false
		}
		connection.Close()
		return true
	})
	return p
}

// environment keeps Caddy's data out of the home directory.
func environment(t testing.TB) []string {
	dir := t.TempDir()
	return append(os.Environ(), "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir, "HOME="+dir)
}

func (p *process) write(caddyfile string) {
	p.t.Helper()
	_, port, _ := strings.Cut(p.address, ":")
	text := strings.NewReplacer("SITE", port, "ADMIN", p.admin).Replace(caddyfile)
	if err := os.WriteFile(p.file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// copyPolicies puts the policy files of the examples beside the Caddyfile, where its policy directives look for them.
func (p *process) copyPolicies() {
	p.t.Helper()
	files, err := filepath.Glob("../examples/policy.*")
	if err != nil {
		p.t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(p.file), filepath.Base(file)), text, 0o600)
		}
		if err != nil {
			p.t.Fatal(err)
		}
	}
}

// reload reads the Caddyfile again, as `caddy reload` does.
func (p *process) reload() error {
	out, err := exec.Command(binary, "reload", "--force", "--address", p.admin, "--config", p.file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func freeAddress(t testing.TB) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// eventually waits until ok.
func eventually(t testing.TB, patience time.Duration, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// answer is what a request got.
type answer struct {
	status int
	header http.Header
	body   string
}

func (p *process) get(path string) answer {
	p.t.Helper()
	response, err := http.Get("http://" + p.address + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// scrape returns the metrics.
func (p *process) scrape() string {
	p.t.Helper()
	response, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(body)
}
