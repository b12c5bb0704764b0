// SPDX-License-Identifier: Apache-2.0

package pgtest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/penstock/penstock/internal/control/localpg"
)

// Archive restarts the server with an archive of its write-ahead log (WAL), as a production server
// has, and returns the folder of the archive.
func (s *Server) Archive() (folder string) {
	s.t.Helper()
	folder = filepath.Join(s.folder, "archive")
	s.sql("ALTER SYSTEM SET archive_mode = on")
	s.sql(fmt.Sprintf("ALTER SYSTEM SET archive_command = 'mkdir -p %[1]s && test ! -f %[1]s/%%f && cp %%p %[1]s/%%f'", folder))
	s.Stop()
	s.Restart()
	return folder
}

func (s *Server) sql(statement string) {
	s.t.Helper()
	connection, err := pgx.Connect(context.Background(), s.URL())
	s.must(err)
	defer connection.Close(context.Background())
	_, err = connection.Exec(context.Background(), statement)
	s.must(err)
}

// BaseBackup copies the running server with pg_basebackup, and returns the folder of the copy.
func (s *Server) BaseBackup() (folder string) {
	s.t.Helper()
	programs, err := localpg.Programs()
	s.must(err)
	folder, err = os.MkdirTemp("", "pg")
	s.must(err)
	s.t.Cleanup(func() { _ = os.RemoveAll(folder) })
	command := exec.Command(filepath.Join(programs, "pg_basebackup"), "-h", s.folder, "-U", localpg.User, "-D", filepath.Join(folder, "data"),
		"--checkpoint=fast", "--wal-method=none", "--no-sync")
	if out, err := command.CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return folder
}

// EndArchive archives the last changes and stops the server, so that the archive has everything
// that was committed.
func (s *Server) EndArchive() {
	s.t.Helper()
	s.sql("SELECT pg_switch_wal()")
	s.Stop() // waits for the archive
}

// Recover starts a new server from the copy in a folder, and recovers it from the archive up to the
// given instant. The server accepts connections as soon as it is recovered.
func (s *Server) Recover(folder, archive string, until time.Time) *Server {
	s.t.Helper()
	data := filepath.Join(folder, "data")
	settings := fmt.Sprintf("archive_mode = off\nhot_standby = off\nrestore_command = 'cp %s/%%f %%p'\nrecovery_target_time = '%s'\nrecovery_target_action = promote\n",
		archive, until.UTC().Format("2006-01-02 15:04:05.999999+00"))
	file, err := os.OpenFile(filepath.Join(data, "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0o600)
	s.must(err)
	_, err = file.WriteString(settings)
	s.must(err)
	s.must(file.Close())
	s.must(os.WriteFile(filepath.Join(data, "recovery.signal"), nil, 0o600))
	s.must(chownLike(s.folder, data))
	server, err := localpg.Start(context.Background(), localpg.Options{Folder: folder, Volatile: true})
	s.must(err)
	s.t.Cleanup(func() { _ = server.Kill() })
	return &Server{t: s.t, server: server, folder: folder}
}

// chownLike makes the owner of a folder the owner of all files in a tree.
func chownLike(folder, tree string) error {
	info, err := os.Stat(folder)
	if err != nil {
		return err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
