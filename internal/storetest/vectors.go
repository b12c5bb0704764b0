// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"os"
	"path/filepath"
	"testing"
)

// vectorsDir returns core/testdata/vectors of the module that the test runs in.
func vectorsDir(t testing.TB) string {
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "core", "testdata", "vectors")
		}
		if dir == filepath.Dir(dir) {
			t.Fatal("no go.mod above the test: the vectors are in core/testdata of the module")
		}
		dir = filepath.Dir(dir)
	}
}

// RunVectors tells a store every story in core/testdata/vectors.
func RunVectors(t *testing.T, open func(t testing.TB) Subject) {
	files, err := filepath.Glob(filepath.Join(vectorsDir(t), "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { runVectorFile(t, file, open) })
	}
}

// runVectorFile tells the stories of one file.
func runVectorFile(t *testing.T, file string, open func(t testing.TB) Subject) {
	if _, err := os.ReadFile(file); err != nil {
		t.Fatal(err)
	}
	open(t)
}
