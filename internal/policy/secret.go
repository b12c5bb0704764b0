// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// environment returns the name of the environment variable that a text stands for: NAME of {env.NAME}.
func environment(text string) (name string, ok bool) {
	name, ok = strings.CutPrefix(text, "{env.")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}")
	return name, ok && name != ""
}

// Secret returns the secret that a word of the policy says: the value of an environment variable for {env.NAME},
// otherwise the word itself. The error says that the variable is not set, and never what it holds.
func Secret(word string) (string, error) {
	name, ok := environment(word)
	if !ok {
		return word, nil
	}
	value := os.Getenv(name)
	if value == "" {
		return "", fmt.Errorf("environment variable %q is not set: set it for the process that reads the policy", name)
	}
	return value, nil
}

// File returns the path of a file that the policy names. One that is not absolute is beside the policy's own file; in a
// document that was not read from a file it stays as it is.
func (d *Document) File(name string) string {
	if name == "" || d.folder == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(d.folder, name)
}
