// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/localpg"
	"github.com/penstock/penstock/internal/test/eventually"
)

// Standby starts a server that is a copy of the running one, and follows the running one by
// streaming replication. From then on, each commit on the running server waits until the standby
// has it.
func (s *Server) Standby() *Server {
	s.t.Helper()
	programs, err := localpg.Programs()
	s.must(err)
	folder, err := os.MkdirTemp("", "pg")
	s.must(err)
	s.t.Cleanup(func() { _ = os.RemoveAll(folder) })
	data := filepath.Join(folder, "data")
	command := exec.Command(filepath.Join(programs, "pg_basebackup"), "-d", fmt.Sprintf("host=%s user=%s application_name=standby", s.folder, localpg.User), "-D", data,
		"--checkpoint=fast", "--wal-method=stream", "--write-recovery-conf", "--no-sync")
	if out, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	s.must(chownLike(s.folder, data))
	server, err := localpg.Start(context.Background(), localpg.Options{Folder: folder, Volatile: true})
	s.must(err)
	s.t.Cleanup(func() { _ = server.Kill() })
	s.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
	s.sql("SELECT pg_reload_conf()")
	eventually.Until(s.t, time.Minute, "commits wait for the standby", func() bool {
		return s.isTrue("SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
	})
	return &Server{t: s.t, server: server, folder: folder}
}

// URLWith returns an address that names both servers. A client connects to the one that accepts
// writes.
func (s *Server) URLWith(other *Server) string {
	query := url.Values{"host": {s.folder + "," + other.folder}, "user": {localpg.User}, "sslmode": {"disable"}, "target_session_attrs": {"read-write"}}
	return (&url.URL{Scheme: "postgres", Path: "/" + localpg.Name, RawQuery: query.Encode()}).String()
}

// Destroy kills the main process of the server with SIGKILL. The server does not start again.
func (s *Server) Destroy() {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.folder, "data", "postmaster.pid"))
	s.must(err)
	pid, err := strconv.Atoi(strings.SplitN(string(text), "\n", 2)[0])
	s.must(err)
	s.must(syscall.Kill(pid, syscall.SIGKILL))
	<-s.server.Done()
}

// Promote makes a standby accept writes.
func (s *Server) Promote() {
	s.t.Helper()
	if !s.isTrue("SELECT pg_promote()") {
		s.t.Fatal("the standby is not promoted")
	}
}

// isTrue returns the value of a query with one row and column.
func (s *Server) isTrue(query string) (yes bool) {
	s.t.Helper()
	connection, err := pgx.Connect(context.Background(), s.URL())
	s.must(err)
	defer connection.Close(context.Background())
	s.must(connection.QueryRow(context.Background(), query).Scan(&yes))
	return yes
}
