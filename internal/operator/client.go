// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// Words is the text description of a client.
type Words struct {
	Client string // KIND:ID, as in keys: user:u_42, ip:192.0.2.7, header.x-user:ann
	// User, Tier, Tenant and Host are further attributes that rules count by. "" leaves the value
	// to the policy.
	User, Tier, Tenant, Host string
}

// Client is a client described by Words. A Client is immutable and safe for concurrent use.
type Client struct {
	who  policy.Identity
	host string
	addr netip.Addr
	// stored is the API key of the client in the directory, or nil.
	stored *knownKey
}

// Parse parses words. The error of Parse names the problem and the remedy.
func Parse(w Words) (*Client, error) {
	kind, id, ok := strings.Cut(w.Client, ":")
	if !ok || kind == "" || id == "" {
		return nil, fmt.Errorf("client %q has no kind or no id; write client=KIND:ID, such as client=user:u_42, client=api_key:acme or "+
			"client=ip:192.0.2.7", w.Client)
	}
	if kind, ok = policy.ParseKind(kind); !ok {
		return nil, fmt.Errorf("client %q has an unknown kind; write user:ID, api_key:ID, ip:ADDRESS, header.NAME:VALUE, "+
			"cookie.NAME:VALUE or attr.NAME:VALUE", w.Client)
	}
	c := &Client{who: policy.IdentityOf(kind, id), host: w.Host}
	c.who.User, c.who.Tier, c.who.Tenant = w.User, w.Tier, w.Tenant
	switch kind {
	case "user":
		c.who.User = id
	case "api_key":
		c.who.APIKey = id
	case "ip":
		text, _, _ := strings.Cut(id, "/") // the name of a network; the policy sets the prefix length
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("client %q is not an address; write client=ip:192.0.2.7", w.Client)
		}
		c.addr = addr.Unmap()
	}
	return c, nil
}

// String returns the client as KIND:ID.
func (c *Client) String() string { return c.who.Kind + ":" + c.who.ID }

var _ policy.Attributes = (*Client)(nil)

// Path returns "/". With Path and the methods below, a Client is a request that has no properties
// except those of the client and the host.
func (c *Client) Path() string { return "/" }

// Method returns GET.
func (c *Client) Method() string { return http.MethodGet }

// Host returns the host given in the words.
func (c *Client) Host() string { return c.host }

// Query returns "".
func (c *Client) Query() string { return "" }

// Header reports that the header is missing.
func (c *Client) Header(string) (string, bool) { return "", false }

// Attr reports that the attribute is missing.
func (c *Client) Attr(string) (string, bool) { return "", false }

// Peer returns the client's address. The result is invalid for a client that is not an address.
func (c *Client) Peer() netip.Addr { return c.addr }

// Remote returns the same as Peer.
func (c *Client) Remote() netip.Addr { return c.addr }

// Now returns the current time.
func (c *Client) Now() counter.Micros { return counter.Micros(time.Now().UnixMicro()) }
