// SPDX-License-Identifier: Apache-2.0

//go:build unix

package policy

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// To open a pipe would wait for its writer, for ever: at start, and when a watch is closed.
func TestPipeIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	go func() {
		_, err := Load(path)
		refused <- err
	}()
	select {
	case err := <-refused:
		if err == nil || !strings.Contains(err.Error(), "is no regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for a writer")
		if writer, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			writer.Close()
		}
	}
}
