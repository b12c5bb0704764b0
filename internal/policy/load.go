// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core"
)

const (
	// SizeMax is the size of the largest document, in bytes. 10,000 rules with several words each fit.
	SizeMax = 4 << 20
	// depthMax is how deep lists and blocks may be nested. The deepest policy has 7 levels.
	depthMax = 32
	// keysMax is how many keys may stand in one block. The widest, match.header, has far fewer, and the parsers take time
	// that grows with the square.
	keysMax = 1000
)

// Format is a way to write a document.
type Format uint8

// The formats.
const (
	YAML Format = iota
	TOML
	JSON
)

// FormatOf returns the format that a file's extension stands for: .yaml, .yml, .toml or .json.
func FormatOf(path string) (Format, bool) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".yaml", ".yml":
		return YAML, true
	case ".toml":
		return TOML, true
	case ".json":
		return JSON, true
	}
	return 0, false
}

// Load reads a policy file; its format follows from its extension. The error is [core.Problems], or says why the file
// could not be read. It does not say everything that [Document.Compile] would.
func Load(path string) (*Document, error) {
	if _, ok := FormatOf(path); !ok {
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

// readFile reads no more than what is refused as too large.
func readFile(path string) ([]byte, error) {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() { // to open a pipe would wait for its writer
		return nil, fmt.Errorf("policy file %q is no regular file", path)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("policy file: %w; put it there, or name another", err)
	}
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, SizeMax+1))
	if err != nil {
		return nil, fmt.Errorf("policy file: %w", err)
	}
	return data, nil
}

// decodeFile decodes what was read from a file.
func decodeFile(path string, data []byte) (*Document, error) {
	format, ok := FormatOf(path)
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

// Decode reads a document; name is how its places call it. The error is [core.Problems].
func Decode(name string, format Format, data []byte) (*Document, error) {
	found := &report{}
	tree, err := parse(name, format, data, found)
	if err != nil {
		return nil, err
	}
	if tree != nil && tree.Kind == KindMap && len(tree.Entries) == 0 && len(found.problems) == 0 {
		tree = nil
		reportEmpty(name, found)
	}
	return fromNode(tree, found)
}

// parse reads a document into nodes. The error says that nothing of it can be read; other problems are found.
func parse(name string, format Format, data []byte, found *report) (*Node, error) {
	switch format {
	case YAML:
		return parseText(name, data, found, parseYAML)
	case TOML:
		return parseText(name, data, found, parseTOML)
	case JSON:
		return parseText(name, data, found, parseJSON)
	}
	return nil, fmt.Errorf("format %d is unknown", format)
}

// parseText reads a text that some format can hold.
func parseText(name string, data []byte, found *report, read func(string, []byte, *report) *Node) (*Node, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // a byte order mark, as some editors write it
	if !readable(name, data, found) {
		return nil, found.err()
	}
	return read(name, data, found), nil
}

// readable refuses what no format can hold.
func readable(name string, data []byte, found *report) bool {
	problem := core.Problem{Path: "policy", Place: name}
	switch {
	case len(data) > SizeMax:
		problem.Why, problem.Remedy = fmt.Sprintf("is larger than %d bytes", SizeMax), "use fewer or shorter rules"
	case len(bytes.TrimSpace(data)) == 0:
		reportEmpty(name, found)
		return false
	case !utf8.Valid(data):
		at := 0
		for at < len(data) {
			r, size := utf8.DecodeRune(data[at:])
			if r == utf8.RuneError && size == 1 {
				break
			}
			at += size
		}
		problem.Place = placeAt(name, 1+bytes.Count(data[:at], []byte("\n")))
		problem.Why, problem.Remedy = "is not UTF-8", "save the file as UTF-8"
	default:
		return true
	}
	found.add(problem)
	return false
}

func reportEmpty(name string, found *report) {
	found.add(core.Problem{Path: "policy", Place: name, Why: "is empty: it would limit nothing",
		Remedy: `write at least rules; "enabled: false" switches a policy off`})
}

// placeAt names a line of a document; a document without a name has no places.
func placeAt(name string, line int) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", name, line)
}

// lines turns growing offsets into line numbers.
type lines struct {
	data []byte
	at   int // everything before it has been counted
	line int // breaks before at
}

func (l *lines) of(offset int) int {
	offset = min(max(offset, 0), len(l.data))
	if offset < l.at {
		l.at, l.line = 0, 0
	}
	l.line += bytes.Count(l.data[l.at:offset], []byte("\n"))
	l.at = offset
	return l.line + 1
}
