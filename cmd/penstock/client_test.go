// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestNamesThatCannotBeSent: a name that is not UTF-8 is an error. JSON would change such a name,
// so a different client would be blocked.
func TestNamesThatCannotBeSent(t *testing.T) {
	asked := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = w.Write([]byte("{}"))
	}))
	defer server.Close()
	admin := "--admin=" + strings.TrimPrefix(server.URL, "http://")
	for _, args := range [][]string{
		{"client", "block", "header.x-user:a\xff"},
		{"key", "revoke", "a\xff"},
		{"key", "create", "--client", "user:a\xff", "--name", "a"},
	} {
		_, _, err := run(t, "", append(args, "--reason=x", "--actor=y", admin)...)
		if err == nil || !strings.Contains(err.Error(), "not UTF-8") {
			t.Errorf("%q: %v", args, err)
		}
	}
	if asked > 0 {
		t.Errorf("%d requests were sent", asked)
	}
}
