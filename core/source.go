// SPDX-License-Identifier: Apache-2.0

package core

import "strings"

// sourcesMax is how many places a user, tenant or tier may be looked for in: each is a question at every request.
const sourcesMax = 16

// hostLabelMax is how many labels a host's name can have: 253 bytes, every other one a dot.
const hostLabelMax = 127

// source is a [Source] made ready for requests.
type source struct {
	kind  SourceKind
	name  string
	label int
}

func newSources(sources []Source) []source {
	out := make([]source, len(sources))
	for i, s := range sources {
		out[i] = source{kind: s.Kind, name: s.Name, label: s.Label}
		if s.Kind == SourceHeader {
			out[i].name = canonicalHeader(s.Name)
		}
	}
	return out
}

// firstOf returns what the first source says that says anything, or "".
func (r *request) firstOf(sources []source) (value string) {
	for i := range sources {
		switch s := &sources[i]; s.kind {
		case SourceAttr:
			value, _ = r.attrs.Attr(s.name)
		case SourceHeader:
			value, _ = r.attrs.Header(s.name)
		case SourceHost:
			value = hostLabel(r.host, s.label)
		}
		if value != "" && !r.tooLong(value) {
			return value
		}
	}
	return ""
}

// hostLabel returns the label with that number, counted from the left from 1, of a host's name. An address has none.
func hostLabel(host string, label int) string {
	if host == "" || host[0] == '[' || onlyDigits(host[strings.LastIndexByte(host, '.')+1:]) {
		return "" // no top-level domain is a number, the end of an IPv4 address is
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

func onlyDigits(text string) bool { return digits(text) == text }
