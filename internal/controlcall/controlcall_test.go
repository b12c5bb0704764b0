// SPDX-License-Identifier: Apache-2.0

package controlcall

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTheTokenIsReadBeforeEachCall tests that the file of a token may be replaced, and which texts
// are not accepted as tokens.
func TestTheTokenIsReadBeforeEachCall(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	to := Target{URL: "http://127.0.0.1:7070/", Token: TokenFile(file)}
	for text, want := range map[string]string{"pst_a\n": "Bearer pst_a", "pst_b": "Bearer pst_b", "a\nb\n": "has no token", "": "has no token"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := to.Request(t.Context(), "GET", "/v1/x", nil)
		if err != nil {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v", text, err)
			}
			continue
		}
		if got := r.Header.Get("Authorization"); got != want || r.URL.String() != "http://127.0.0.1:7070/v1/x" {
			t.Errorf("%q: %q to %s", text, got, r.URL)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if _, err := to.Request(t.Context(), "GET", "/v1/x", nil); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("without a file: %v", err)
	}
}

// TestURLs tests which URLs are accepted, and which of them show the token to the network.
func TestURLs(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ valid, exposed bool }{
		"http://127.0.0.1:7070":     {true, false},
		"http://[::1]:7070":         {true, false},
		"http://localhost":          {true, false},
		"http://control:7070":       {true, true},
		"http://192.0.2.1":          {true, true},
		"https://control:7070/base": {true, false},
		"control:7070":              {false, false},
		"http://me:secret@control":  {false, true},
		"https://control?x":         {false, false},
		"https://control?":          {false, false},
		"https://control#x":         {false, false},
		"https://control/#":         {false, false},
		"":                          {false, false},
	} {
		to := Target{URL: text}
		if err := to.Check(); (err == nil) != want.valid || to.IsExposed() != want.exposed {
			t.Errorf("%q: %v, exposed %t", text, err, to.IsExposed())
		}
	}
}
