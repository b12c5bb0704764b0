// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestModuleMergesFields tests that the module merges its fields about limits with the upstream's
// fields, and that a response has each field once. This holds whether or not the charge depends on
// the response.
func TestModuleMergesFields(t *testing.T) {
	t.Parallel()
	for what, words := range map[string]string{"charged at once": "", "charged by the response": ", count_if: {status: 200}"} {
		_, sites := startModule(t, module(t), http.HandlerFunc(serveOwnLimit),
			"name: shop\non_error: deny\nrules: [{name: ours, limit: 4/31d"+words+"}]\n")
		both := []string{`"ours";q=4;w=2678400, "theirs";q=10;w=60`}
		for n, c := range []struct {
			path            string
			limit, left, of []string
		}{
			{"/merged", []string{"10"}, []string{"2"}, both}, // the upstream's limit leaves less: it is shown
			{"/merged", []string{"4"}, []string{"2"}, both},
			{"/", []string{"4"}, []string{"1"}, []string{`"ours";q=4;w=2678400`}},
			{"/merged", []string{"4"}, []string{"0"}, both},
		} {
			a := sites[0].get(t, c.path)
			want := [][]string{c.limit, c.left, c.of}
			got := [][]string{a.header["X-Ratelimit-Limit"], a.header["X-Ratelimit-Remaining"], a.header["Ratelimit-Policy"]}
			if diff := cmp.Diff(want, got); diff != "" || a.status != http.StatusOK || len(a.header["Ratelimit"]) != 1 {
				t.Errorf("%s, request %d: status %d, %v (-want +got):\n%s", what, n+1, a.status, a.header["Ratelimit"], diff)
			}
		}
	}
}
