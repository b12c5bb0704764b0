// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestASecondSignalEndsTheDrain tests that a second signal ends a drain of an hour at once, and
// that no socket is left behind.
func TestASecondSignalEndsTheDrain(t *testing.T) {
	folder, err := os.MkdirTemp("", "penstock")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(folder) })
	socket, rls := filepath.Join(folder, "s"), filepath.Join(folder, "r")
	r := startBridge(t, "--listen", "unix:"+socket, "--rls-listen", "unix:"+rls, "--drain-delay", "1h")
	r.stop()
	r.eventually("the bridge stops")
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	r.ended <- nil
	for _, path := range []string{socket, rls} {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Error("a socket is left behind", path, err)
		}
	}
}
