// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAddress(t *testing.T) {
	for _, test := range []struct{ url, want, user, password string }{
		{url: "redis://localhost", want: "redis://localhost:6379/0"},
		{url: "redis://localhost:6380/3", want: "redis://localhost:6380/3"},
		{url: "rediss://me:p%40ss@cache.example:1/", want: "rediss://cache.example:1/0", user: "me", password: "p@ss"},
		{url: "redis://:secret@[::1]:6379/0", want: "redis://[::1]:6379/0", password: "secret"},
		{url: "unix:///run/redis.sock", want: "unix:///run/redis.sock?db=0"},
		{url: "unix://me:secret@/run/redis.sock?db=2", want: "unix:///run/redis.sock?db=2", user: "me", password: "secret"},
	} {
		a, err := parseAddress(test.url, redisPort)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		if a.String() != test.want || a.username != test.user || a.password != test.password {
			t.Errorf("%s: got %s, user %q, password %q", test.url, a, a.username, a.password)
		}
	}
}

func TestAddressRejected(t *testing.T) {
	for _, test := range []struct{ url, want string }{
		{"", "url is missing"},
		{"localhost:6379", "scheme"},
		{"http://localhost", `scheme "http"`},
		{"redis://", "names no host"},
		{"redis:///0", "names no host"},
		{"redis://host:0", `port "0"`},
		{"redis://host:70000", `port "70000"`},
		{"redis://host/zero", `database "zero"`},
		{"redis://host/-1", `database "-1"`},
		{"redis://host/1/2", `database "1/2"`},
		{"redis://host/0?max_retries=3", "no parameters"},
		{"unix://run/redis.sock", "three slashes"},
		{"unix:///run/redis.sock?pool=3", `parameter "pool"`},
		{"redis://:half#secret@host/0", "percent-encode"},
		{"redis://me:sec/ret@host:6379/0", "percent-encode"},
		{"redis://me:sec%zzret@host:6379/0", "percent-encode"},
	} {
		_, err := parseAddress(test.url, redisPort)
		if err == nil {
			t.Errorf("%q was accepted", test.url)
			continue
		}
		if !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: error %q does not contain %q", test.url, err, test.want)
		}
		for _, secret := range []string{"secret", "sec", "half"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q: error %q shows a part of the password", test.url, err)
			}
		}
	}
}

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOptionsDefaults(t *testing.T) {
	o := Options{URL: "redis://host", PasswordFile: write(t, "secret\r\n"), Username: "me"}
	s, err := o.settings()
	if err != nil {
		t.Fatal(err)
	}
	if s.timeout != 50*time.Millisecond || s.queueMax != 16384 || s.lanes != LanesDefault || s.tls != nil {
		t.Errorf("defaults: timeout %s, queue %d, lanes %d, tls %v", s.timeout, s.queueMax, s.lanes, s.tls)
	}
	if s.username != "me" || s.password != "secret" {
		t.Errorf("credentials: %q, %q", s.username, s.password)
	}
}

func TestOptionsOverrideTheURL(t *testing.T) {
	o := Options{URL: "rediss://me:old@host", Username: "you", Password: "new", ServerName: "name"}
	s, err := o.settings()
	if err != nil {
		t.Fatal(err)
	}
	if s.username != "you" || s.password != "new" || s.tls.ServerName != "name" || s.tls.InsecureSkipVerify {
		t.Errorf("got user %q, password %q, tls %+v", s.username, s.password, s.tls)
	}
}

func TestOptionsRejected(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    []string
	}{
		{"everything at once", Options{Timeout: time.Minute, QueueMax: -1, Lanes: 65},
			[]string{"url is missing", "timeout 1m0s is out of bounds: it must be between 1ms and 10s",
				"queue_max -1 is out of bounds", "lanes 65 is out of bounds"}},
		{"two passwords", Options{URL: "redis://host", Password: "a", PasswordFile: "b"}, []string{"keep one of them"}},
		{"no such file", Options{URL: "redis://host", PasswordFile: "/no/such"}, []string{"password_file", "/no/such"}},
		{"empty file", Options{URL: "redis://host", PasswordFile: write(t, "\n")}, []string{"is empty"}},
		{"large file", Options{URL: "redis://host", PasswordFile: write(t, strings.Repeat("x", 4097))},
			[]string{"is larger than 4096 bytes"}},
		{"user without password", Options{URL: "redis://me@host"}, []string{`username "me" has no password`}},
		{"certificate without TLS", Options{URL: "redis://host", CAFile: "x"}, []string{"write rediss://"}},
		{"half a pair", Options{URL: "rediss://host", CertFile: "x"}, []string{"give both or none"}},
		{"no certificates", Options{URL: "rediss://host", CAFile: write(t, "text")}, []string{"holds no PEM certificate"}},
		{"all of TLS", Options{URL: "rediss://host", CAFile: "/no/ca", CertFile: "/no/cert", KeyFile: "/no/key"},
			[]string{"/no/ca", "/no/cert"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := New(test.options)
			if err == nil {
				s.Close()
				t.Fatal("the options were accepted")
			}
			for _, want := range test.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}
