// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"net/http"
	"net/netip"
	"net/url"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Description describes a request. Maps are not nil.
type Description struct {
	Method, Path, Query, Host string // the path is escaped, as the client sends it
	Headers                   http.Header
	Attrs                     map[string]string
	Peer, Remote              netip.Addr
	Now                       counter.Micros
}

// ServesTarget reports whether proxies apply rules to the request. If not, its path or host has a
// form to which proxies answer 400.
func (d *Description) ServesTarget() bool { return core.ServesTarget(d.Method, d.Path, d.Host) }

// Request is a described request, in the form that core reads.
type Request struct{ Description Description }

// Method implements [policy.Attributes].
func (r *Request) Method() string { return r.Description.Method }

// Host implements [policy.Attributes].
func (r *Request) Host() string { return r.Description.Host }

// Query implements [policy.Attributes].
func (r *Request) Query() string { return r.Description.Query }

// Peer implements [policy.Attributes].
func (r *Request) Peer() netip.Addr { return r.Description.Peer }

// Remote implements [policy.Attributes].
func (r *Request) Remote() netip.Addr { return r.Description.Remote }

// Now implements [policy.Attributes].
func (r *Request) Now() counter.Micros { return r.Description.Now }

// Path returns the path as a proxy receives it: escapes remain, and characters that must be escaped
// are escaped.
func (r *Request) Path() string {
	path := r.Description.Path
	decoded, err := url.PathUnescape(path)
	if err != nil { // a percent sign that begins no escape stands for itself
		decoded = path
	}
	return (&url.URL{Path: decoded, RawPath: path}).EscapedPath()
}

// Header implements [policy.Attributes].
func (r *Request) Header(name string) (string, bool) {
	values := r.Description.Headers.Values(name)
	return policy.JoinLines(name, values), len(values) > 0
}

// Attr implements [policy.Attributes].
func (r *Request) Attr(name string) (string, bool) {
	value, ok := r.Description.Attrs[name]
	return value, ok && value != ""
}

var _ policy.Attributes = (*Request)(nil)
