// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"strings"
	"testing"
)

// TestInvalidStories tests that an invalid story is not skipped, but is an error that says what is
// wrong or names the line.
func TestInvalidStories(t *testing.T) {
	for text, want := range map[string]string{
		"take a 1 -> granted 1":                                    "before the first story",
		"story s\nlimit a 1/fortnight":                             "line 2",
		"story s\npenalty p 1h":                                    "from THRESHOLD times",
		"story s\npenalty p 1h from 1 times":                       "from THRESHOLD times",
		"story s\npenalty p 1h from 1 times 1 max":                 "max what",
		"story s\npenalty p 1h from 1 times x":                     "line 2",
		"story s\nzone Europe/Atlantis":                            "line 2",
		"story s\ncaller 1d":                                       "write + or - and a span",
		"story s\nrepeat 2\nat +1s":                                "no end",
		"story s\nrepeat 0\nend":                                   "line 2",
		"story s\nrepeat 2\nrepeat 2\nend\nend":                    "not within another",
		"story s\nlimit a 1/1m\ntake a 1 for p -> passes":          "not in the call",
		"story s\nlimit a 1/1m\nupto a 1 1 1 1 age 1 -> passes":    "write whole numbers",
		"story s\nlimit a 1/1m\nupto a 1 1 1 age 1s -> passes":     "takes 4 numbers",
		"story s\nlimit a 1/1m\nreset a 1 -> granted 1":            "takes 0 numbers",
		"story s\npenalty p 1h from 1 times 1\ntake p 1 -> passes": "takes 0 numbers",
		"story s\nlimit a 1/1m\ntake a 1 -> fresh":                 "line 3",
		"story s\nlimit a 1/1m\ntake a 1":                          "no answer",
	} {
		if _, err := ParseStories(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: the error is %v, want one that says %q", text, err, want)
		}
	}
}
