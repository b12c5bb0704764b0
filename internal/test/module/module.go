// SPDX-License-Identifier: Apache-2.0

// Package module finds the files of this module for tests in any of its folders.
package module

import (
	"os"
	"path/filepath"
	"testing"
)

// Path returns the path of a file or folder of this module. The elements are relative to the
// module's root.
func Path(t testing.TB, elements ...string) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(append([]string{dir}, elements...)...)
		}
		if dir == filepath.Dir(dir) {
			t.Fatalf("no go.mod above the test: %s is in the module", filepath.Join(elements...))
		}
		dir = filepath.Dir(dir)
	}
}
