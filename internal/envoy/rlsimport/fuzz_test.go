// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"errors"
	"os"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// FuzzImport: any configuration becomes a valid policy, or causes problems that describe what is
// wrong.
func FuzzImport(f *testing.F) {
	text, err := os.ReadFile("testdata/edge.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte("domain: d\ndescriptors: [{key: 'a\\n', value: \"\\u0000*\", rate_limit: {unit: year, requests_per_unit: 0}}]"))
	f.Add([]byte("domain: d\ndescriptors:\n- &a {key: a, value: 'x*y', share_threshold: yes, rate_limit: &l {unit: day, requests_per_unit: 0x1_0}}\n" +
		"- {<<: [*a, {key: !!str b}], quota_mode: On}\n- {key: c, rate_limit: {<<: *l, unit: hour}}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 4096 {
			return
		}
		_, _, err := Import("p", []File{{Name: "f", Data: text}, {Name: "g", Data: text}}, nil)
		if problems := (policy.Problems)(nil); err != nil && !errors.As(err, &problems) {
			t.Errorf("the error is a %T: %v", err, err)
		}
		out, _, err := Import("p", []File{{Name: "f", Data: text}}, nil)
		if err == nil && len(out) == 0 {
			t.Error("no policy and no error")
		}
	})
}
