// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"net/url"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
)

// TestSentPathIsWhatTheUpstreamGets: the rules see the same path that Caddy sends to the upstream,
// for every byte that a client may send in it.
func TestSentPathIsWhatTheUpstreamGets(t *testing.T) {
	seen := 0
	for c := range 256 {
		for _, target := range []string{"/", "/%2Fu", "//a", "/a%3Bb", "/x/..%2f", "/%"} {
			u, err := url.ParseRequestURI(target + string([]byte{byte(c)}) + "@h/admin%2fx")
			if err != nil || u.RawQuery != "" {
				continue
			}
			seen++
			if got, want := sentPath(u), u.EscapedPath(); got != want {
				t.Errorf("%q is seen as %q, and sent on as %q", u.RawPath, got, want)
			}
		}
	}
	if seen < 1000 {
		t.Errorf("only %d targets were parsed", seen)
	}
	long, err := url.ParseRequestURI("/" + strings.Repeat(`%2F"`, policy.PathBytesMax))
	if got := sentPath(long); err != nil || len(got) <= policy.PathBytesMax || got != long.Path {
		t.Errorf("a path of %d bytes is seen as one of %d bytes: %v", len(long.RawPath), len(got), err)
	}
}
