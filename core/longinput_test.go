// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/request"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// BenchmarkLongFields measures reading long fields other than the path, filled with the slowest
// content.
func BenchmarkLongFields(b *testing.B) {
	matched := compileAll(b, []policy.Match{{Header: []policy.HeaderMatch{{Name: "X-Kind", Values: []string{"a", "bc*"}}}}, {Host: []string{"*.example.com"}}})
	m := match.NewMatcher(matched)
	hops := identify.Forwarding{Hops: 64}
	var p Plan
	for _, length := range []int{1 << 10, 60 << 10, 1 << 20} {
		fill := func(unit string) string { return strings.Repeat(unit, length/len(unit)) }
		a := &request.Attributes{PathText: "/", Headers: map[string]string{"X-Kind": fill("a,"), "Cookie": fill("a="), "X-Forwarded-For": fill("1.1.1.1,")}}
		commas, cookies, pairs, scheme, query := fill(","), fill(";"), fill("session=;"), "Basic "+fill(","), fill("&")
		hosts := &request.Attributes{HostText: fill("A.")}
		for name, read := range map[string]func(){
			"header":    func() { p.who.Request.Read(a); p.matched = m.AppendMatches(p.matched[:0], &p.who.Request) },
			"commas":    func() { matched[0].Headers[0].Matches(commas, false) },
			"forwarded": func() { hops.Client(a) },
			"cookie":    func() { identify.CookieValue(cookies, "session") },
			"pairs":     func() { identify.CookieValue(pairs, "session") },
			"bearer":    func() { identify.Bearer(scheme) },
			"query":     func() { p.who.QueryValue(query, "key") },
			"host":      func() { p.who.Request.Read(hosts) },
		} {
			b.Run(fmt.Sprintf("%s/bytes=%d", name, length), func(b *testing.B) {
				for b.Loop() {
					read()
				}
			})
		}
	}
}
