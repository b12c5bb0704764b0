// SPDX-License-Identifier: Apache-2.0

package redisadmin

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/await"
	"github.com/penstock/penstock/internal/freeport"
)

// trialPlace returns a folder and a port for a cluster that is stopped when the test ends.
func trialPlace(t *testing.T) (dir string, port int) {
	t.Helper()
	_, text, _ := net.SplitHostPort(freeport.WithBuses(t, trialNodes))
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(t.TempDir(), "a cluster's $HOME") // a name that a shell would take apart
	t.Cleanup(func() { stopTrial(t, &Trial{Dir: dir, Port: port}) })
	return dir, port
}

// stopTrial runs what is said to stop a cluster, and waits until its ports are free.
func stopTrial(t *testing.T, trial *Trial) {
	t.Helper()
	_ = exec.Command("sh", "-c", trial.Stop()).Run() // there may be none
	for _, addr := range trial.Addrs() {
		await.Until(t, patience, addr+" is free", func() bool {
			listener, err := net.Listen("tcp", addr)
			if err == nil {
				listener.Close()
			}
			return err == nil
		})
	}
}

func TestTrial(t *testing.T) {
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
	o := at("redis://" + trial.Addrs()[5])
	if text, ok := healthText(t, connect(t, o)); !ok || !strings.Contains(text, "3 masters and 3 replicas; 16384 of 16384") {
		t.Error("it is not in order")
	}
	if _, ok := examined(t, o); !ok {
		t.Error("the doctor finds something wrong with it")
	}
	start(0)
	pid := quoted(filepath.Join(trial.folder(4), pidFile))
	shell(t, "kill $(cat "+pid+"); while test -e "+pid+"; do :; done")
	start(1)
	stopTrial(t, trial)
	start(6)
	if text, ok := healthText(t, connect(t, o)); !ok || !strings.Contains(text, "3 masters and 3 replicas; 16384 of 16384") {
		t.Error("after a stop it is not in order")
	}
}

func TestTrialLeavesOthersAlone(t *testing.T) {
	dir, port := trialPlace(t)
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port+busAhead+4)))
	if err != nil {
		t.Fatal(err)
	}
	_, err = StartTrial(context.Background(), dir, port)
	listener.Close()
	if want := "port " + strconv.Itoa(port+busAhead+4) + " is in use"; err == nil || !strings.Contains(err.Error(), want) ||
		!strings.Contains(err.Error(), "--port "+strconv.Itoa(port+100)) {
		t.Errorf("%v, want %q", err, want)
	}
	if matches, _ := filepath.Glob(filepath.Join(dir, "*")); len(matches) > 0 {
		t.Errorf("something was started: %v", matches)
	}

	if _, err := StartTrial(context.Background(), dir, port); err != nil {
		t.Fatal(err)
	}
	if _, err = StartTrial(context.Background(), t.TempDir(), port); err == nil || !strings.Contains(err.Error(), "is in use, and not by a cluster in") {
		t.Errorf("another folder: %v", err)
	}
}

// TestTrialsHaveFoldersOfTheirOwn holds that what is told to stop one cluster stops no other.
func TestTrialsHaveFoldersOfTheirOwn(t *testing.T) {
	dir, port := trialPlace(t)
	first := &Trial{Dir: dir, Port: 7001} // stopped, or it would be asked
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

func TestTrialRefuses(t *testing.T) {
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
