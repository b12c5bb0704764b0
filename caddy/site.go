// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"hash/fnv"
	"reflect"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/penstock/penstock/core/policy"
)

// siteOf returns the addresses of the site block that contains a directive, as written, or "".
//
// The addresses are needed to recognize a second penstock directive in the same site, and the same
// site after a reload. Caddy gives directives no public access to them, so siteOf reads a private
// field by reflection. If Caddy renames that field, sites of one server share a namespace, and a
// test fails.
func siteOf(h httpcaddyfile.Helper) string {
	block := reflect.ValueOf(h).FieldByName("parentBlock")
	if !block.IsValid() || block.Kind() != reflect.Struct {
		return ""
	}
	keys := block.FieldByName("Keys")
	if !keys.IsValid() || keys.Kind() != reflect.Slice {
		return ""
	}
	var addresses []string
	for i := range keys.Len() {
		if text := keys.Index(i).FieldByName("Text"); text.IsValid() && text.Kind() == reflect.String {
			addresses = append(addresses, strings.TrimSuffix(text.String(), ","))
		}
	}
	return strings.Join(addresses, " ")
}

// siteNamespace returns the in-memory namespace of a site without a name. The result is the site's
// addresses, restricted to the characters of a name. If characters were replaced or cut off, a hash
// is appended, so that different sites have different namespaces.
func siteNamespace(site string) string {
	slug := strings.Trim(strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return r
		}
		return '-'
	}, site), "-")
	if slug == site && len(slug) <= policy.NameBytesMax {
		return slug
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(site)) // a hash returns no error
	tail := strconv.FormatUint(uint64(sum.Sum32()), 36)
	if slug == "" {
		return tail
	}
	return slug[:min(len(slug), policy.NameBytesMax-len(tail)-1)] + "-" + tail
}
