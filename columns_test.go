// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"bytes"
	"go/ast"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommentsFitInColumns tests that each line of a comment has at most 100 columns, with tabs of
// 4. Generated files, directives, preformatted blocks and the output of examples are exempt.
func TestCommentsFitInColumns(t *testing.T) {
	const columnsMax = 100
	for path, file := range sources(t, func(string) bool { return true }) {
		if ast.IsGenerated(file.syntax) || filepath.Base(path) == "example_test.go" {
			continue
		}
		for i, line := range bytes.Split(file.text, []byte("\n")) {
			text := string(line)
			if s := strings.TrimLeft(text, "\t"); !strings.HasPrefix(s, "//") || strings.HasPrefix(s, "//go:") || strings.HasPrefix(s, "//\t") {
				continue
			}
			if n := len([]rune(strings.ReplaceAll(text, "\t", "    "))); n > columnsMax {
				t.Errorf("%s:%d: a comment of %d columns, more than %d", path, i+1, n, columnsMax)
			}
		}
	}
}
