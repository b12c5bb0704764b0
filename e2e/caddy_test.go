// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// process is a running Caddy.
type process struct {
	*server
	address string // of the site
	admin   string
	file    string // the path of the Caddyfile
	env     []string
	program string // "" for caddyProgram
}

// startCaddy runs Caddy with a Caddyfile until the test ends. In the Caddyfile, SITE is replaced by
// the site's port, and ADMIN by the address of the admin endpoint.
func startCaddy(t testing.TB, caddyfile string, env ...string) *process {
	t.Helper()
	return startCaddyOf(t, "", caddyfile, env...)
}

// startCaddyOf is startCaddy with another program.
func startCaddyOf(t testing.TB, program, caddyfile string, env ...string) *process {
	t.Helper()
	p := &process{program: program, address: freeport.Address(t), admin: freeport.Address(t), file: filepath.Join(t.TempDir(), "Caddyfile"),
		env: append(environment(t), env...)}
	p.server = &server{t: t}
	p.write(caddyfile)
	p.copyPolicies()
	p.run(t)
	return p
}

// process.run starts the process.
func (p *process) run(t testing.TB) {
	t.Helper()
	command := exec.Command(either(p.program, caddyProgram(t)), "run", "--config", p.file)
	command.Env = p.env
	p.server = startServer(t, command)
	p.awaitListening(p.address)
}

// awaitListening waits until an address accepts connections. A test may have to wait for several
// addresses, because Caddy starts its sites one after the other.
func (p *process) awaitListening(address string) {
	p.t.Helper()
	eventually.Until(p.t, 20*time.Second, "caddy listens at "+address, func() bool {
		p.mustRun()
		connection, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		connection.Close()
		return true
	})
}

// environment returns environment variables with which Caddy keeps its data in a temporary folder.
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

// copyPolicies copies the policy files of the examples to the folder of the Caddyfile, in which its
// policy directives expect them.
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

// process.reload reads the Caddyfile again, as `caddy reload` does.
func (p *process) reload() error {
	out, err := exec.Command(caddyProgram(p.t), "reload", "--force", "--address", p.admin, "--config", p.file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// answer is a response to a request.
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

// process.scrape returns the metrics.
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
