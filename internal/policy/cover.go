// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/penstock/penstock/core"
)

// covers reports whether every request that inner matches is matched by outer too. Where that is hard to say it says no.
func covers(outer, inner *core.Match) bool {
	return coversPaths(outer, inner) &&
		coversList(outer.Method, inner.Method, func(o, i string) bool { return o == i || o == "GET" && i == "HEAD" }) &&
		coversList(outer.Host, inner.Host, coversHost) &&
		coversHeaders(outer.Header, inner.Header) && coversAttrs(outer.Attr, inner.Attr) &&
		coversList(outer.IP, inner.IP, func(o, i netip.Prefix) bool { return o.Bits() <= i.Bits() && o.Contains(i.Addr()) }) &&
		coversList(outer.Tier, inner.Tier, same) && coversList(outer.User, inner.User, same) &&
		coversList(outer.APIKey, inner.APIKey, same) && coversList(outer.Tenant, inner.Tenant, same)
}

func same(a, b string) bool { return a == b }

// coversList reports whether each of the inner entries is covered by one of the outer ones. A list without entries is for
// everything.
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

func coversHeaders(outer, inner []core.HeaderMatch) bool {
	for _, o := range outer {
		if !slices.ContainsFunc(inner, func(i core.HeaderMatch) bool {
			return strings.EqualFold(o.Name, i.Name) && coversList(o.Values, i.Values, coversValue)
		}) {
			return false
		}
	}
	return true
}

func coversAttrs(outer, inner []core.AttrMatch) bool {
	for _, o := range outer {
		if !slices.ContainsFunc(inner, func(i core.AttrMatch) bool {
			return o.Name == i.Name && coversList(o.Values, i.Values, coversGlob)
		}) {
			return false
		}
	}
	return true
}

// coversGlob knows equal values, and outer ones whose only star is at their end.
func coversGlob(outer, inner string) bool {
	prefix, isPrefix := strings.CutSuffix(outer, "*")
	literal, _, _ := strings.Cut(inner, "*")
	return outer == inner || isPrefix && !strings.Contains(prefix, "*") && strings.HasPrefix(literal, prefix)
}

func coversValue(outer, inner string) bool {
	prefix, isPrefix := strings.CutSuffix(outer, "*")
	return outer == inner || isPrefix && strings.HasPrefix(strings.TrimSuffix(inner, "*"), prefix)
}

func coversPaths(outer, inner *core.Match) bool {
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

// coversPath knows equal patterns, patterns that end in a star, and /**.
func coversPath(outer, inner string) bool {
	if strings.HasSuffix(outer, "/**") { // at the end a star is any rest as well
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
		return true // /api/* is also for /api
	}
	// The first star of the inner pattern may be anything: what stands before it must begin as the outer one does.
	literal, _, _ := strings.Cut(inner, "*")
	return strings.HasPrefix(literal, prefix)
}
