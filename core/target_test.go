// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"testing"

	"github.com/penstock/penstock/core"
)

func TestServesTarget(t *testing.T) {
	for _, c := range []struct {
		method, path, host string
		want               bool
	}{
		{"GET", "/", "h", true},
		{"GET", "//h/x", "", true},
		{"OPTIONS", "*", "h", true},
		{"CONNECT", "", "h:80", true},
		{"CONNECT", "/chat", "h", true},
		{"GET", "*", "h", false},
		{"OPTIONS", "*/x", "h", false},
		{"options", "*", "h", false},
		{"GET", "", "h", false},
		{"GET", "x", "h", false},
		{"GET", "http://h/x", "h", false},
		{"CONNECT", "h:80", "h", false},
		{"GET", `\`, "h", false},
		{"GET", "/", "A-b_c.Example.:080", true},
		{"GET", "/", "h:", true},
		{"GET", "/", "192.0.2.1:80", true},
		{"GET", "/", "[2001:db8::1]", true},
		{"GET", "/", "[2001:DB8::0:1]:80", true},
		{"GET", "/", "[2001:db8::1%25eth0]", false},
		{"GET", "/", "[2001:db8::1%25z]:8080", false},
		{"GET", "/", "[2001:db8::1%eth0]", false},
		{"GET", "/", "[2001:db8::1%25]", false},
		{"GET", "/", "[h]", false},
		{"GET", "/", "[::1", false},
		{"GET", "/", "[::1]x", false},
		{"GET", "/", "[::1]:x", false},
		{"GET", "/", "[::1/]", false},
		{"GET", "/", "u@h", false},
		{"GET", "/", "%68", false},
		{"GET", "/", "h:80:80", false},
		{"GET", "/", "h:x", false},
		{"GET", "/", "h/", false},
		{"GET", "/", "h x", false},
		{"GET", "/", "h\x00", false},
		{"GET", "/", "ｈ", false},
		{"GET", "/", "http://h", false},
		{"GET", "/", "h..", false},
		{"GET", "/", "h..:80", false},
		{"GET", "/", "a..h", false},
		{"GET", "/", ".h", false},
		{"GET", "/", ".", false},
		{"GET", "/", "[::ffff:192.0.2.1]", true},
	} {
		if got := core.ServesTarget(c.method, c.path, c.host); got != c.want {
			t.Errorf("%s %q of %q: %v", c.method, c.path, c.host, got)
		}
	}
}
