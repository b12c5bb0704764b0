// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
)

// addressAttacks holds attacks in which a client claims the address of another client.
var addressAttacks = []attack{
	{name: "forwarded addresses without a trusted proxy", path: "/each", limit: 5, run: func(a *attackRun) {
		for i, fields := range forwardedSpellings("203.0.113.%d") {
			a.each(a.request(http.MethodGet, "/each", fmt.Sprintf(fields, i)+"Connection: close\r\n"))
		}
	}},
	{name: "addresses before that of a trusted hop", path: "/each", limit: 5, strict: true, run: func(a *attackRun) {
		for i := range 30 {
			for _, chain := range []string{"203.0.113.%d, ", "203.0.113.%d,203.0.113.%[1]d,", "garbage%d, ", "[2001:db8::%d]:80, ", ",,,%d,", "203.0.113.%d\r\nX-Forwarded-For: "} {
				a.each(a.request(http.MethodGet, "/each", "X-Forwarded-For: "+fmt.Sprintf(chain, i)+a.newForwarded()+"\r\nConnection: close\r\n"))
			}
		}
	}, plain: (*attackRun).sendForwarded},
	{name: "spellings of one address", path: "/each", limit: 5, strict: true, run: func(a *attackRun) {
		address := netip.MustParseAddr(a.newForwarded()).As4()
		dotted, hex := a.newForwarded(), fmt.Sprintf("%02x%02x:%02x%02x", address[0], address[1], address[2], address[3])
		for _, spelt := range []string{dotted, dotted + ":1234", "::ffff:" + dotted, "[::ffff:" + dotted + "]", "[::ffff:" + dotted + "]:443", "::ffff:" + hex,
			"0:0:0:0:0:ffff:" + hex, " " + dotted + " ", dotted + "\t"} {
			for range 4 {
				a.each(a.request(http.MethodGet, "/each", "X-Forwarded-For: "+spelt+"\r\nConnection: close\r\n"))
			}
		}
	}, plain: (*attackRun).sendForwarded},
	{name: "addresses of IPv6 within one /64", path: "/each", limit: 5, strict: true, run: func(a *attackRun) {
		for range chooseLength(200, 2_000) {
			address := fmt.Sprintf("2001:db8:%x:2:%x:%x:%x:%x", a.number, a.random.IntN(1<<16), a.random.IntN(1<<16), a.random.IntN(1<<16), a.random.IntN(1<<16))
			a.each(a.request(http.MethodGet, "/each", "X-Forwarded-For: "+address+"\r\nConnection: close\r\n"))
		}
	}, plain: func(a *attackRun) int { return a.askAs(fmt.Sprintf("2001:db8:%x:2::7", a.number)) }},
}

// forwardedSpellings returns header fields from which some servers take a wrong client address. The
// argument address is a format with one verb.
func forwardedSpellings(address string) (fields []string) {
	for _, name := range []string{"X-Forwarded-For", "x-forwarded-for", "X-Real-IP", "True-Client-IP", "CF-Connecting-IP", "X-Client-IP", "X-Cluster-Client-IP",
		"Fastly-Client-IP", "X-Envoy-External-Address", "X-Original-Forwarded-For", "X-Forwarded", "X-Remote-IP", "X-Remote-Addr", "Client-IP", "X_Forwarded_For"} {
		fields = append(fields, name+": "+address+"\r\n", name+": "+address+", 127.0.0.1\r\n", name+": 127.0.0.1, "+address+"\r\n",
			name+": "+address+"\r\n"+name+": 127.0.0.1\r\n")
	}
	return append(fields, "Forwarded: for="+address+"\r\n", `Forwarded: for="[2001:db8::%d]:1"`+"\r\n", "Via: 1.1 "+address+"\r\n")
}

// newForwarded returns an address that only this attack uses. The trusted hop reports it as the
// client's address.
func (a *attackRun) newForwarded() string {
	return fmt.Sprintf("198.51.%d.%d", a.number/250, a.number%250+1)
}

// sendForwarded sends one plain request as the client with the address of newForwarded.
func (a *attackRun) sendForwarded() int { return a.askAs(a.newForwarded()) }

func (a *attackRun) askAs(address string) int {
	status, _ := a.exchange(a.request(http.MethodGet, a.attack.path, "X-Forwarded-For: "+address+"\r\nConnection: close\r\n"))
	return status
}
