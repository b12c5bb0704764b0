// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// targetAttacks holds attacks that write the target, the host, the method or an identifier in other
// ways.
var targetAttacks = []attack{
	{name: "opaque request targets", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: opaqueTargets},
	{name: "absolute, authority and asterisk request targets", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: sendOtherTargets},
	{name: "opaque request targets of what is blocked", path: "/shut/x", limit: 0, admits: isServedBelow("/shut"), run: opaqueTargets},
	{name: "opaque request targets of a host", path: "/host", limit: 3, run: opaqueTargets,
		admits: func(r *http.Request) bool { return isServedBelow("/host")(r) && isLimitedHost(r) },
		plain:  limitedHost},
	{name: "spellings of a path", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: func(a *attackRun) {
		for _, p := range pathSpellings {
			a.each(a.request(http.MethodGet, p, "Connection: close\r\n"))
		}
	}},
	{name: "encoded slashes in a path", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: func(a *attackRun) {
		for _, p := range []string{"/admin%2fx", "/admin%2Fx", "/.%2fadmin/x", "/y/..%2fadmin/x", "/y%2f..%2fadmin/x", "/%2fadmin/x", "/admin/..%2fadmin%2fx"} {
			a.each(a.request(http.MethodGet, p, "Connection: close\r\n"))
		}
	}},
	{name: "spellings of a path over HTTP 2", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: pathsOfStreams},
	{name: "long paths that are slow to match", path: "/x/deep/y/end/z", limit: 3, inFlight: 50, loses: true, run: longPaths},
	{name: "spellings of a host", path: "/host", limit: 3, admits: isLimitedHost, run: hostSpellings, plain: limitedHost},
	{name: "spellings of a method", path: "/post", limit: 3, admits: isTakenForPost, run: methodSpellings, plain: plainPost},
	{name: "a header twice, folded, spelt otherwise", path: "/keyed", limit: 3, run: headerSpellings, admits: hasID,
		plain: (*attackRun).sendKeyed},
	{name: "a header with empty lines folded behind it", path: "/keyed", limit: 3, admits: hasID, plain: (*attackRun).sendKeyed, run: func(a *attackRun) {
		for n := range 15 {
			a.each(a.request(http.MethodGet, "/keyed", "X-Id: "+a.id+strings.Repeat("\r\n ", n)+"\r\nConnection: close\r\n"))
		}
	}},
	{name: "a good API key with empty lines folded behind it", path: "/each", limit: 5, admits: hasRowKey, run: foldedKeys, plain: func(a *attackRun) int {
		status, _ := a.exchange(a.request(http.MethodGet, "/each", "X-API-Key: "+keyOf(a.id)+"\r\nConnection: close\r\n"))
		return status
	}},
	{name: "bytes that are not UTF-8 in the query", path: "/each", limit: 5, run: func(a *attackRun) {
		for i := range 20 {
			a.each(a.request(http.MethodGet, fmt.Sprintf("/each?\xff%c", 0x80+i), "Connection: close\r\n"))
		}
	}},
	{name: "bytes that are not UTF-8 in a header", path: "/agent", limit: 3, run: func(a *attackRun) {
		for i := range 20 {
			a.each(a.request(http.MethodGet, "/agent", fmt.Sprintf("User-Agent: x\xff%c\r\nConnection: close\r\n", 0x80+i)))
		}
	}, plain: func(a *attackRun) int {
		status, _ := a.exchange(a.request(http.MethodGet, "/agent", "User-Agent: x\r\nConnection: close\r\n"))
		return status
	}},
	{name: "bytes that are not UTF-8 in a key", path: "/each", limit: 5, run: func(a *attackRun) {
		for i := range 20 {
			a.each(a.request(http.MethodGet, "/each", fmt.Sprintf("X-API-Key: 0123456789abcdef\xff%c\r\nConnection: close\r\n", 0x80+i)))
		}
	}},
	{name: "bytes that are not UTF-8 over HTTP 2", path: "/each", limit: 5, run: func(a *attackRun) {
		for i := range 20 {
			odd := fmt.Sprintf("\xff%c", 0x80+i)
			a.stream(http.MethodGet, "/each?"+odd)
			a.stream(http.MethodGet, "/each", "user-agent", odd)
			a.stream(http.MethodGet, "/each", "x-api-key", "0123456789abcdef"+odd)
			a.stream(http.MethodGet, "/each", "x-id", odd)
			a.stream(http.MethodGet, "/each", "authorization", "Bearer "+odd)
		}
	}},
	{name: "bytes that are not UTF-8 in a path", path: "/admin/x", limit: 3, admits: isTakenForAdmin, run: func(a *attackRun) {
		for i := range 20 {
			a.each(a.request(http.MethodGet, fmt.Sprintf("/admin/\xff%c", 0x80+i), "Connection: close\r\n"))
		}
	}},
}

// opaqueTargets sends targets that Go parses into URL.Opaque, and that a proxy might forward
// unchanged.
func opaqueTargets(a *attackRun) {
	path := strings.TrimPrefix(a.attack.path, "/")
	for _, host := range []string{"h", "limited.example", a.host} {
		for _, target := range []string{"x:http://" + host + "/" + path, "http:" + path, "http:/" + path, "x:/" + path, "a:b:/" + path, "x:" + path,
			"mailto:" + path, "http:http://" + host + "/" + path, "x:https://" + host + "/" + path, "foo:" + host + "/" + path,
			"http:?/" + path, "http:" + host + "/" + path, "x:%2f%2f" + host + "/" + path} {
			a.each("GET "+target+" HTTP/1.1\r\nHost: limited.example\r\nConnection: close\r\n\r\n",
				"GET "+target+" HTTP/1.0\r\n\r\n")
		}
	}
}

// sendOtherTargets sends the other target forms of RFC 9112, and targets that resemble them.
func sendOtherTargets(a *attackRun) {
	for _, target := range []string{"http://attacked.example/admin/x", "HTTP://attacked.example/admin/x", "https://attacked.example/admin/x",
		"http://user:password@attacked.example/admin/x", "http://attacked.example:80/admin/x", "http:///admin/x", "http://[::1]/admin/x",
		"//attacked.example/admin/x", "///admin/x", "http://attacked.example//admin/x", "http://attacked.example/y/../admin/x", "*", "attacked.example:80",
		"/admin/x#fragment", "?/admin/x", "", "admin/x", "ftp://attacked.example/admin/x", "ws://attacked.example/admin/x"} {
		for _, method := range []string{http.MethodGet, http.MethodOptions, http.MethodConnect} {
			a.each(a.request(method, target, "Connection: close\r\n"), method+" "+target+" HTTP/1.0\r\n\r\n",
				method+" "+target+" HTTP/1.1\r\nHost:\r\nConnection: close\r\n\r\n", method+" "+target+"\r\n\r\n")
		}
	}
}

// isServedBelow returns a function that reports whether a server would serve a request at the path
// or below it.
func isServedBelow(path string) func(r *http.Request) bool {
	return func(r *http.Request) bool { return r.URL.Path == path || strings.HasPrefix(r.URL.Path, path+"/") }
}

// pathSpellings holds paths that some server might serve as a path below /admin. isTakenForAdmin
// decides which of them count.
var pathSpellings = []string{"/admin/x", "/ADMIN/x", "/Admin/X", "/%61dmin/x", "/%61%64%6d%69%6e/x", "//admin/x", "///admin///x", "/./admin/x",
	"/y/../admin/x", "/y/%2e%2e/admin/x", "/y/%2E./admin/x", "/admin/../admin/x", "/../admin/x", "/admin;a=b/x", "/admin/;/x", "/;/admin/x", "/y;/../admin/x",
	"/y/..;/admin/x", `/admin\x`, `\admin\x`, `/y\..\admin/x`, `/y/..\admin/x`, "/%5cadmin%5cx", "/admin%5cx", "/admin/x%00", "/admin/%00", "/admin/x?y", "/admin?x", "/admin#x",
	"/admin/", "/admin", "/admin//", "/admin/.", "/admin/x/..", "/admin%3bx/y", "/admin%2fx", "/admin%252fx", "/%2561dmin/x", "/admin./x", "/admin%20/x", "/admin/x%0a",
	"/\u00e1dmin/x", "/\uff41\uff44\uff4d\uff49\uff4e/x", "/adm\u0131n/x", "/adm\u0130n/x", "/adm%C4%B0n/x", "/admin\u200b/x", "/%c0%af/admin/x", "/%e0%80%af../admin/x", "/%u0061dmin/x", "/y/%252e%252e/admin/x",
	"/a/b/c/../../../admin/x", "/%2e/admin/x", "/.%2fadmin/x", "/%2e%2e/admin/x", "/admin/%2e%2e/admin/x", "/y/.../../../admin/x", "/+/../admin/x",
	"/admin/..", "/admin/y/../../x", "/admin/%2e%2E/x", "/admin/../", `/admin\..`, "/admin%5c..", `//a\b@h/admin/x`, "//a%5cb@h/admin/x", `/%2Fu"@h/admin/x`, `/%2f%2Fu|@h/admin/x`,
	`/%5C"@h/admin/x`, "/admin%0a", "/admin;/x", "/admin;x/../..", "/ad%FFmin/x", "/%80admin%F0%9F/%ffx", "/admin%C3", "/y/%FF../admin;/%0A"}

// pathsOfStreams sends the spellings as :path over HTTP/2, together with some that HTTP/1.1 does
// not permit.
func pathsOfStreams(a *attackRun) {
	all := append([]string{"/admin/ x", "admin/x", "/admin/x ", "http://h/admin/x", "x:http://h/admin/x", "", "/y/../admin/\x7f"}, pathSpellings...)
	for _, p := range all {
		a.stream(http.MethodGet, p)
	}
}

// stream sends a request with further fields over a new HTTP/2 connection, and reads the answer.
func (a *attackRun) stream(method, target string, fields ...string) {
	s, err := a.newStreams()
	if err != nil {
		a.Fatal(err)
	}
	defer s.Close()
	a.sent++
	_ = s.SetReadDeadline(time.Now().Add(oddWithin / 2))
	if _, err := s.open(s.block(method, target, a.host, fields...)); err == nil {
		s.finish(1)
	}
}

// longPaths sends paths that are about as long as the proxies accept. A path with semicolons and
// backslashes can be read in many ways, and a pattern with several ** has many ways to match each
// of these readings.
func longPaths(a *attackRun) {
	const connections = 50
	long := "/x/deep/y/end/" + strings.Repeat(`;\`, 28<<10)
	deep := "/" + strings.Repeat("deep/", 5<<10) + "end/x"
	for _, p := range []string{long, deep, strings.Repeat(`/deep;\end`, 4<<10)} {
		text := a.request(http.MethodGet, p, "Connection: close\r\n")
		for range chooseLength(1, 4) {
			a.sendBurst(connections, func(int) string { return text })
		}
	}
}

// limitedHost sends an ordinary request to the limited host.
func limitedHost(a *attackRun) int {
	status, _ := a.exchange("GET /host HTTP/1.1\r\nHost: limited.example\r\nConnection: close\r\n\r\n")
	return status
}

func hostSpellings(a *attackRun) {
	for _, host := range []string{"limited.example", "LIMITED.example", "Limited.Example:80", "limited.example.", "limited.example.:80", "limited.example:0080",
		"limited.example:443", "a.limited.example", "a.b.limited.example.", "limited.example:", "limited.example:99999", "LIMITED.EXAMPLE.", " limited.example",
		"limited.example\t", "limited.example/", "limited.example,other.example", "limited.example@other.example", "user@limited.example", "limited%2eexample",
		"\uff4cimited.example", "limited\u3002example", "xn--limited-.example"} {
		a.each("GET /host HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n",
			"GET http://"+host+"/host HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n",
			"GET /host HTTP/1.1\r\nHost: "+host+"\r\nHost: other.example\r\nConnection: close\r\n\r\n",
			"GET /host HTTP/1.0\r\nHost: "+host+"\r\n\r\n")
	}
}

// isLimitedHost reports whether a server would take the host for the limited one. The letter case,
// a port and a trailing dot make no difference.
func isLimitedHost(r *http.Request) bool {
	host, _, _ := strings.Cut(strings.ToLower(r.Host), ":")
	host = strings.TrimSuffix(host, ".")
	return host == "limited.example" || strings.HasSuffix(host, ".limited.example")
}

func methodSpellings(a *attackRun) {
	for _, method := range []string{"POST", "post", "Post", "pOST", "POST\t", " POST", "POST\x00", "POSTS", "\xffPOST", "P\u039fST", "POST,GET"} {
		a.each(method+" /post HTTP/1.1\r\nHost: "+a.host+"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
			method+" /post HTTP/1.0\r\nContent-Length: 0\r\n\r\n")
	}
}

// isTakenForPost reports whether a server that ignores letter case would take the method for POST.
// It ignores header fields that override the method. If a server honours such fields, the policy
// must match them: see docs/explanation/what-an-attacker-may-try.md.
func isTakenForPost(r *http.Request) bool { return strings.EqualFold(r.Method, http.MethodPost) }

func plainPost(a *attackRun) int {
	status, _ := a.exchange("POST /post HTTP/1.1\r\nHost: " + a.host + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	return status
}

// headerSpellings sends the same identifier in all forms in which a server might recognize it.
func headerSpellings(a *attackRun) {
	for _, fields := range []string{"X-Id: ID\r\n", "x-id: ID\r\n", "X-ID:ID\r\n", "X-Id:\tID\r\n", "X-Id: ID \r\n", "X-Id:  ID\t\r\n", "X-Id : ID\r\n", "X-Id\t: ID\r\n",
		"X-Id: \r\n ID\r\n", "X-Id: ID\r\n \r\n", "X-Id\x00: ID\r\n", "X-Id: ID\x00\r\n", "X-Id: ID\nX-Other: b\r\n", "X-Other: b\nX-Id: ID\r\n"} {
		for range 2 {
			a.each(a.request(http.MethodGet, "/keyed", strings.ReplaceAll(fields, "ID", a.id)+"Connection: close\r\n"))
		}
	}
}

// hasID reports whether a server would read an identifier of this test from the request. Other
// requests are counted under the client's address or under another identifier.
func hasID(r *http.Request) bool {
	_, number, found := strings.Cut(r.Header.Get("X-Id"), "id-")
	return found && strings.Trim(number, "0123456789 \t") == ""
}

// foldedKeys sends the API key of this attack from many addresses. A different number of folded
// empty lines follows the key each time. All these requests belong to one client, because servers
// read the same key from all of them.
func foldedKeys(a *attackRun) {
	home := a.from
	defer func() { a.from = home }()
	for n := range 15 {
		attackers++
		a.from = loopback(2*attackers + 1)
		a.each(a.request(http.MethodGet, "/each", "X-API-Key: "+keyOf(a.id)+strings.Repeat("\r\n ", n)+"\r\nConnection: close\r\n"))
	}
}

// hasRowKey reports whether a server would read an API key of this test from the request.
func hasRowKey(r *http.Request) bool {
	_, number, found := strings.Cut(r.Header.Get("X-API-Key"), keyOf("id-"))
	return found && strings.Trim(number, "0123456789 \t") == ""
}

func (a *attackRun) sendKeyed() int {
	status, _ := a.exchange(a.request(http.MethodGet, "/keyed", "X-Id: "+a.id+"\r\nConnection: close\r\n"))
	return status
}
