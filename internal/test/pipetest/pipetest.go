// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package pipetest tests that programs reject a named pipe where they expect a file. A program that
// opens such a pipe blocks until there is a writer. The package is not for programs that read from
// pipes.
package pipetest

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// IsRejected calls the function named open with the path of a new pipe that has the given name.
// Within ten seconds, the function must return an error that reports the pipe.
func IsRejected(t *testing.T, name string, open func(path string) error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	rejected := make(chan error, 1)
	go func() { rejected <- open(path) }()
	select {
	case err := <-rejected:
		if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for a writer")
		if writer, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NONBLOCK, 0); err == nil {
			writer.Close()
		}
	}
}
