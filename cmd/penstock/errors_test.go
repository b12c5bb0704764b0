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

// TestErrorsNamePlaceAndRemedy: errors name the flag or the file, and what to write.
func TestErrorsNamePlaceAndRemedy(t *testing.T) {
	t.Setenv(tokenVariable, "0123456789abcdef")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	table := filepath.Join(t.TempDir(), "clients.csv")
	if err := os.WriteFile(table, []byte("user_id,custom_limit_per_hour\nann,many\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"region":                                         "--name is missing; write",
		"region --name eu":                               "--policy is missing; write",
		"regions":                                        "--agent is missing; write",
		"regions --agent 127.0.0.1:1":                    "127.0.0.1:1: connect: connection refused; is penstock region running, with --admin-listen 127.0.0.1:1?",
		"regions --agent unix:/nowhere/sock":             "/nowhere/sock: connect: no such file or directory; is penstock region running",
		"regions --agent a%zz":                           `--agent "a%zz" is no address; write host:port`,
		"regions --agent " + other.URL[7:]:               other.URL[7:] + " answered 404 Not Found, so it is not the agent of a region; write",
		"key rotate acme --overlap soon":                 `penstock: --overlap "soon" is not one whole number`,
		"client block user:x --for soon":                 `penstock: --for "soon" is not one whole number`,
		"control import-clients " + table:                table + `: line 2: custom_limit_per_hour "many" is no whole number: write 500`,
		"control import-clients /nowhere.csv":            "/nowhere.csv",
		"control policy publish --name shop --share ten": `--share "ten" is no share: write 10%`,
		"control policy publish --name shop --share 10% --denials-max=0.05": `--denials-max "0.05" is no share: write 10%`,
		"control policy publish --share 10% --promote-after soon":           `--promote-after "soon" is not one whole number`,
		"control policy put policy.txt":                                     "the extension must be .yaml",
		"hash-key x --stdin":                                                "send the key on it",
	} {
		_, _, err := run(t, "", strings.Fields(args)...)
		if err == nil || !strings.Contains("penstock: "+err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
