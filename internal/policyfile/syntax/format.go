// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

const (
	// SizeMax is the size of the largest document, in bytes. SizeMax suffices for 10,000 rules with
	// several fields each.
	SizeMax = 4 << 20
	// depthMax is the greatest nesting depth of lists and blocks. The deepest valid policy has 7
	// levels.
	depthMax = 32
	// keysMax is the greatest number of keys in one block. The widest block, match.header, has far
	// fewer. The parsers' time grows with the square of this number.
	keysMax = 1000
)

// Format is the syntax of a document.
type Format uint8

// The formats.
const (
	YAML Format = iota
	TOML
	JSON
)

// FormatOf returns the format for a file's extension: .yaml, .yml, .toml or .json.
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

// Tree reads a document that is not a policy but has one of the same formats, such as a list of API
// keys. The document is read as strictly as a policy, and with the same bounds. The argument called
// name appears in the positions of problems. The node is nil for an empty document. The error is
// [policy.Problems].
func Tree(name string, format Format, data []byte) (*Node, error) {
	found := &Report{}
	tree, err := Parse(name, format, data, found)
	if err == nil {
		err = found.Err()
	}
	if err != nil {
		return nil, err
	}
	return tree, nil
}

// Parse parses a document into nodes. Parse returns an error if nothing can be read. Other problems
// are added to the report.
func Parse(name string, format Format, data []byte, found *Report) (*Node, error) {
	switch format {
	case YAML:
		return parseText(name, data, found, parseYAML)
	case TOML:
		return parseText(name, data, found, parseTOML)
	case JSON:
		return parseText(name, data, found, ParseJSON)
	}
	return nil, fmt.Errorf("format %d is unknown", format)
}

// parseText checks that the text is readable and parses it with the function read.
func parseText(name string, data []byte, found *Report, read func(string, []byte, *Report) *Node) (*Node, error) {
	// a byte order mark, as some editors write it
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !checkText(name, data, found) {
		return nil, found.Err()
	}
	return read(name, data, found), nil
}

// checkText reports text that no format allows.
func checkText(name string, data []byte, found *Report) bool {
	problem := policy.Problem{Path: "policy", Place: name}
	switch {
	case len(data) > SizeMax:
		problem.Why, problem.Remedy = fmt.Sprintf("is larger than %d bytes", SizeMax), "use fewer or shorter rules"
	case len(bytes.TrimSpace(data)) == 0:
		ReportEmpty(name, found)
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
	found.Add(problem)
	return false
}

// ReportEmpty reports a document without content.
func ReportEmpty(name string, found *Report) {
	found.Add(policy.Problem{Path: "policy", Place: name, Why: "is empty: it would limit nothing",
		Remedy: `write at least rules; "enabled: false" switches a policy off`})
}

// placeAt returns the position of a line; "" for a document without a name.
func placeAt(name string, line int) string {
	if name == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", name, line)
}

// lines converts ascending offsets to line numbers.
type lines struct {
	data []byte
	at   int // line breaks before this offset have been counted
	line int // line breaks before at
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
