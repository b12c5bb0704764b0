// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/hex"
)

// A key names a counter:
//
//	rl1:NAMESPACE:RULE:{TAG}[:DIMENSION…]:WINDOW:ALGORITHM     rl1:shop:api:{header.x-user:u_42}:60s:sw
//
// TAG is the first dimension, or the rule's name if one counter is for everybody; a dimension is kind:value. What is in
// braces decides the slot of a Redis cluster, so that one client's counters are together.
//
// No two counters share a key. Braces, colons and percent signs are escaped in every part, so each part ends where it
// seems to, and the rule says how many there are. In the place of one dimension there can be
//
//	kind:value           what the request has; an empty value counts as absent
//	kind-sha256:HEX      the hash of a value over 255 bytes; no kind of a policy ends in -sha256
//	all-sha256:HEX       the hash of all dimensions, where they are over 1,024 bytes together
//	kind:                nothing, shared by all who lack it
//	clientkind:ID        the client instead. If clientkind is kind, then the client was found by what the dimension is
//	                     about, which is therefore not missing
//
// Of a rule with shards there is one counter more for each, and it stands first in the braces, so that they are in different
// slots: {~3:header.x-user:u_42}, or {~3:api} if the counter is for everybody. No kind and no rule begins with ~.

// keyVersion begins every key. It changes when the meaning of keys or counters does.
const keyVersion = "rl1"

// otherMethod stands in keys for every method that is not in use: a method is whatever the client writes, and one that
// it invents must not bring it a counter of its own. Lower case keeps it apart from methods.
const otherMethod = "other"

// methodInUse reports whether servers tell the method from others: those of HTTP and of WebDAV.
func methodInUse(method string) bool {
	switch method {
	case "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "QUERY",
		"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "MKCALENDAR", "ACL",
		"PURGE":
		return true
	}
	return false
}

// dimension is one entry of a rule's per, made ready for requests.
type dimension struct {
	kind   DimensionKind
	name   string // PerHeader, PerAttr: as Attributes wants it
	label  string // as it stands in keys, with the colon
	hashed string // the same for a value that was too long
}

var dimensionLabels = [...]string{PerClient: "client", PerUser: "user", PerAPIKey: "api_key", PerTenant: "tenant",
	PerTier: "tier", PerIP: "ip", PerHost: "host", PerMethod: "method",
	PerEndpoint: "endpoint"}

func newDimension(d Dimension) dimension {
	out := dimension{kind: d.Kind, name: d.Name}
	label := ""
	switch d.Kind {
	case PerHeader:
		out.name, label = canonicalHeader(d.Name), headerLabel(d.Name)
	case PerAttr:
		label = attrLabel(d.Name)
	default:
		if int(d.Kind) < len(dimensionLabels) { // others are reported by the verifier
			label = dimensionLabels[d.Kind]
		}
	}
	escaped := string(appendEscaped(nil, label))
	out.label, out.hashed = escaped+":", escaped+hashSuffix+":"
	return out
}

// keyScope returns what every key of a rule begins with.
func keyScope(namespace, rule string) string {
	b := append([]byte(keyVersion), ':')
	b = append(appendEscaped(b, namespace), ':')
	b = append(appendEscaped(b, rule), ':')
	return string(b)
}

// dimensionsBytesMax is how long a key's dimensions may be together. Escaping makes a value three times as long, and
// there may be eight: a store that must refuse a key for its length would let its client through.
const dimensionsBytesMax = 1024

// hashedDimensions begins what stands for dimensions that are too long together. No kind is called so.
const hashedDimensions = "{all" + hashSuffix + ":"

// appendCounter appends the key of the rule's counters but for the window and the algorithm. ok is false if a dimension
// is missing and the rule denies that.
func (p *Plan) appendCounter(rs *Ruleset, u *use) (ok bool) {
	r := u.rule
	p.text = append(p.text, r.scope...)
	start := len(p.text)
	if !p.appendDimensions(rs, r) {
		return false
	}
	if len(p.text)-start > dimensionsBytesMax {
		sum := sum256(p.text[start:])
		p.text = append(p.text[:start], hashedDimensions...)
		p.text = append(hex.AppendEncode(p.text, sum[:]), '}')
	}
	if u.shards > 0 {
		r.spread.mark(p, start+1, u)
	}
	return true
}

func (p *Plan) appendDimensions(rs *Ruleset, r *rule) (ok bool) {
	if len(r.dims) == 0 {
		p.text = append(p.text, r.tag...)
		return true
	}
	p.text = append(p.text, '{')
	for i := range r.dims {
		if i > 0 {
			p.text = append(p.text, ':')
		}
		if !p.appendDimension(rs, r, &r.dims[i]) {
			return false
		}
		if i == 0 {
			p.text = append(p.text, '}')
		}
	}
	return true
}

// appendDimension appends one dimension, or what stands in for it.
func (p *Plan) appendDimension(rs *Ruleset, r *rule, d *dimension) (ok bool) {
	switch value := p.value(r, d); {
	case p.request.tooLong(value):
		return false
	case d.kind == PerClient && p.clientPart != "":
		p.text = append(p.text, p.clientPart...)
	case d.kind == PerIP && p.request.peer.IsValid():
		var scratch [64]byte
		p.text = append(p.text, d.label...)
		p.text = appendEscaped(p.text, appendAddr(scratch[:0], p.request.peer, rs.prefixes))
	case len(value) > valueBytesMax:
		p.text = appendHash(append(p.text, d.hashed...), value)
	case value != "":
		p.text = appendEscaped(append(p.text, d.label...), value)
	case r.missing == MissingDeny:
		return false
	case r.missing == MissingClient && p.clientPart != "":
		p.text = append(p.text, p.clientPart...)
	default:
		p.text = append(p.text, d.label...)
	}
	return true
}

// value returns what the request has for a dimension that is a text, "" if it lacks it.
func (p *Plan) value(r *rule, d *dimension) (value string) {
	switch d.kind {
	case PerHost:
		value = p.request.host
	case PerMethod:
		if value = p.request.method; value != "" && !methodInUse(value) {
			value = otherMethod
		}
	case PerEndpoint:
		value, _ = r.when.endpoint(&p.request)
	case PerUser:
		value = p.asking.User
	case PerAPIKey:
		value = p.asking.APIKey
	case PerTenant:
		value = p.asking.Tenant
	case PerTier:
		value = p.asking.Tier
	case PerHeader:
		value, _ = p.request.attrs.Header(d.name)
	case PerAttr:
		value, _ = p.request.attrs.Attr(d.name)
	}
	return value
}

// has reports whether the request has every dimension of the rule.
func (p *Plan) has(r *rule) bool {
	for i := range r.dims {
		switch d := &r.dims[i]; d.kind {
		case PerClient:
			if p.clientPart == "" {
				return false
			}
		case PerIP:
			if !p.request.peer.IsValid() {
				return false
			}
		default:
			if p.value(r, d) == "" {
				return false
			}
		}
	}
	return true
}

// identityPart returns the client as it stands in keys, "" for nobody.
func (p *Plan) identityPart(client *Identity) string {
	if client.Kind == "" {
		return ""
	}
	mark := len(p.text)
	p.text = append(appendEscaped(p.text, client.Kind), ':')
	p.text = appendEscaped(p.text, client.ID)
	return p.textSince(mark)
}

// escapes says which bytes are written as %XX: the ones keys are built with, and those no terminal shows.
var escapes = func() (table [256]bool) {
	for c := range table {
		table[c] = c < 0x21 || c >= 0x7f || c == '{' || c == '}' || c == ':' || c == '%'
	}
	return table
}()

// appendEscaped appends a part of a key. Different parts stay different. It is not inlined: the filter would have it ten
// times.
//
//go:noinline
func appendEscaped[T string | []byte](dst []byte, part T) []byte {
	const digits = "0123456789ABCDEF"
	start := 0
	for i := 0; i < len(part); i++ {
		if c := part[i]; escapes[c] {
			dst = append(dst, part[start:i]...)
			dst = append(dst, '%', digits[c>>4], digits[c&15])
			start = i + 1
		}
	}
	return append(dst, part[start:]...)
}
