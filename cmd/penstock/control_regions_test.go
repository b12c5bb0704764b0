// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

// TestRegionsHideTheirPasswords: the error for an invalid value of --region does not contain the
// password of the address.
func TestRegionsHideTheirPasswords(t *testing.T) {
	for text, shown := range map[string]string{
		"redis://user:s3=cret@host:6379":       `"redis"`,
		"redis://:s3=cret@host:6379":           `"redis"`,
		"Eu_West=redis://user:s3cret@host":     `"Eu_West"`,
		"host:6379?password=s3cret":            `"host"`,
		"eu=":                                  `"eu"`,
		"user@host=redis://user:s3cret@host:1": `"user"`,
	} {
		_, err := parseRegions("region", []string{text})
		if err == nil || strings.Contains(err.Error(), "s3") || !strings.Contains(err.Error(), "--region "+shown) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
