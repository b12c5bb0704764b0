// SPDX-License-Identifier: Apache-2.0

package core

import (
	"slices"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// A key names a counter:
//
//	rl1:NAMESPACE:RULE:{TAG}[:DIMENSION…]:WINDOW:ALGORITHM
//	rl1:shop:api:{header.x-user:u_42}:60s:sw                (an example)
//
// TAG is the first dimension, or the rule's name if all clients share one counter. A dimension is
// kind:value. The text in braces determines the slot in a Redis cluster, so all counters of one
// client under a rule are in the same slot.
//
// No two counters share a key. Braces, colons and percent signs are escaped in every part, and the
// rule determines the number of parts. A dimension is written in one of these forms:
//
//	kind:value           the value in the request; an empty value counts as absent
//	kind-sha256:HEX      the hash of a value over 255 bytes; no kind of a policy ends in -sha256
//	all-sha256:HEX       the hash of all dimensions, if they are over 1,024 bytes together
//	kind:                no value; all requests without a value share the counter
//	clientkind:ID        the client in place of the value. If clientkind equals kind, the client
//	                     was found by the dimension itself, which is therefore not missing
//
// A rule with shards has one counter for each shard. The shard is written first in the braces, so
// that shards are in different slots: {~3:header.x-user:u_42}, or {~3:api} if all clients share the
// counter. No kind or rule name begins with ~.

// keyVersion is the start of every key. keyVersion changes whenever the meaning of keys or counters
// changes.
const keyVersion = "rl1"

// otherMethod is written in keys for every unknown method. A client can invent methods, and an
// invented method must not have its own counter. Known methods are in upper case, so this one in
// lower case cannot collide with them.
const otherMethod = "other"

// methodInUse reports whether method is an HTTP or WebDAV method that servers distinguish.
func methodInUse(method string) bool {
	switch method {
	case "GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT", "TRACE", "QUERY",
		"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "MKCALENDAR", "ACL",
		"PURGE":
		return true
	}
	return false
}

// dimension is a compiled dimension of a rule.
type dimension struct {
	_ slim.Incomparable

	kind   policy.DimensionKind
	name   string // for PerHeader and PerAttr: the name to pass to Attributes
	label  string // as written in keys, with the colon
	hashed string // the label for the hash of a value that is too long
}

func newDimension(d policy.Dimension) dimension {
	out := dimension{kind: d.Kind, name: d.Name}
	label := ""
	switch d.Kind {
	case policy.PerHeader:
		out.name, label = match.CanonicalHeader(d.Name), identify.HeaderLabel(d.Name)
	case policy.PerAttr:
		label = identify.AttrLabel(d.Name)
	default:
		if int(d.Kind) < len(policy.DimensionLabels) { // validation reports other kinds
			label = policy.DimensionLabels[d.Kind]
		}
	}
	escaped := string(appendEscaped(nil, label))
	out.label, out.hashed = escaped+":", escaped+policy.HashSuffix+":"
	return out
}

// keyScope returns the common prefix of a rule's keys.
func keyScope(namespace, rule string) string {
	b := append([]byte(keyVersion), ':')
	b = append(appendEscaped(b, namespace), ':')
	b = append(appendEscaped(b, rule), ':')
	return string(b)
}

// dimensionsBytesMax bounds the total length of a key's dimensions. A key can have eight
// dimensions, and escaping can triple the length of a value. Without the bound a store might reject
// a key for its length, and on_error might then admit the request.
const dimensionsBytesMax = 1024

// hashedDimensions is the prefix of the hash that replaces dimensions whose total length is too
// great. No dimension is labelled "all", so no other key begins like this.
const hashedDimensions = "{all" + policy.HashSuffix + ":"

// appendCounter appends the key of the rule's counters without the window and the algorithm. The
// result ok is false if the request lacks a dimension and the rule denies such requests.
func (p *Plan) appendCounter(rs *Ruleset, u *ruleUse) (ok bool) {
	r := u.rule
	p.text = append(p.text, r.scope...)
	start := len(p.text)
	if !p.appendDimensions(rs, r) {
		return false
	}
	if len(p.text)-start > dimensionsBytesMax {
		sum := slim.SHA256(p.text[start:])
		p.text = append(p.text[:start], hashedDimensions...)
		p.text = append(slim.AppendHex(p.text, sum[:]), '}')
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

// appendDimension appends one dimension, or its substitute if the request lacks the dimension.
func (p *Plan) appendDimension(rs *Ruleset, r *rule, d *dimension) (ok bool) {
	switch value := p.value(r, d); {
	case p.who.Request.TooLong(value):
		return false
	case d.kind == policy.PerClient && p.clientPart != "":
		p.text = append(p.text, p.clientPart...)
	case d.kind == policy.PerIP && p.who.Request.Peer.IsValid():
		var scratch [64]byte
		p.text = append(p.text, d.label...)
		p.text = appendEscaped(p.text, identify.AppendAddr(scratch[:0], p.who.Request.Peer, rs.who.Prefixes))
	case len(value) > policy.ValueBytesMax:
		p.text = identify.AppendHash(append(p.text, d.hashed...), value)
	case value != "":
		p.text = appendEscaped(append(p.text, d.label...), value)
	case r.missing == policy.MissingDeny:
		return false
	case r.missing == policy.MissingClient && p.clientPart != "":
		p.text = append(p.text, p.clientPart...)
	default:
		p.text = append(p.text, d.label...)
	}
	return true
}

// countsPerEndpoint reports whether the endpoint is one of the rule's dimensions.
func (r *rule) countsPerEndpoint() bool {
	return slices.ContainsFunc(r.dims, func(d dimension) bool { return d.kind == policy.PerEndpoint })
}

// Plan.value returns the request's text for a dimension other than the client and the address; ""
// if the request has none.
func (p *Plan) value(r *rule, d *dimension) (dimensionText string) {
	switch d.kind {
	case policy.PerHost:
		dimensionText = p.who.Request.Host
	case policy.PerMethod:
		if dimensionText = p.who.Request.Method; dimensionText != "" && !methodInUse(dimensionText) {
			dimensionText = otherMethod
		}
	case policy.PerEndpoint:
		if dimensionText = p.endpoint; dimensionText == "" {
			dimensionText, _ = r.when.Endpoint(&p.who.Request)
		}
	case policy.PerUser:
		dimensionText = p.who.Identity.User
	case policy.PerAPIKey:
		dimensionText = p.who.Identity.APIKey
	case policy.PerTenant:
		dimensionText = p.who.Identity.Tenant
	case policy.PerTier:
		dimensionText = p.who.Identity.Tier
	case policy.PerHeader:
		dimensionText, _ = p.who.Request.Attrs.Header(d.name)
	case policy.PerAttr:
		dimensionText, _ = p.who.Request.Attrs.Attr(d.name)
	}
	return dimensionText
}

// hasDimensions reports whether the request has every dimension of the rule.
func (p *Plan) hasDimensions(r *rule) bool {
	for i := range r.dims {
		switch d := &r.dims[i]; d.kind {
		case policy.PerClient:
			if p.clientPart == "" {
				return false
			}
		case policy.PerIP:
			if !p.who.Request.Peer.IsValid() {
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

// identityPart returns the client as written in keys; "" if no client was found.
func (p *Plan) identityPart(client *policy.Identity) string {
	if client.Kind == "" {
		return ""
	}
	mark := len(p.text)
	p.text = append(appendEscaped(p.text, client.Kind), ':')
	p.text = appendEscaped(p.text, client.ID)
	return p.textSince(mark)
}

// escapes marks the bytes that keys write as %XX: the separators of a key's parts, and
// unprintable bytes.
var escapes = func() (table [256]bool) {
	for c := range table {
		table[c] = c < 0x21 || c >= 0x7f || c == '{' || c == '}' || c == ':' || c == '%'
	}
	return table
}()

// appendEscaped appends a part of a key. Parts that differ are still different when escaped.
// Inlining is disabled because it would put ten copies into the filter.
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
