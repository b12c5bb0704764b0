// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core/policy"
)

// covers reports whether outer matches every request that inner matches. It returns false where
// this is hard to determine.
func covers(outer, inner *policy.Match) bool {
	return coversPaths(outer, inner) &&
		coversList(outer.Method, inner.Method, func(o, i string) bool { return o == i || o == "GET" && i == "HEAD" }) &&
		coversList(outer.Host, inner.Host, coversHost) &&
		coversHeaders(outer.Header, inner.Header) && coversAttrs(outer.Attr, inner.Attr) &&
		coversList(outer.IP, inner.IP, func(o, i netip.Prefix) bool { return o.Bits() <= i.Bits() && o.Contains(i.Addr()) }) &&
		coversList(outer.Tier, inner.Tier, equalText) && coversList(outer.User, inner.User, equalText) &&
		coversList(outer.APIKey, inner.APIKey, equalText) && coversList(outer.Tenant, inner.Tenant, equalText)
}

func equalText(a, b string) bool { return a == b }

// coversList reports whether each inner entry is covered by at least one outer entry. An empty list
// matches everything.
func coversList[T any](outer, inner []T, covers func(outer, inner T) bool) bool {
	if len(outer) == 0 {
		return true
	}
	for _, i := range inner {
		if !slices.ContainsFunc(outer, func(o T) bool { return covers(o, i) }) {
			return false
		}
	}
	return len(inner) > 0
}

func coversHost(outer, inner string) bool {
	outer, inner = strings.ToLower(outer), strings.ToLower(inner)
	suffix, isAny := strings.CutPrefix(outer, "*")
	return outer == inner || isAny && strings.HasSuffix(inner, suffix) && len(inner) > len(suffix)
}

func coversHeaders(outer, inner []policy.HeaderMatch) bool {
	for _, o := range outer {
		if !slices.ContainsFunc(inner, func(i policy.HeaderMatch) bool {
			return strings.EqualFold(o.Name, i.Name) && coversList(o.Values, i.Values, coversValue)
		}) {
			return false
		}
	}
	return true
}

func coversAttrs(outer, inner []policy.AttrMatch) bool {
	for _, o := range outer {
		if !slices.ContainsFunc(inner, func(i policy.AttrMatch) bool {
			return o.Name == i.Name && coversList(o.Values, i.Values, coversGlob)
		}) {
			return false
		}
	}
	return true
}

// coversGlob reports whether the value outer covers inner. It recognizes only equal values, and
// outer values whose only star is at the end.
func coversGlob(outer, inner string) bool {
	prefix, isPrefix := strings.CutSuffix(outer, "*")
	literal, _, _ := strings.Cut(inner, "*")
	return outer == inner || isPrefix && !strings.Contains(prefix, "*") && strings.HasPrefix(literal, prefix)
}

func coversValue(outer, inner string) bool {
	prefix, isPrefix := strings.CutSuffix(outer, "*")
	return outer == inner || isPrefix && strings.HasPrefix(strings.TrimSuffix(inner, "*"), prefix)
}

func coversPaths(outer, inner *policy.Match) bool {
	if len(outer.Path) > 0 && (outer.CaseSensitive && !inner.CaseSensitive || outer.StrictSlash && !inner.StrictSlash) {
		return false
	}
	return coversList(outer.Path, inner.Path, func(o, i string) bool {
		if !outer.CaseSensitive {
			o, i = strings.ToLower(o), strings.ToLower(i)
		}
		return coversPath(o, i)
	})
}

// coversPath reports whether the pattern outer covers inner. It recognizes only equal patterns, and
// outer patterns that end in * or /** and have no other star.
func coversPath(outer, inner string) bool {
	if strings.HasSuffix(outer, "/**") { // at the end of a pattern, /* also matches any rest
		outer = outer[:len(outer)-1]
	}
	if outer == inner || outer == "/*" {
		return true
	}
	prefix, isPrefix := strings.CutSuffix(outer, "*")
	if !isPrefix || strings.Contains(prefix, "*") {
		return false
	}
	if folder, ok := strings.CutSuffix(prefix, "/"); ok && inner == folder {
		return true // /api/* also matches /api
	}
	// The first star of the inner pattern matches any text, so the text before that star must begin
	// with outer's prefix.
	literal, _, _ := strings.Cut(inner, "*")
	return strings.HasPrefix(literal, prefix)
}
