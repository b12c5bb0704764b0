// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package localpg

import (
	"errors"
	"os/exec"
)

type owner struct{}

func serverUser() (owner, error) {
	return owner{}, errors.New("a private PostgreSQL runs on Unix only: name a database with --database")
}

func (owner) take(string) error { return nil }

func (owner) prepare(*exec.Cmd) {}
