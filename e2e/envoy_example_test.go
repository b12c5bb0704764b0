// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// TestEnvoyExample runs the script of "make run-envoy" with other ports and deadlines. It runs the
// commands that the script suggests, and stops the script as Ctrl-C does.
func TestEnvoyExample(t *testing.T) {
	t.Parallel()
	runExample(t, "filter")
}

// TestEnvoyModuleExample is [TestEnvoyExample] for "make run-envoy FRONT=module".
func TestEnvoyModuleExample(t *testing.T) {
	t.Parallel()
	runExample(t, "module")
}

func runExample(t *testing.T, front string) {
	t.Helper()
	x := newCheckout(t)
	run := exec.Command("tools/run-envoy.sh", front)
	run.Dir, run.Env = x.folder, append(os.Environ(), "LC_ALL=C")
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C reaches the whole process group
	s := startServer(t, run)
	t.Cleanup(func() { _ = syscall.Kill(-run.Process.Pid, syscall.SIGKILL) })
	eventually.Until(t, envoyPatience, "it says what to try", func() bool {
		s.mustRun()
		return strings.Contains(s.log.String(), "In another terminal")
	})
	x.isOnlyHere(t)
	awaitMinute(t)
	for i, status := range []int{200, 200, 200, 200, 200, 429} {
		a := x.get(t)
		if a.status != status || a.header.Get("X-RateLimit-Remaining") != strconv.Itoa(max(0, 4-i)) {
			t.Errorf("request %d: status %d, %v, want %d", i+1, a.status, a.header, status)
		}
	}
	if a := x.get(t, "X-API-Key", "try-business-2f6d0c1ab9"); a.status != 200 || a.header.Get("X-RateLimit-Limit") != "20" {
		t.Errorf("with a key: status %d, %v", a.status, a.header)
	}
	policy := filepath.Join(x.folder, "examples/envoy.policy.yaml")
	replaceIn(t, policy, "limit: 5/1m", "limit: 7/1m")
	eventually.Until(t, patience, "the edited policy counts", func() bool { return x.get(t).header.Get("X-RateLimit-Limit") == "7" })
	if err := syscall.Kill(-run.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	eventually.Until(t, 20*time.Second, "it ends", func() bool {
		select {
		case <-s.done:
			return true
		default:
			return false
		}
	})
	if _, err := os.Lstat(filepath.Join(x.folder, "bin/penstock.sock")); !os.IsNotExist(err) {
		t.Error("the socket is left behind", err)
	}
	for _, address := range x.addresses {
		x.isFree(t, "tcp", address)
	}
}

// TestEnvoyExampleSaysWhichPortIsTaken tests that if a port is in use, the script says so before it
// starts any process.
func TestEnvoyExampleSaysWhichPortIsTaken(t *testing.T) {
	t.Parallel()
	x := newCheckout(t)
	for i, address := range x.addresses {
		l, err := net.Listen("tcp", address)
		x.check(t, err)
		go func() { // a server other than Redis
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				c.Close()
			}
		}()
		run := exec.Command("tools/run-envoy.sh")
		run.Dir, run.Env = x.folder, append(os.Environ(), "LC_ALL=C")
		out, err := run.CombinedOutput()
		if err == nil || !strings.HasPrefix(string(out), "port "+portOf(address)+" is in use") {
			t.Errorf("port %d is taken: %v, %s", i, err, out)
		}
		x.check(t, l.Close())
	}
}

// isOnlyHere checks that other machines cannot reach any port of the example.
func (x *checkout) isOnlyHere(t *testing.T) {
	t.Helper()
	all, err := net.InterfaceAddrs()
	x.check(t, err)
	tried := 0
	for _, a := range all {
		if ip := a.(*net.IPNet).IP; !ip.IsLoopback() && ip.To4() != nil {
			tried++
			for _, address := range x.addresses {
				x.isFree(t, "tcp", net.JoinHostPort(ip.String(), portOf(address)))
			}
		}
	}
	t.Logf("tried from %d addresses of this machine", tried)
}

// checkout is a copy of the repository with only the files that the example needs.
type checkout struct {
	folder    string
	addresses []string // the ports of Redis, Envoy, and Envoy's admin endpoint
}

func newCheckout(t *testing.T) *checkout {
	t.Helper()
	x := &checkout{folder: t.TempDir()}
	envoyCommand(t, "") // fails the test if Envoy is missing
	for name, target := range map[string]string{"bin/penstock": penstockProgram(t), "bin/penstock.wasm": wasm(t),
		"bin/libpenstock.so": module(t), ".cache": "../.cache"} {
		x.check(t, os.MkdirAll(filepath.Join(x.folder, "bin"), 0o700))
		absolute, err := filepath.Abs(target)
		x.check(t, err)
		x.check(t, os.Symlink(absolute, filepath.Join(x.folder, name)))
	}
	files := []string{"examples/envoy.yaml", "examples/envoy-module.yaml", "examples/envoy.policy.yaml", "examples/keys.toml", "tools/run-envoy.sh"}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("..", file))
		x.check(t, err)
		x.check(t, os.MkdirAll(filepath.Dir(filepath.Join(x.folder, file)), 0o700))
		x.check(t, os.WriteFile(filepath.Join(x.folder, file), text, 0o700))
	}
	edits := []string{"deadline: 50ms", longDeadline, "timeout: 50ms", "timeout: 5s"} // other tests run as well
	for _, port := range []string{"6379", "8090", "9901"} {
		x.addresses = append(x.addresses, freeport.Address(t))
		edits = append(edits, port, portOf(x.addresses[len(x.addresses)-1]))
	}
	edits = append(edits, "--listen $bridge", "--listen $bridge --redis-timeout 5s")
	for _, file := range []string{"examples/envoy.yaml", "examples/envoy-module.yaml", "tools/run-envoy.sh"} {
		replaceIn(t, filepath.Join(x.folder, file), edits...)
	}
	return x
}

func (x *checkout) check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// isFree checks that no process listens at the address any more.
func (x *checkout) isFree(t *testing.T, network, address string) {
	t.Helper()
	if connection, err := net.Dial(network, address); err == nil {
		connection.Close()
		t.Errorf("a process still listens at %s", address)
	}
}

// checkout.get requests a path that the policy limits.
func (x *checkout) get(t *testing.T, header ...string) answer {
	t.Helper()
	const envoy = 1
	a, err := ask(http.DefaultClient, "http://"+x.addresses[envoy]+"/api/", header...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// replaceIn edits a file. The arguments are pairs of an old and a new text.
func replaceIn(t *testing.T, path string, pairs ...string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.NewReplacer(pairs...).Replace(string(text))), 0o700); err != nil {
		t.Fatal(err)
	}
}

func either(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
