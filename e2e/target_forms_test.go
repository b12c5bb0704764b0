// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"time"
)

// requestForm holds the method, the target and the host of a request exactly as they are sent. In
// HTTP/2 and HTTP/3 these are :method, :path and :authority.
type requestForm struct {
	method, target string
	// host is the value of the Host field. If host has several lines, each further one becomes a
	// line of the HTTP/1 header. The value "-" means that there is no Host field.
	host string
}

// targetForms returns requests whose targets, valid or not, a server might read as /admin/x.
func targetForms() (forms []requestForm) {
	for _, target := range []string{
		"/admin/x", "/admin/x?q", "/admin/x#f", "/#/../admin/x", "/?/admin/x", "/admin/../admin/x", "/%61dmin/x",
		"//admin/x", "///admin/x", "//h/admin/x", "///h/admin/x", "//h:80/admin/x", "//u@h/admin/x", `/\h/admin/x`, `/\/h/admin/x`,
		`\\h/admin/x`, "/.//h/admin/x", "//h//admin/x", "//h/./admin/x", `//h\admin/x`, "//h?/admin/x", "/%2Fh/admin/x",
		"http://h/admin/x", "HTTP://h/admin/x", "https://h/admin/x", "http://h:80/admin/x", "http://u:p@h/admin/x",
		"http://h//admin/x", "http://h//h/admin/x", "http:///admin/x", "http:/admin/x", "http://h", "http://h?/admin/x",
		"ws://h/admin/x", "x://h/admin/x", "x:/admin/x", "x:///admin/x", "x:////admin/x", "x:////h/admin/x", "file:///admin/x",
		"x:http://h/admin/x", "http:http://h/admin/x", "x:x:http://h/admin/x", "x:h/admin/x", "http:admin/x", "x:%2Fadmin/x", "x:", "x:?/admin/x",
		"h:80", "h:80/admin/x", "h/admin/x", "admin/x", "?/admin/x", "#/admin/x", "*", "*/admin/x", "*/../admin/x", "",
	} {
		for _, method := range []string{"GET", "OPTIONS", "CONNECT"} {
			forms = append(forms, requestForm{method, target, "h"})
		}
	}
	return append(forms, requestForm{"HEAD", "x:http://h/admin/x", "h"}, requestForm{"BREW", "x:http://h/admin/x", "h"},
		requestForm{"GET", "/admin/x", "-"}, requestForm{"GET", "http://h/admin/x", "-"}, requestForm{"GET", "x:http://h/admin/x", "-"})
}

// hostForms returns requests whose hosts, valid or not, a server might read as admin.example.
func hostForms() (forms []requestForm) {
	for _, host := range []string{
		"admin.example", "ADMIN.example", "admin.example.", "admin.example..", "admin.example:80", "admin.example:", "admin.example.:80",
		"u@admin.example", "u:p@admin.example", "u@admin.example:80", "admin.example:80:80", "admin.example:80@h", "admin.example:x", "%61dmin.example",
		" admin.example ", "admin.example,h", "h,admin.example", "admin.example/", "admin.example/x", `admin.example\x`, "admin.example?x", "admin.example#x",
		"admin.example h", "admin.example;h", "[admin.example]", "http://admin.example", "//admin.example", "admin.example\nHost: h",
		"h\nHost: admin.example", "\nHost: admin.example", "admin.example\x00", "admin.example\x80", "admin。example", "ａdmin.example",
	} {
		forms = append(forms, requestForm{"GET", "/", host})
	}
	for _, target := range []string{"http://admin.example/", "http://admin.example", "http://ADMIN.example./", "http://u@admin.example/",
		"http://admin.example:80/", "x://admin.example/", "//admin.example/", "x:http://admin.example/", "http://h@admin.example/"} {
		forms = append(forms, requestForm{"GET", target, "h"}, requestForm{"GET", target, "-"}, requestForm{"GET", target, ""})
	}
	return append(forms, requestForm{"CONNECT", "admin.example:80", "h"})
}

// requestForm.blocked returns the same form of a request for /blocked/x.
func (f requestForm) blocked() requestForm {
	f.target = strings.NewReplacer("admin/", "blocked/", "%61dmin/", "%62locked/").Replace(f.target)
	return f
}

// requestForm.patience returns the longest wait for an answer. A tunnel through a proxy stays open
// after the upstream's answer, which comes at once, so the wait for it is short.
func (f requestForm) patience() time.Duration {
	if f.method == "CONNECT" {
		return 500 * time.Millisecond
	}
	return patience
}

// http1 returns the text of the request in HTTP/1.
func (f requestForm) http1(version, address, upstream string) string {
	text := f.method + " " + f.target + " HTTP/" + version + "\r\n"
	if f.host != "-" {
		text += "Host: " + strings.ReplaceAll(f.host, "\n", "\r\n") + "\r\n"
	}
	return text + "X-Forwarded-For: " + address + "\r\nX-Upstream: " + upstream + "\r\nConnection: close\r\n\r\n"
}
