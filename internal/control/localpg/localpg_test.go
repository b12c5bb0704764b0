// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestAMachineWithoutPostgreSQL tests that the error names the package to install.
func TestAMachineWithoutPostgreSQL(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := programsIn(filepath.Join(t.TempDir(), "*", "bin"))
	if !errors.Is(err, ErrMissing) || !strings.Contains(err.Error(), "apt-get install postgresql") {
		t.Errorf("got %v", err)
	}
}

// TestTheNewestVersionIsUsed tests that versions are compared as numbers: 15 is newer than 9.
func TestTheNewestVersionIsUsed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, version := range []string{"9", "15", "14"} {
		bin := filepath.Join(folder, version, "bin")
		if err := os.MkdirAll(bin, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, "initdb"), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got, err := programsIn(filepath.Join(folder, "*", "bin"))
	if want := filepath.Join(folder, "15", "bin"); err != nil || got != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}

// TestFoldersThatCannotHoldAServer tests that the error names the remedy.
func TestFoldersThatCannotHoldAServer(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), strings.Repeat("x", socketBytesMax))
	if _, err := Start(t.Context(), Options{Folder: long}); err == nil || !strings.Contains(err.Error(), "too long for a Unix socket") {
		t.Errorf("a long path: %v", err)
	}
	if os.Geteuid() != 0 {
		return // only root can run the server as another user
	}
	closed, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(closed) })
	if _, err := Start(t.Context(), Options{Folder: filepath.Join(closed, "in")}); err == nil || !strings.Contains(err.Error(), "cannot reach the folder") {
		t.Errorf("a folder that others cannot enter: %v", err)
	}
}

// TestOnlyTheOwnerConnects tests that the socket of a server is closed to other users, even if they
// can enter its folder.
func TestOnlyTheOwnerConnects(t *testing.T) {
	folder, err := os.MkdirTemp("", "pg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.Chmod(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	server, err := Start(t.Context(), Options{Folder: folder, Volatile: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	socket, err := os.Stat(filepath.Join(folder, socketName))
	if err != nil || socket.Mode().Perm() != 0o700 {
		t.Errorf("the socket: %v, %v", socket, err)
	}
}
