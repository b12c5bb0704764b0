// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOneTarget: a command has one target, and flags without effect are errors.
func TestOneTarget(t *testing.T) {
	for args, want := range map[string]string{
		"--bridge http://127.0.0.1:1 --admin 127.0.0.1:2":        "each names a target; keep one",
		"--bridge http://127.0.0.1:1 --redis redis://127.0.0.1":  "each names a target; keep one",
		"--bridge-token-file x":                                  "need --bridge",
		"--policy-file x":                                        "need --redis",
		"--redis-password-file x":                                "need --redis",
		"--bridge bridge.example":                                "is no address of a bridge",
		"--bridge http://user:hush@bridge.example":               "is no address of a bridge",
		"--bridge unix:":                                         "is no address of a bridge",
		"--bridge http://127.0.0.1:1/path":                       "is no address of a bridge",
		"--bridge https://127.0.0.1:1 --bridge-ca /nowhere":      "--bridge-ca",
		"--bridge http://127.0.0.1:1 --bridge-token-file /no":    "--bridge-token-file",
		"--bridge http://127.0.0.1:1":                            "is it running, with --admin-listen",
		"--redis redis://127.0.0.1:1 --policy-file /nowhere.yml": "nowhere",
	} {
		_, _, err := run(t, "", append([]string{"rules"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// TestTheTokenStays: the token of operators is in the environment or a file, and is not sent to a
// server to which the bridge redirects.
func TestTheTokenStays(t *testing.T) {
	var other []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { other = append(other, r.Header.Get("Authorization")) }))
	defer elsewhere.Close()
	var sent []string
	bridge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent = append(sent, r.Header.Get("Authorization"))
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	}))
	defer bridge.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("of-the-file-0123\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(adminTokenVariable, "of-the-variable")
	for _, args := range [][]string{nil, {"--bridge-token-file", file}} {
		if _, _, err := run(t, "", append([]string{"rules", "--bridge", bridge.URL}, args...)...); err == nil || !strings.Contains(err.Error(), "307") {
			t.Errorf("a redirect: %v", err)
		}
	}
	if strings.Join(sent, " ") != "Bearer of-the-variable Bearer of-the-file-0123" || other != nil {
		t.Errorf("sent %q, elsewhere %q", sent, other)
	}
}

// TestOperatorsOfABridge: the flags for operators are checked before anything is opened.
func TestOperatorsOfABridge(t *testing.T) {
	for args, want := range map[string]string{
		"--admin-listen 0.0.0.0:0":                                      "give --admin-token-file",
		"--admin-listen nowhere":                                        "--admin-listen: ",
		"--admin-token short":                                           "it can be guessed",
		"--admin-token 0123456789abcdef --token 0123456789abcdef":       "the same as --token",
		"--admin-token 0123456789abcdef --admin-token-file /nowhere":    "keep one of them",
		"--admin-token-file /nowhere --admin-listen unix:/nowhere/sock": "--admin-token-file",
	} {
		_, _, err := run(t, "", append([]string{"bridge", "--listen", "127.0.0.1:0"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
