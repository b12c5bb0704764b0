// SPDX-License-Identifier: Apache-2.0

// Package controlcall has what the calls of a node to the control plane have in common: the URL and
// the token.
//
// # Promise
//
// The token is read before each call, so its file may be replaced while a node runs. A URL with a
// user, a query or a fragment is rejected, because the URL is logged, and the paths of calls are
// appended to it.
//
// # Price
//
// Each call reads the file of the token.
//
// # When not to use it
//
// People and other programs call the API with package controlclient.
package controlcall

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// Target is the control plane that a node calls.
type Target struct {
	URL   string                 // of the control plane, such as http://127.0.0.1:7070
	Token func() (string, error) // returns the token of the node, before each call
}

// Check returns what is wrong with the URL.
func (t *Target) Check() error {
	base, err := url.Parse(t.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" || base.User != nil || strings.ContainsAny(t.URL, "?#") {
		return fmt.Errorf("the control plane %q is no URL: write http://127.0.0.1:7070, without a user, a query or a fragment", t.URL)
	}
	return nil
}

// IsExposed reports whether the token goes to another machine without encryption.
func (t *Target) IsExposed() bool {
	base, err := url.Parse(t.URL)
	if err != nil || base.Scheme != "http" {
		return false
	}
	addr, err := netip.ParseAddr(base.Hostname())
	return base.Hostname() != "localhost" && (err != nil || !addr.Unmap().IsLoopback())
}

// Request returns a request with the token. The path begins with a slash.
func (t *Target) Request(ctx context.Context, method, path string, body io.Reader) (*http.Request, error) {
	token, err := t.Token()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(t.URL, "/")+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	return r, nil
}
