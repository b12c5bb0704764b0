// SPDX-License-Identifier: Apache-2.0

// Package s3test starts a real S3 server for a test, and stops it when the test ends. The server is
// rclone, which serves a folder.
//
// A server starts in about 0.2 seconds. Its objects are files in [Server.Folder], which a test may
// damage. On a machine without rclone the test fails, because an archive in S3 must be tested with
// S3.
package s3test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/module"
)

// The credentials of every server.
const (
	AccessKey = "test-access"
	SecretKey = "test-secret-key"
)

// Bucket is the bucket that every server has.
const Bucket = "events"

// patience bounds the time that a server takes to start on a busy machine.
const patience = 20 * time.Second

// missing is the message on a machine without the server.
const missing = "these tests need an S3 server: run make setup"

// Server is a running S3 server. Its methods fail the test on an error. Only one goroutine may use
// a Server.
type Server struct {
	// Addr is 127.0.0.1:PORT.
	Addr string
	// Folder has a file for each object of the bucket.
	Folder string

	t       testing.TB
	root    string
	process *exec.Cmd
}

// Environment returns the environment variables that give a process the credentials of the servers.
func Environment() []string {
	return []string{"AWS_ACCESS_KEY_ID=" + AccessKey, "AWS_SECRET_ACCESS_KEY=" + SecretKey}
}

// Start starts a server and stops it when the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	root := t.TempDir()
	s := &Server{Addr: freeport.Address(t), Folder: filepath.Join(root, Bucket), t: t, root: root}
	if err := os.Mkdir(s.Folder, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.process != nil {
			s.Kill()
		}
	})
	s.Restart()
	return s
}

// URL returns the address of the server.
func (s *Server) URL() string { return "http://" + s.Addr }

// Restart starts the server after Kill. The server still has its objects.
func (s *Server) Restart() {
	s.t.Helper()
	program := module.Path(s.t, ".cache", "rclone", "bin", "rclone")
	// A test may change the files, so the server must not remember the folder for long.
	s.process = exec.Command(program, "--config=", "serve", "s3", "--addr="+s.Addr, "--auth-key="+AccessKey+","+SecretKey, "--dir-cache-time=10ms", s.root)
	if err := s.process.Start(); err != nil {
		s.process = nil
		s.t.Fatalf("%s: %v", missing, err)
	}
	eventually.Until(s.t, patience, "the S3 server answers", func() bool {
		c, err := net.Dial("tcp", s.Addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// Kill ends the server as in a crash.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.process.Process.Kill(); err != nil {
		s.t.Fatal(err)
	}
	_ = s.process.Wait() // it was killed
	s.process = nil
}

// Pause stops the server from responding.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Resume lets a paused server respond again.
func (s *Server) Resume() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(signal os.Signal) {
	s.t.Helper()
	if err := s.process.Process.Signal(signal); err != nil {
		s.t.Fatal(err)
	}
}
