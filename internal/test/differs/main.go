// SPDX-License-Identifier: Apache-2.0

// Command differs finds the tests that do less under the race detector, and prints their names
// joined by "|". Its arguments are a regular expression, the pattern, and the folders of packages.
//
// A test is printed if its source matches the pattern. It is also printed if it uses, directly or
// indirectly, a function, variable or constant of the package's tests whose source matches. If the
// build constraint of a file matches, all tests of the file are printed. Names are compared without
// types, so a test may be printed needlessly, but none is missing.
//
//	go run ./internal/test/differs AllocsPerRun ./caddy
package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	names, err := find(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "differs:", err)
		os.Exit(1)
	}
	fmt.Println(strings.Join(names, "|"))
}

func find(args []string) (names []string, err error) {
	if len(args) == 0 {
		return nil, errors.New("the first argument is a pattern, the others are folders")
	}
	pattern, err := regexp.Compile(args[0])
	if err != nil {
		return nil, err
	}
	for _, folder := range args[1:] {
		found, err := differing(pattern, folder)
		if err != nil {
			return nil, err
		}
		names = append(names, found...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// declaration is a declaration in the test files of a package.
type declaration struct {
	names []string // the declared names
	uses  map[string]bool
}

// differing returns the tests of one package that must be printed.
func differing(pattern *regexp.Regexp, folder string) (tests []string, err error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		return nil, err
	}
	var others []declaration
	found := map[string]bool{}
	for _, path := range paths {
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, source, 0)
		if err != nil {
			return nil, err
		}
		offset := func(p token.Pos) int { return files.Position(p).Offset }
		whole := pattern.Match(source[:offset(file.Package)])
		for _, node := range declarations(file) {
			d := newDeclaration(node)
			if !whole && !pattern.Match(source[offset(node.Pos()):offset(node.End())]) {
				others = append(others, d)
				continue
			}
			for _, name := range d.names {
				found[name] = true
			}
		}
	}
	addUsers(found, others)
	for name := range found {
		if strings.HasPrefix(name, "Test") {
			tests = append(tests, name)
		}
	}
	return tests, nil
}

// declarations returns the declarations of functions, variables and constants in a file.
func declarations(file *ast.File) (nodes []ast.Node) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			nodes = append(nodes, d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if _, ok := s.(*ast.ValueSpec); ok {
					nodes = append(nodes, s)
				}
			}
		}
	}
	return nodes
}

func newDeclaration(node ast.Node) declaration {
	d := declaration{uses: map[string]bool{}}
	switch node := node.(type) {
	case *ast.FuncDecl:
		d.names = append(d.names, node.Name.Name)
	case *ast.ValueSpec:
		for _, name := range node.Names {
			d.names = append(d.names, name.Name)
		}
	}
	ast.Inspect(node, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			d.uses[name.Name] = true
		}
		return true
	})
	return d
}

// addUsers adds the names of all declarations that use a name in the set. It repeats this until no
// such declaration is left.
func addUsers(found map[string]bool, others []declaration) {
	for more := true; more; {
		more = false
		for _, d := range others {
			if found[d.names[0]] || !uses(d, found) {
				continue
			}
			for _, name := range d.names {
				found[name] = true
			}
			more = true
		}
	}
}

// uses reports whether a declaration uses one of the names.
func uses(d declaration, names map[string]bool) bool {
	for name := range d.uses {
		if names[name] {
			return true
		}
	}
	return false
}
