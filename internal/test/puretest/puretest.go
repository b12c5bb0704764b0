// SPDX-License-Identifier: Apache-2.0

// Package puretest tests that a package is pure. The results of a pure package depend only on its
// arguments.
//
// # Promise
//
// [Check] forbids I/O, clocks, locks, goroutines, channels and maps in the package under test. A
// model or a simulation could not reproduce their effects. For example, the order of a map varies.
//
// # When not to use it
//
// Check reads only the source of the package under test, so it does not see what permitted imports
// do.
package puretest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Check fails the test unless the package in the current folder is pure and imports only the
// permitted packages.
func Check(t testing.TB, permitted ...string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	set := token.NewFileSet()
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range file.Imports {
			if name, _ := strconv.Unquote(i.Path.Value); !slices.Contains(permitted, name) {
				t.Errorf("%s imports %q", path, name)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n.(type) {
			case *ast.GoStmt, *ast.MapType, *ast.ChanType:
				t.Errorf("%s: %T", set.Position(n.Pos()), n)
			}
			return true
		})
	}
}
