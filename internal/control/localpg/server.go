// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// User and Name are the user and the database that are created in a new folder.
	User = "penstock"
	Name = "penstock"

	// startTime is how long the server may take to accept connections. It is long, because the
	// server may have to recover from a crash.
	startTime = 60 * time.Second
	// stopTime is how long the server may take to end.
	stopTime = 20 * time.Second
	// look is the pause after a failed attempt to connect to a server that starts.
	look = 20 * time.Millisecond
	// socketBytesMax is the length of the longest path of a Unix socket.
	socketBytesMax = 107
	socketName     = "/.s.PGSQL.5432"
)

// Options configures a server.
type Options struct {
	// Folder holds the data, the socket and the log. Start creates it.
	Folder string
	// Volatile servers do not wait for the disk. A power failure may destroy their data.
	Volatile bool
}

// Server is a running server. Only the method URL may be called by several goroutines at the same
// time.
type Server struct {
	folder   string
	programs string
	owner    owner
	volatile bool
	process  *exec.Cmd
	done     chan struct{} // closed when the process has ended
}

// Start starts the server of a folder. Start makes the folder, the data and the database first if
// they are missing. The caller must call Stop.
func Start(ctx context.Context, o Options) (*Server, error) {
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return nil, err
	}
	if len(folder)+len(socketName) > socketBytesMax {
		return nil, fmt.Errorf("the folder %q is too long for a Unix socket: choose one of at most %d bytes", folder, socketBytesMax-len(socketName))
	}
	s := &Server{folder: folder, volatile: o.Volatile}
	if s.programs, err = Programs(); err != nil {
		return nil, err
	}
	if s.owner, err = serverUser(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	if err := s.owner.take(folder); err != nil {
		return nil, err
	}
	if err := s.create(ctx); err != nil {
		return nil, err
	}
	if err := s.Run(ctx); err != nil {
		return nil, err
	}
	if _, err := s.run(ctx, "createdb", "-h", folder, "-U", User, Name); err != nil && !strings.Contains(err.Error(), "already exists") &&
		!strings.Contains(err.Error(), "read-only transaction") { // a standby has the database of its primary
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// URL returns the address of the database.
func (s *Server) URL() string { return s.Database(Name) }

// Database returns the address of a database of the server.
func (s *Server) Database(name string) string {
	query := url.Values{"host": {s.folder}, "user": {User}, "sslmode": {"disable"}}
	return (&url.URL{Scheme: "postgres", Path: "/" + name, RawQuery: query.Encode()}).String()
}

// Done returns a channel that is closed when the server has ended.
func (s *Server) Done() <-chan struct{} { return s.done }

func (s *Server) data() string { return filepath.Join(s.folder, "data") }

// Server.create makes the data directory if it is missing. The directory gets its final name when
// it is complete, so an interrupted call leaves no incomplete data directory.
func (s *Server) create(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(s.data(), "PG_VERSION")); err == nil {
		return nil
	}
	unfinished := s.data() + ".unfinished"
	if err := os.RemoveAll(unfinished); err != nil {
		return err
	}
	args := []string{"-D", unfinished, "-U", User, "--auth=trust", "-E", "UTF8", "--locale=C"}
	if s.volatile {
		args = append(args, "--no-sync")
	}
	if _, err := s.run(ctx, "initdb", args...); err != nil {
		if strings.Contains(err.Error(), "Permission denied") {
			return fmt.Errorf("the user that runs PostgreSQL cannot reach the folder %q: choose one below folders that everyone may enter: %w", s.folder, err)
		}
		return err
	}
	return os.Rename(unfinished, s.data())
}

// Server.run runs a program of PostgreSQL. The error contains what the program printed.
func (s *Server) run(ctx context.Context, program string, args ...string) (out string, err error) {
	command := exec.CommandContext(ctx, filepath.Join(s.programs, program), args...)
	s.owner.prepare(command)
	text, err := command.CombinedOutput()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return string(text), fmt.Errorf("%s: %w: %s; the log is %q", program, err, lines[len(lines)-1], s.log())
	}
	return string(text), nil
}

func (s *Server) log() string { return filepath.Join(s.folder, "log") }

// Run starts the server, or starts it again after it has ended. Run waits until the server accepts
// connections.
func (s *Server) Run(ctx context.Context) error {
	log, err := os.OpenFile(s.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	// Everyone who can connect is trusted, and other users may be able to enter the folder, so only
	// the owner may use the socket.
	args := []string{"-D", s.data(), "-k", s.folder, "-c", "unix_socket_permissions=0700", "-c", "listen_addresses=", "-c", "log_timezone=UTC", "-c", "timezone=UTC"}
	if s.volatile {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=16MB")
	}
	process, done := exec.Command(filepath.Join(s.programs, "postgres"), args...), make(chan struct{})
	process.Stdout, process.Stderr = log, log
	s.owner.prepare(process)
	if err := process.Start(); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	go func() {
		_ = process.Wait()
		close(done)
	}()
	s.process, s.done = process, done
	if err := s.await(ctx); err != nil {
		return errors.Join(err, s.Kill())
	}
	return nil
}

// Server.await waits until the server accepts connections.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	for {
		_, err := s.run(ctx, "pg_isready", "-q", "-h", s.folder)
		if err == nil {
			return nil
		}
		select {
		case <-s.done:
			return fmt.Errorf("PostgreSQL ended at once: its log is %q; does another one use the folder?", s.log())
		case <-ctx.Done():
			return fmt.Errorf("PostgreSQL accepts no connections: %w: %w", ctx.Err(), err)
		case <-time.After(look):
		}
	}
}

// Stop ends the server. Connections are closed, and committed data is kept.
func (s *Server) Stop() error { return s.end(syscall.SIGINT) }

// Kill ends the server as a crash would.
func (s *Server) Kill() error { return s.end(syscall.SIGQUIT) }

func (s *Server) end(how os.Signal) error {
	if err := s.process.Process.Signal(how); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end PostgreSQL: %w", err)
	}
	select {
	case <-s.done:
		return nil
	case <-time.After(stopTime):
		return fmt.Errorf("PostgreSQL does not end within %v: its log is %q", stopTime, s.log())
	}
}
