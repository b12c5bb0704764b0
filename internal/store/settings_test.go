// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/store"
	"github.com/penstock/penstock/internal/store/redisstore"
)

var spelling = store.Spelling{Redis: "type: redis", URL: "url: redis://localhost:6379", Types: "type: memory, or type: redis"}

// TestSettingsAreChecked: a setting that is invalid, or that the type ignores, is an error.
func TestSettingsAreChecked(t *testing.T) {
	on := true
	for _, c := range []struct {
		settings store.Settings
		want     string
	}{
		{store.Settings{}, ""},
		{store.Settings{Type: store.TypeMemory, CountersMax: 9, BytesMax: 1 << 30}, ""},
		{store.Settings{Type: store.TypeRedis, Redis: redisstore.Options{URL: "redis://h"}}, ""},
		{store.Settings{Type: store.TypeRedis, Redis: redisstore.Options{Addrs: []string{"h:1"}}, RememberDenials: &on}, ""},
		{store.Settings{RememberDenials: &on}, "the other fields need type: redis"},
		{store.Settings{Redis: redisstore.Options{URL: "redis://h"}}, "the other fields need type: redis"},
		{store.Settings{BytesMax: 5}, "bytes_max 5 is too little"},
		{store.Settings{CountersMax: -1}, "counters_max -1 is negative"},
		{store.Settings{Type: store.TypeRedis}, "url is missing; write url: redis://localhost:6379"},
		{store.Settings{Type: store.TypeRedis, BytesMax: 1, Redis: redisstore.Options{URL: "redis://h"}}, "belong to store memory"},
		{store.Settings{Type: "redis://:secret@h"}, "write type: memory, or type: redis"},
	} {
		err := errors.Join(c.settings.Check(spelling)...)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.settings, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

// TestSettingsAreFilled: Fill replaces the placeholders in every text. It escapes only the values
// in the user and the password of the URL, and leaves the configuration's own lists unchanged.
func TestSettingsAreFilled(t *testing.T) {
	addrs := []string{"$:1"}
	s := store.Settings{Type: store.TypeRedis, Redis: redisstore.Options{URL: "redis://$:$@$/0", Mode: "$", Addrs: addrs,
		AddrsBefore: []string{"$"}, Master: "$", Username: "$", Password: "$", PasswordFile: "$", SentinelUsername: "$",
		SentinelPassword: "$", SentinelPasswordFile: "$", CAFile: "$", CertFile: "$", KeyFile: "$", ServerName: "$"}}
	replace := func(text string, escape func(string) string) (string, error) {
		value := "a b@c"
		if escape != nil {
			value = escape(value)
		}
		return strings.ReplaceAll(text, "$", value), nil
	}
	if problems := s.Fill(replace); problems != nil {
		t.Fatal(problems)
	}
	const v = "a b@c"
	r := &s.Redis
	got := []string{r.URL, r.Addrs[0], r.AddrsBefore[0], r.Mode, r.Master, r.Username, r.Password, r.PasswordFile, r.SentinelUsername,
		r.SentinelPassword, r.SentinelPasswordFile, r.CAFile, r.CertFile, r.KeyFile, r.ServerName, addrs[0]}
	want := []string{"redis://a%20b%40c:a%20b%40c@a b@c/0", v + ":1", v, v, v, v, v, v, v, v, v, v, v, v, v, "$:1"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got %q, want %q", got, want)
	}
	failing := func(string, func(string) string) (string, error) { return "", errors.New("no value") }
	if problems := errors.Join(s.Fill(failing)...); problems == nil || !strings.Contains(problems.Error(), "store redis: password: no value") {
		t.Errorf("got %v", problems)
	}
}

// TestKeysOfSettings: a different setting, or a different content of a file, gives a different key.
func TestKeysOfSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "password")
	key := func(password string) string {
		t.Helper()
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
		s := store.Settings{Type: store.TypeRedis, Redis: redisstore.Options{URL: "redis://h", PasswordFile: file}}
		k, err := s.Key()
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if first, again := key("a"), key("a"); first != again || first == key("b") {
		t.Error("the key does not follow the contents of the password file")
	}
	one, err := (&store.Settings{CountersMax: 1}).Key()
	other, errOther := (&store.Settings{CountersMax: 2}).Key()
	if one == other || err != nil || errOther != nil {
		t.Errorf("%q, %q: %v, %v", one, other, err, errOther)
	}
}
