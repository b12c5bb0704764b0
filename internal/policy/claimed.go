// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
)

// brackets are what parts of an attribute's name may stand in, in Envoy.
var brackets = strings.NewReplacer("[", "", "]", "")

// claimed returns the request header or cookie that an attribute is nothing but another name of, by Caddy's placeholders
// and Envoy's attributes; kind is "" if it is none. What anyone can write is taken for a client only where the policy says
// unverified, by whatever name it is called.
func claimed(attr string) (kind, name string) {
	attr = brackets.Replace(attr)
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

const whyClaimed = ", which anyone can write, and so be "

// claimedIdentity refuses a way to identify that hides a header or a cookie behind the name of an attribute.
func (c *converter) claimedIdentity(path, attr string) {
	if kind, name := claimed(attr); kind != "" {
		c.problem(path, attr, "is a request "+kind+whyClaimed+"anyone", "write "+kind+": {name: "+name+
			", unverified: true} instead of attr, if something in front sets or removes it")
	}
}

// claimedSource does the same for what says the user, tenant or tier, which a cookie cannot.
func (c *converter) claimedSource(path, attr string) {
	switch kind, name := claimed(attr); kind {
	case "header":
		c.problem(path, attr, "is a request header"+whyClaimed+"whatever there is", "write header: {name: "+name+
			", unverified: true} instead of attr, if something in front sets or removes it")
	case "cookie":
		c.problem(path, attr, "is a request cookie"+whyClaimed+"whatever there is", "use jwt or api_key, or a header "+
			"that something in front sets or removes")
	}
}

// claimedDimensions has a rule say unverified where per names a header or a cookie as an attribute. core cannot know
// that, and so does not know either whether the word has an effect on attributes.
func (c *converter) claimedDimensions(path string, d *Rule, per []core.Dimension) {
	isHeader := func(p core.Dimension) bool { return p.Kind == core.PerHeader }
	isAttr := func(p core.Dimension) bool { return p.Kind == core.PerAttr }
	claims := slices.ContainsFunc(per, isHeader)
	for i, p := range per {
		kind, _ := claimed(p.Name)
		if !isAttr(p) || kind == "" {
			continue
		}
		claims = true
		if !d.Unverified {
			c.problem(index(path+".per", i), "attr:"+p.Name, "is a request "+kind+", which anyone can write to be counted apart",
				"write unverified: true if something in front sets or removes it")
		}
	}
	if d.Unverified && !claims && slices.ContainsFunc(per, isAttr) {
		c.problem(path+".unverified", "true", "has no effect: per names no header", "leave it out")
	}
}
