// SPDX-License-Identifier: Apache-2.0

package identify

import (
	"strings"

	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// SourcesMax is the greatest number of sources of a user, tenant or tier. A request can try them
// all.
const SourcesMax = 16

// HostLabelMax is the greatest number of labels in a host name: 253 bytes with a dot in every other
// one.
const HostLabelMax = 127

// source is a compiled [policy.Source].
type source struct {
	kind  policy.SourceKind
	name  string
	label int
}

// NewSources compiles the sources.
func NewSources(sources []policy.Source) []source {
	out := make([]source, len(sources))
	for i, s := range sources {
		out[i] = source{kind: s.Kind, name: s.Name, label: s.Label}
		if s.Kind == policy.SourceHeader {
			out[i].name = match.CanonicalHeader(s.Name)
		}
	}
	return out
}

// ReadsHost reports whether a property of the client comes from the host.
func (r *Rules) ReadsHost() bool {
	for _, sources := range [...][]source{r.users, r.tenants, r.tiers} {
		for i := range sources {
			if sources[i].kind == policy.SourceHost {
				return true
			}
		}
	}
	return false
}

// firstOf returns the first value that a source provides, or "".
func firstOf(r *match.Request, sources []source) (value string) {
	for i := range sources {
		switch s := &sources[i]; s.kind {
		case policy.SourceAttr:
			value, _ = r.Attrs.Attr(s.name)
		case policy.SourceHeader:
			value, _ = r.Attrs.Header(s.name)
		case policy.SourceHost:
			value = hostLabel(r.Host, s.label)
		}
		if value != "" && !r.TooLong(value) {
			return value
		}
	}
	return ""
}

// hostLabel returns a label of a host name by its number, counted from 1 from the left. An address
// has no labels.
func hostLabel(host string, label int) string {
	if host == "" || host[0] == '[' || onlyDigits(host[strings.LastIndexByte(host, '.')+1:]) {
		return "" // an IPv4 address, because no top-level domain is a number
	}
	for ; label > 1; label-- {
		dot := strings.IndexByte(host, '.')
		if dot < 0 {
			return ""
		}
		host = host[dot+1:]
	}
	name, _, _ := strings.Cut(host, ".")
	return name
}

func onlyDigits(text string) bool { return slim.Digits(text) == text }
