// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

var (
	// packageLine is a line of the list of packages in the page on the architecture. It begins with
	// a folder. The folder of an indented line is inside the folder of the last line that is not
	// indented.
	packageLine = regexp.MustCompile(`(?m)^( *)([a-z0-9-]+/.*)$`)
	folderName  = regexp.MustCompile(`(?:[a-z0-9-]+/)+(?:[ ,;)]|$)`)
)

// TestArchitectureNamesPackages tests that the page on the architecture lists each folder that
// walls_test.go lists, and only folders that exist. The folders of an indented line are inside the
// last folder that is not indented. The second and further folders of any line may be inside that
// folder too.
func TestArchitectureNamesPackages(t *testing.T) {
	const page = "docs/explanation/architecture.md"
	_, list, _ := strings.Cut(readText(t, page), "## The packages")
	_, list, _ = strings.Cut(list, "```text\n")
	list, _, _ = strings.Cut(list, "```")
	named, outer := map[string]bool{}, ""
	for _, line := range packageLine.FindAllStringSubmatch(list, -1) {
		inner := ""
		if line[1] != "" {
			inner = outer
		}
		for i, name := range folderName.FindAllString(line[2], -1) {
			name = strings.TrimRight(name, "/ ,;)")
			folder := path.Join(inner, name)
			if i == 0 && line[1] == "" {
				outer = folder
			}
			if i > 0 && isFolder(path.Join(outer, name)) {
				folder = path.Join(outer, name)
			}
			if !isFolder(folder) {
				t.Errorf("%s lists %q, which does not exist", page, folder)
			}
			named[folder] = true
		}
	}
	for folder := range imports {
		if !named[folder] && !strings.HasPrefix(folder, "internal/test/") {
			t.Errorf("%s does not list %q", page, folder)
		}
	}
}

func isFolder(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}
