// SPDX-License-Identifier: Apache-2.0

package rls

import (
	"net/netip"
	"strconv"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// These are the attributes of a descriptor in addition to its entries. The attributes hide entries
// with the same key.
const (
	AttrDomain     = "envoy.domain"     // the request's domain
	AttrDescriptor = "envoy.descriptor" // the keys of the entries, in order; see Keys
	attrEntries    = "envoy.entries"    // keys and values, for the counters of limits sent by Envoy
)

// addressKey is the key of the entry with the client's address.
const addressKey = "remote_address"

// Keys returns the value of [AttrDescriptor] for a descriptor whose entries have these keys.
func Keys(keys ...string) string {
	var b []byte
	for i, key := range keys {
		if i > 0 {
			b = append(b, '/')
		}
		b = appendPart(b, key)
	}
	return string(b)
}

// Nth returns the attribute of the nth entry with the key, counted from 1.
func Nth(key string, n int) string {
	if n == 1 {
		return key
	}
	return key + "#" + strconv.Itoa(n)
}

// appendPart appends a key or value, escaped so that "/" and "=" separate parts unambiguously.
func appendPart(dst []byte, part string) []byte {
	for i := 0; i < len(part); i++ {
		switch c := part[i]; c {
		case '/':
			dst = append(dst, "%2F"...)
		case '%':
			dst = append(dst, "%25"...)
		case '=':
			dst = append(dst, "%3D"...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// description implements [policy.Attributes] for one descriptor of a request. A description is not
// safe for concurrent use. The method read makes it ready for the next descriptor.
type description struct {
	domain  string
	entries []*ratelimit.RateLimitDescriptor_Entry
	now     counter.Micros

	path, query string
	peer        netip.Addr
	keys        string // computed when first needed; "" before that
}

var _ policy.Attributes = (*description)(nil)

func (d *description) read(domain string, source *ratelimit.RateLimitDescriptor, now counter.Micros) {
	*d = description{domain: domain, entries: source.GetEntries(), now: now, path: "/"}
	if value, ok := d.firstValue("path", ":path", ""); ok && value != "" {
		d.path, d.query, _ = strings.Cut(value, "?")
	}
	if value, ok := d.firstValue(addressKey, "", ""); ok {
		if addr, err := netip.ParseAddr(value); err == nil {
			d.peer = addr.WithZone("")
		}
	}
}

// description.firstValue returns the value of the first entry with one of the keys.
func (d *description) firstValue(one, two, three string) (value string, ok bool) {
	for _, e := range d.entries {
		if key := e.GetKey(); key != "" && (key == one || key == two || key == three) {
			return e.GetValue(), true
		}
	}
	return "", false
}

func (d *description) Path() string        { return d.path }
func (d *description) Query() string       { return d.query }
func (d *description) Peer() netip.Addr    { return d.peer }
func (d *description) Now() counter.Micros { return d.now }

// Remote returns the client's address as Envoy determined it.
func (d *description) Remote() netip.Addr { return d.peer }

func (d *description) Method() string {
	value, _ := d.firstValue("method", ":method", "")
	return value
}

func (d *description) Host() string {
	value, _ := d.firstValue("host", ":authority", "authority")
	return value
}

// Header returns the value of the entry whose key is the header's name, in upper or lower case.
func (d *description) Header(name string) (value string, ok bool) {
	for _, e := range d.entries {
		if strings.EqualFold(e.GetKey(), name) {
			return e.GetValue(), true
		}
	}
	return "", false
}

// Attr returns an entry by its key, or one of the further attributes.
func (d *description) Attr(name string) (value string, ok bool) {
	switch name {
	case AttrDomain:
		return d.domain, true
	case AttrDescriptor:
		if d.keys == "" {
			d.keys = d.joinKeys()
		}
		return d.keys, true
	case attrEntries:
		return d.appendCanonical(), true
	}
	if value, ok = d.firstValue(name, "", ""); ok {
		return value, ok
	}
	if at := strings.LastIndexByte(name, '#'); at >= 0 {
		if n, err := strconv.Atoi(name[at+1:]); err == nil && n > 1 {
			return d.nth(name[:at], n)
		}
	}
	return "", false
}

func (d *description) nth(key string, n int) (value string, ok bool) {
	for _, e := range d.entries {
		if e.GetKey() != key {
			continue
		}
		if n--; n == 0 {
			return e.GetValue(), true
		}
	}
	return "", false
}

// description.joinKeys returns the joined keys. A single key, the usual case, is not copied.
func (d *description) joinKeys() string {
	if len(d.entries) == 1 && !strings.ContainsAny(d.entries[0].GetKey(), "/%=") {
		return d.entries[0].GetKey()
	}
	var b []byte
	for i, e := range d.entries {
		if i > 0 {
			b = append(b, '/')
		}
		b = appendPart(b, e.GetKey())
	}
	return string(b)
}

// description.appendCanonical encodes the domain and the entries as a text that differs for
// different descriptors.
func (d *description) appendCanonical() string {
	b := appendPart(nil, d.domain)
	for _, e := range d.entries {
		b = appendPart(append(b, '/'), e.GetKey())
		b = appendPart(append(b, '='), e.GetValue())
	}
	return string(b)
}
