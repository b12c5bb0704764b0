// SPDX-License-Identifier: Apache-2.0

package front

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock/penstock/core/response"
	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestAChangedPasswordIsAnotherStore tests that configurations with equal settings share a store as
// long as the password file stays the same. After the file has changed, the next configuration gets
// another store, which uses the new password.
func TestAChangedPasswordIsAnotherStore(t *testing.T) {
	redis := redistest.Start(t)
	file := filepath.Join(t.TempDir(), "password")
	change := func(password string) {
		t.Helper()
		err := os.WriteFile(file, []byte(password+"\n"), 0o600)
		if err == nil {
			err = redis.Client().Do(context.Background(), "acl", "setuser", "module", "on", "resetpass", ">"+password, "~*", "&*", "+@all").Err()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	settings := "name: shop\non_error: deny\nrules: [{name: all, limit: 9/31d}]\nstore: {type: redis, url: \"" + redis.URL() +
		"\", username: module, password_file: " + file + ", timeout: 10s}\n"
	p := NewProcess(slog.New(slog.DiscardHandler))
	open := func() *Front {
		t.Helper()
		f := openedIn(t, p, settings)
		t.Cleanup(func() {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
		return f
	}
	counts := func(f *Front, remaining string) {
		t.Helper()
		if v, fields, _ := ask(t, f, request("/")); v != Continue || fields[response.FieldRemaining] != remaining {
			t.Errorf("verdict %d, %v, want %s to remain", v, fields, remaining)
		}
	}
	change("one")
	first, same := open(), open()
	counts(first, "8")
	change("two")
	other := open()
	counts(other, "7")
	counts(same, "6") // its connection stays logged in
	if first.store != same.store || first.store == other.store {
		t.Errorf("the stores are %p and %p with the same password, and %p with another one", first.store, same.store, other.store)
	}
}

// TestSecretsInURLs tests that the value of a variable is escaped in the user and the password of a
// URL, and is not escaped in any other text.
func TestSecretsInURLs(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "a b@c/d:e#f")
	s := Store{Type: store.TypeRedis, URL: "redis://user:{env.PENSTOCK_TEST_SECRET}@host:6379/0",
		Password: "{env.PENSTOCK_TEST_SECRET}", CA: "/{env.PENSTOCK_TEST_SECRET}", ServerName: "{env.PENSTOCK_TEST_SECRET}"}
	o, err := s.options()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ field, got, want string }{
		{"url", o.Redis.URL, "redis://user:a%20b%40c%2Fd%3Ae%23f@host:6379/0"},
		{"password", o.Redis.Password, "a b@c/d:e#f"},
		{"ca", o.Redis.CAFile, "/a b@c/d:e#f"},
		{"server_name", o.Redis.ServerName, "a b@c/d:e#f"},
	} {
		if c.got != c.want {
			t.Errorf("%s is %q, want %q", c.field, c.got, c.want)
		}
	}
}
