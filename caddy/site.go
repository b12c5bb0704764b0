// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"hash/fnv"
	"reflect"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"

	"github.com/penstock/penstock/core"
)

// siteOf returns the addresses of the site block that a directive stands in, as they are written, or "".
//
// Caddy gives directives no public way to ask, and without it neither "the second penstock line of this site" nor "the
// same site after a reload" can be told. So it is read by reflection, and if Caddy should rename the field the only loss
// is that sites of one server share a namespace, which the tests notice.
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

// siteNamespace is the namespace of a site without a name, in memory: its addresses, in the letters that a name may have.
// Where that changes or shortens them, a hash keeps two sites apart.
func siteNamespace(site string) string {
	slug := strings.Trim(strings.Map(func(r rune) rune {
		if r < 0x80 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-') {
			return r
		}
		return '-'
	}, site), "-")
	if slug == site && len(slug) <= core.NameBytesMax {
		return slug
	}
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(site)) // a hash does not fail
	tail := strconv.FormatUint(uint64(sum.Sum32()), 36)
	if slug == "" {
		return tail
	}
	return slug[:min(len(slug), core.NameBytesMax-len(tail)-1)] + "-" + tail
}
