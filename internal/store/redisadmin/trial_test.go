// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
)

// trialPlace returns a folder and a port for a cluster that is stopped when the test ends.
func trialPlace(t *testing.T) (dir string, port int) {
	t.Helper()
	_, text, _ := net.SplitHostPort(freeport.WithBuses(t, trialNodes))
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "a cluster's $HOME") // this name needs quoting in a shell
	t.Cleanup(func() { stopTrial(t, &Trial{Dir: dir, Port: port}) })
	return dir, port
}

// stopTrial runs the printed stop command of a cluster, and waits until its ports are free.
func stopTrial(t *testing.T, trial *Trial) {
	t.Helper()
	_ = exec.Command("sh", "-c", trial.Stop()).Run() // an error is ignored, because the cluster might not be running
	for i := range trialNodes {
		awaitFree(t, trial.Port+i)
	}
}

// awaitFree waits until the port of a node and the port of its bus are free. A server that stops
// removes its pid file first, then closes its port, and then the port of its bus.
func awaitFree(t *testing.T, port int) {
	t.Helper()
	for _, p := range []int{port, port + busAhead} {
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(p))
		eventually.Until(t, patience, addr+" is free", func() bool {
			listener, err := net.Listen("tcp", addr)
			if err == nil {
				listener.Close()
			}
			return err == nil
		})
	}
}

func TestTrial(t *testing.T) {
	t.Parallel()
	dir, port := trialPlace(t)
	start := func(want int) *Trial {
		t.Helper()
		trial, err := StartTrial(context.Background(), dir, port)
		if err != nil {
			t.Fatal(err)
		}
		if trial.Started != want {
			t.Errorf("%d nodes were started, want %d", trial.Started, want)
		}
		return trial
	}
	trial := start(6)
	o := optionsFor("redis://" + trial.Addrs()[5])
	if text, ok := healthText(t, connect(t, o)); !ok || !strings.Contains(text, "3 masters and 3 replicas; 16384 of 16384") {
		t.Error("it is not in order")
	}
	if _, ok := examined(t, o); !ok {
		t.Error("the doctor finds something wrong with it")
	}
	start(0)
	pid := quoteWord(filepath.Join(trial.folder(4), pidFile))
	shell(t, "kill $(cat "+pid+")")
	awaitFree(t, port+4)
	start(1)
	stopTrial(t, trial)
	start(6)
	if text, ok := healthText(t, connect(t, o)); !ok || !strings.Contains(text, "3 masters and 3 replicas; 16384 of 16384") {
		t.Error("after a stop it is not in order")
	}
}

// TestTrialLeavesOthersAlone: no node is started if another program listens on one of the ports.
// The twelve ports are reserved only among tests, so the test is repeated with other ports if
// another program uses one of them in the meantime.
func TestTrialLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	const places = 5
	for try := 1; !leavesOthersAlone(t); try++ {
		if try == places {
			t.Fatalf("other programs took ports at %d places", places)
		}
	}
}

// leavesOthersAlone returns false if a program that does not belong to the test has taken a port.
func leavesOthersAlone(t *testing.T) bool {
	dir, port := trialPlace(t)
	taken := port + busAhead + 4
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(taken)))
	if errors.Is(err, syscall.EADDRINUSE) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = StartTrial(context.Background(), dir, port)
	listener.Close()
	if othersPort(err, port, taken) {
		return false
	}
	if want := "port " + strconv.Itoa(taken) + " is in use"; err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "--port "+strconv.Itoa(port+100)) {
		t.Errorf("%v, want %q", err, want)
	}
	if matches, _ := filepath.Glob(filepath.Join(dir, "*")); len(matches) > 0 {
		t.Errorf("something was started: %v", matches)
	}

	_, err = StartTrial(context.Background(), dir, port)
	if othersPort(err, port, 0) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = StartTrial(context.Background(), t.TempDir(), port); err == nil || !strings.Contains(err.Error(), "is in use, and not by a cluster in") {
		t.Errorf("another folder: %v", err)
	}
	return true
}

// othersPort reports whether the error says that a port of the cluster is in use, other than the
// port given as but.
func othersPort(err error, port, but int) bool {
	for i := range trialNodes {
		for _, p := range []int{port + i, port + i + busAhead} {
			if p != but && err != nil && strings.Contains(err.Error(), "port "+strconv.Itoa(p)+" is in use") {
				return true
			}
		}
	}
	return false
}

// TestTrialsHaveFoldersOfTheirOwn: the command that stops one cluster does not stop another.
func TestTrialsHaveFoldersOfTheirOwn(t *testing.T) {
	dir, port := trialPlace(t)
	// the port of this cluster is not in use, because a running cluster would be queried
	first := &Trial{Dir: dir, Port: 7001}
	if err := os.MkdirAll(first.folder(0), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(first.folder(0), configFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := StartTrial(context.Background(), dir, port)
	if err == nil || !strings.Contains(err.Error(), "holds a node of another cluster, at port 7001, and --port is "+strconv.Itoa(port)) {
		t.Errorf("a second cluster in the folder of the first: %v", err)
	}
	if matches, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "*", "*", pidFile)); len(matches) > 0 {
		t.Errorf("something was started: %v", matches)
	}
}

func TestTrialRejectsPortsAndFolders(t *testing.T) {
	for _, port := range []int{0, 80, trialPortMost + 1, 70000} {
		if _, err := StartTrial(context.Background(), t.TempDir(), port); err == nil || !strings.Contains(err.Error(), "write --port 7001") {
			t.Errorf("port %d: %v", port, err)
		}
	}
	_, port := trialPlace(t)
	if _, err := StartTrial(context.Background(), "/proc/none", port); err == nil || !strings.Contains(err.Error(), "--dir: ") {
		t.Errorf("a folder that cannot be: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := StartTrial(context.Background(), t.TempDir(), port); err == nil || !strings.Contains(err.Error(), "apt-get install redis-server") {
		t.Errorf("without redis-server: %v", err)
	}
}
