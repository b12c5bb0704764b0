// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Environment returns the name of the environment variable in a text like {env.NAME}.
func Environment(text string) (name string, ok bool) {
	name, ok = strings.CutPrefix(text, "{env.")
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(name, "}")
	return name, ok && name != ""
}

// Secret returns the secret in a field of the policy: for {env.NAME} the value of the environment
// variable, otherwise the text itself. The error reports that the variable is not set, and never
// contains a secret.
func Secret(word string) (string, error) {
	name, ok := Environment(word)
	if !ok {
		return word, nil
	}
	value := os.Getenv(name)
	if value == "" {
		return "", fmt.Errorf("environment variable %q is not set: set it for the process that reads the policy", name)
	}
	return value, nil
}

// File returns the path of a file that the policy names. A relative path is relative to the folder
// of the policy file. In a document that was not read from a file, a relative path is returned
// unchanged.
func (d *Document) File(name string) string {
	if name == "" || d.folder == "" || filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(d.folder, name)
}
