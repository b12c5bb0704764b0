// SPDX-License-Identifier: Apache-2.0

package front

import (
	"testing"

	"github.com/penstock/penstock/internal/store"
)

// TestSecretsInURLs: the value of a variable is escaped in the user and the password of a URL, and
// taken as it is in every other text.
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
