// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// source is one Go file of the repository.
type source struct {
	text   []byte
	syntax *ast.File
	set    *token.FileSet
}

func (s source) at(n ast.Node) string { return s.set.Position(n.Pos()).String() }

func isTest(path string) bool { return strings.HasSuffix(path, "_test.go") }

func sources(t *testing.T, want func(path string) bool) map[string]source {
	t.Helper()
	all := map[string]source{}
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".go" || !want(path) {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, path, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all[path] = source{text, syntax, set}
	}
	return all
}

// tracked lists the files of the repository, whether committed yet or not.
func tracked(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (path == ".git" || path == ".cache" || path == "bin") {
			return filepath.SkipDir
		}
		if !d.IsDir() {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestOnlyTheModuleUsesCgo tests that the packages of the other programs are the same with and
// without cgo.
func TestOnlyTheModuleUsesCgo(t *testing.T) {
	others := func(path string) bool {
		return !strings.HasPrefix(path, "envoy-module/") && !strings.HasPrefix(path, "bench/module/")
	}
	for _, file := range sources(t, others) {
		for _, imported := range file.syntax.Imports {
			if imported.Path.Value == `"C"` {
				t.Errorf("%s: imports C, and only envoy-module may", file.at(imported))
			}
		}
		for _, group := range file.syntax.Comments {
			for _, comment := range group.List {
				if strings.HasPrefix(comment.Text, "//go:build") && strings.Contains(comment.Text, "cgo") {
					t.Errorf("%s: depends on cgo, and only envoy-module may", file.at(comment))
				}
			}
		}
	}
}
