// SPDX-License-Identifier: Apache-2.0

package localpg

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// installed is where Debian and its derivatives install the programs of each major version.
const installed = "/usr/lib/postgresql/*/bin"

// ErrMissing is the error for a machine without PostgreSQL. The error explains how to install
// PostgreSQL.
var ErrMissing = errors.New("no PostgreSQL server is on this machine: install it (Debian, Ubuntu: apt-get install postgresql; " +
	"Fedora: dnf install postgresql-server; macOS: brew install postgresql), or name a database: penstock control serve --database URL")

// Programs returns the folder with the programs of PostgreSQL: those of the newest version that is
// installed, else those in the search path.
func Programs() (folder string, err error) { return programsIn(installed) }

func programsIn(pattern string) (folder string, err error) {
	found, err := filepath.Glob(filepath.Join(pattern, "initdb"))
	if err != nil {
		return "", err
	}
	if len(found) > 0 {
		newest := slices.MaxFunc(found, func(a, b string) int { return cmp.Compare(major(a), major(b)) })
		return filepath.Dir(newest), nil
	}
	initdb, err := exec.LookPath("initdb")
	if err != nil {
		return "", ErrMissing
	}
	if initdb, err = filepath.EvalSymlinks(initdb); err != nil {
		return "", err
	}
	folder = filepath.Dir(initdb)
	if _, err := os.Stat(filepath.Join(folder, "postgres")); err != nil {
		return "", ErrMissing
	}
	return folder, nil
}

// major returns the major version in the path /usr/lib/postgresql/15/bin/initdb, or 0.
func major(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}
