// SPDX-License-Identifier: Apache-2.0

//go:build !unix

package feed

import "os"

// lockFile creates a file. On this system it does not lock the file, so other processes are not
// kept out.
func lockFile(path string) (*os.File, error) { return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600) }

// syncFolder does nothing, because on this system a folder cannot be opened as a file.
func syncFolder(string) error { return nil }
