// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
)

// brackets is a replacer that removes the brackets which Envoy's attribute names may contain.
var brackets = strings.NewReplacer("[", "", "]", "")

const whyClaimed = ", which clients can set"

// claimedIdentity rejects a way to identify clients that names a header or a cookie as an
// attribute.
func (c *converter) claimedIdentity(path, attr string) {
	if kind, name := claimedCredential(attr); kind != "" {
		c.problem(path, attr, "is a request "+kind+whyClaimed+", so each can pose as any other", "write "+kind+": {name: "+name+
			", unverified: true} instead of attr, if something in front sets or removes it")
	}
}

// claimedSource rejects a source of the user, tenant or tier that names a header or a cookie as an
// attribute. A cookie cannot be a source.
func (c *converter) claimedSource(path, attr string) {
	switch kind, name := claimedCredential(attr); kind {
	case "header":
		c.problem(path, attr, "is a request header"+whyClaimed+" to any value", "write header: {name: "+name+
			", unverified: true} instead of attr, if something in front sets or removes it")
	case "cookie":
		c.problem(path, attr, "is a request cookie"+whyClaimed+" to any value", "use jwt or api_key, or a header "+
			"that something in front sets or removes")
	}
}

// claimedDimensions requires unverified in a rule that counts by a header or a cookie under the
// name of an attribute. Package core has no list of these names, so it cannot check unverified for
// attributes.
func (c *converter) claimedDimensions(path string, d *Rule, per []policy.Dimension) {
	isHeader := func(p policy.Dimension) bool { return p.Kind == policy.PerHeader }
	isAttr := func(p policy.Dimension) bool { return p.Kind == policy.PerAttr }
	claims := slices.ContainsFunc(per, isHeader)
	for i, p := range per {
		kind, _ := claimedCredential(p.Name)
		if !isAttr(p) || kind == "" {
			continue
		}
		claims = true
		if !d.Unverified {
			c.problem(Index(path+".per", i), "attr:"+p.Name, "is a request "+kind+", which clients can set to get counters of their own",
				"write unverified: true if something in front sets or removes it")
		}
	}
	if d.Unverified && !claims && slices.ContainsFunc(per, isAttr) {
		c.problem(path+".unverified", "true", "has no effect: per names no header", "leave it out")
	}
}

// If an attribute is another name of a request header or cookie, as some of Caddy's placeholders
// and Envoy's attributes are, claimedCredential returns the header or cookie. Otherwise the result
// kind is "". A value that the client can choose identifies clients only if the policy has
// unverified, whichever name is used for the value.
func claimedCredential(attr string) (kind, name string) {
	attr = Unbracketed(attr)
	for _, c := range []struct{ kind, prefix string }{
		{"header", "http.request.header."}, {"header", "http.request.orig_header."}, {"cookie", "http.request.cookie."},
		{"header", "request.headers."},
	} {
		if len(attr) > len(c.prefix) && strings.EqualFold(attr[:len(c.prefix)], c.prefix) {
			return c.kind, attr[len(c.prefix):]
		}
	}
	return "", ""
}

// Unbracketed returns an attribute's name without the brackets that Envoy's names may contain.
func Unbracketed(attr string) string { return brackets.Replace(attr) }
