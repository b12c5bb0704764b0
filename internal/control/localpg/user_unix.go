// SPDX-License-Identifier: Apache-2.0

//go:build unix

package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// owner is the user that runs the server. The zero owner is the current user.
type owner struct{ uid, gid int }

// serverUser returns the user that runs the server.
func serverUser() (o owner, err error) {
	if os.Geteuid() != 0 {
		return owner{}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, wrongUser := strconv.Atoi(u.Uid)
		gid, wrongGroup := strconv.Atoi(u.Gid)
		return owner{uid, gid}, errors.Join(wrongUser, wrongGroup)
	}
	return owner{}, errors.New("PostgreSQL does not run as root, and there is no user postgres or nobody: run as another user")
}

// owner.take changes the owner of the folder.
func (o owner) take(folder string) error {
	if o == (owner{}) {
		return nil
	}
	if err := os.Chown(folder, o.uid, o.gid); err != nil {
		return fmt.Errorf("give the folder %q to the user that runs PostgreSQL: %w", folder, err)
	}
	return nil
}

// owner.prepare makes a command run as the owner, in a separate process group. So Ctrl-C in a
// terminal signals only the program that stops the server.
func (o owner) prepare(command *exec.Cmd) {
	command.Dir = "/"
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if o != (owner{}) {
		command.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.gid)}
	}
}
