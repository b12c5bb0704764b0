// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFind tests that a test is found by its own source, by what it uses, and by the build
// constraint of its file, and that other tests are not.
func TestFind(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": "package a\n\n" +
			"var few, other = scale(10), 1\n\n" +
			"// TestComment is none, scale( is in its comment only.\nfunc TestComment(t *testing.T) {}\n\n" +
			"func TestOwn(t *testing.T) {\n\t_ = `\n}\nfunc TestText() {\n`\n\tscale(3)\n}\n\n" +
			"func TestVariable(t *testing.T) { _ = few }\n\n" +
			"func TestMethod(t *testing.T) { new(w).walk() }\n\n" +
			"func TestOther(t *testing.T) { t.Log(few2) }\n",
		"b_test.go": "package a\n\ntype w struct{}\n\nfunc (w) walk() { helper() }\n\nfunc helper() { scale(2) }\n",
		"c_test.go": "//go:build scale(1)\n\npackage a\n\nfunc TestConstraint(t *testing.T) {}\n",
		"d.go":      "package a\n\nfunc TestNoTestFile() { scale(1) }\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	names, err := find([]string{`scale\(`, folder})
	if want := []string{"TestConstraint", "TestMethod", "TestOwn", "TestVariable"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%v, %v, want %v", names, err, want)
	}
	if _, err := find([]string{`(`, folder}); err == nil {
		t.Error("a pattern that is none is accepted")
	}
}
