// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Format is the syntax of a document.
type Format = syntax.Format

// The formats.
const (
	YAML = syntax.YAML
	TOML = syntax.TOML
	JSON = syntax.JSON
)

// Load reads a policy file in the format of its extension. The error is [policy.Problems], or
// states why the file could not be read. Load does not find all the problems that
// [Document.Compile] finds.
func Load(path string) (*Document, error) {
	if _, ok := syntax.FormatOf(path); !ok {
		return nil, badExtension(path)
	}
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return decodeFile(path, data)
}

func badExtension(path string) error {
	return fmt.Errorf("policy file %q: the extension must be .yaml, .yml, .toml or .json", path)
}

// readFile reads a file, at most one byte more than the size limit.
func readFile(path string) ([]byte, error) {
	// A pipe must not be opened, because that would block until there is a writer.
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return nil, fmt.Errorf("policy file %q is not a regular file", path)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("policy file: %w; create it, or name another", err)
	}
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, syntax.SizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	return data, nil
}

// decodeFile decodes the content of a file.
func decodeFile(path string, data []byte) (*Document, error) {
	format, ok := syntax.FormatOf(path)
	if !ok {
		return nil, badExtension(path)
	}
	d, err := Decode(filepath.Base(path), format, data)
	if err != nil {
		return nil, err
	}
	d.folder = filepath.Dir(path)
	return d, nil
}

// Decode reads a document. The argument called name appears in the positions of problems. The
// error is [policy.Problems].
func Decode(name string, format Format, data []byte) (*Document, error) {
	found := &syntax.Report{}
	tree, err := syntax.Parse(name, format, data, found)
	if err != nil {
		return nil, err
	}
	if tree != nil && tree.Kind == syntax.KindMap && len(tree.Entries) == 0 && len(found.Problems) == 0 {
		tree = nil
		syntax.ReportEmpty(name, found)
	}
	return decodeDocument(tree, found)
}
