// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	fencedBlock  = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	inlineCode   = regexp.MustCompile("`[^`\n]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading      = regexp.MustCompile(`(?m)^#{1,6} +(.+?)\s*$`)
	notInAnchor  = regexp.MustCompile(`[^\p{L}\p{N}\p{M}_ -]`)
)

// anchors returns the fragments of a document's headings, by GitHub's rules: lower case,
// punctuation removed, spaces replaced by hyphens, and -1, -2 and so on appended to repeated
// headings.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(fencedBlock.ReplaceAllString(text, ""), -1) {
		title := regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(match[1], "$1")
		anchor := strings.ReplaceAll(notInAnchor.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		for n, candidate := 0, anchor; ; n++ {
			if !all[candidate] {
				all[candidate] = true
				break
			}
			candidate = anchor + "-" + string(rune('1'+n))
		}
	}
	return all
}

// TestLinksOfDocumentsResolve checks that each relative link of each document names a file of the
// repository, and that a fragment is a heading of that document.
func TestLinksOfDocumentsResolve(t *testing.T) {
	checked := 0
	for _, path := range tracked(t) {
		if filepath.Ext(path) != ".md" {
			continue
		}
		text := readText(t, path)
		prose := inlineCode.ReplaceAllString(fencedBlock.ReplaceAllString(text, ""), "")
		for _, match := range markdownLink.FindAllStringSubmatch(prose, -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			checked++
			file := path
			if target != "" {
				file = filepath.Join(filepath.Dir(path), filepath.FromSlash(target))
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, match[1])
				continue
			}
			if fragment != "" && !anchors(readText(t, file))[fragment] {
				t.Errorf("%s links to %s: %s has no heading #%s", path, match[1], file, fragment)
			}
		}
	}
	if checked < 100 {
		t.Errorf("only %d links were found", checked)
	}
}

// TestEveryDocumentIsLinkedFromTheReadme checks that a reader of the README finds every page of
// docs.
func TestEveryDocumentIsLinkedFromTheReadme(t *testing.T) {
	readme := readText(t, "README.md")
	for _, path := range tracked(t) {
		path = filepath.ToSlash(path)
		if strings.HasPrefix(path, "docs/") && filepath.Ext(path) == ".md" && !strings.Contains(readme, "]("+path+")") {
			t.Errorf("README.md has no link to %s", path)
		}
	}
}

func readText(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
