// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestControlSaysWhatIsMissing tests that contradicting or missing flags are errors with a remedy,
// before anything starts.
func TestControlSaysWhatIsMissing(t *testing.T) {
	t.Setenv(databaseVariable, "")
	t.Setenv(tokenVariable, "")
	const database, redis = "--database=postgres://nobody@localhost:1/x", "--redis=redis://localhost:1"
	for _, c := range []struct {
		want string
		args []string
	}{
		{"no database is named", []string{"control", "serve", redis}},
		{"no Redis is named", []string{"control", "serve", database}},
		{"\"PENSTOCK_NOT_SET\" is not set", []string{"control", "serve", "--database=postgres://x:{env.PENSTOCK_NOT_SET}@h/x", redis}},
		{"keep one", []string{"control", "serve", database, redis, "--region=us=redis://localhost:1"}},
		{"is given twice", []string{"control", "serve", database, "--region=us=redis://localhost:1", "--region=us=redis://localhost:2"}},
		{`--region "US" is not NAME=`, []string{"control", "serve", database, "--region=US=redis://x:hunter2@localhost:1"}},
		{"--region us: ", []string{"control", "serve", database, "--region=us=http://x:hunter2@localhost:1"}},
		{"the database's address is not valid", []string{"control", "serve", "--database=postgres://x:hunter2@h:port/x", redis, "--listen=127.0.0.1:0"}},
		{"other machines can reach", []string{"control", "serve", database, redis, "--listen=0.0.0.0:0"}},
		{"belong together", []string{"control", "serve", database, redis, "--tls-cert=x"}},
		{"is not an octal mode", []string{"control", "serve", database, redis, "--socket-mode=9"}},
		{"is not a number of days from 31", []string{"control", "serve", database, redis, "--keep-events=30d"}},
		{"is not a number of days from 31", []string{"control", "archive", "run", database, "--archive=s3://x", "--keep-usage=7y"}},
		{"write s3://BUCKET/PREFIX", []string{"control", "serve", database, redis, "--archive=/backup"}},
		{"go with --archive", []string{"control", "serve", database, redis, "--archive-region=x"}},
		{"no archive is named", []string{"control", "archive", "run", database}},
		{"is no network", []string{"control", "serve", database, redis, "--webhook-secret=x", "--webhook-allow=10.1.2"}},
		{"goes with --webhook-secret", []string{"control", "serve", database, redis, "--webhook-allow=10.1.0.0/16"}},
		{"make one with", []string{"control", "serve", database, redis, "--webhook-secret=/nowhere/secret"}},
		{"go with --oidc-issuer", []string{"control", "serve", database, redis, "--oidc-role=admin=x"}},
		{"write --oidc-audience NAME", []string{"control", "serve", database, redis, "--oidc-issuer=https://id.example"}},
		{"gives nobody a role", []string{"control", "serve", database, redis, "--oidc-issuer=https://id.example", "--oidc-audience=x"}},
		{"has no group", []string{"control", "serve", database, redis, "--oidc-issuer=https://id.example", "--oidc-audience=x", "--oidc-role=admin"}},
		{"is no role of people", []string{"control", "serve", database, redis, "--oidc-issuer=https://id.example", "--oidc-audience=x", "--oidc-role=node=x"}},
		{"must not be empty", []string{"control", "serve", database, redis, "--oidc-issuer=https://id.example", "--oidc-audience=x", "--oidc-role=admin=x", "--oidc-name-claim="}},
		{"is not encrypted", []string{"control", "serve", database, redis, "--oidc-issuer=http://id.example", "--oidc-audience=x", "--oidc-role=admin=x"}},
		{`--for "soon"`, []string{"control", "token", database, "--for=soon"}},
		{"goes with --control", []string{"client", "show", "user:x", "--control-token-file=x"}},
		{"keep one", []string{"client", "show", "user:x", "--control=http://localhost:1", redis}},
		{"--actor has no effect", []string{"client", "block", "user:x", "--control=http://localhost:1", "--actor=me", "--reason=x"}},
		{"needs a token", []string{"client", "show", "user:x", "--control=http://localhost:1"}},
	} {
		cmd := newRoot()
		cmd.SetArgs(c.args)
		err := cmd.Execute()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v; want %q", c.args, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: the error shows the password: %v", c.args, err)
		}
	}
}

// TestTheFirstTokenIsForOneUser tests that the file of the first token contains only the token, and
// that other users cannot read it even if the file existed before.
func TestTheFirstTokenIsForOneUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 1000)), 0o666); err != nil {
		t.Fatal(err)
	}
	f := &controlFlags{tokenFile: path}
	if err := f.showToken("pst_secret", time.Now()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "pst_secret\n" {
		t.Errorf("the file has %q, %v", text, err)
	}
}
