// SPDX-License-Identifier: Apache-2.0

// Package named is the client that an operator asks about: who it is was said, as KIND:ID, and not found out from a request.
// It says whose counters those are under a policy. What rules count by beside clients, tiers, tenants, users and hosts, such
// as a header, cannot be said: those rules are left out.
//
// It is not for the way of a request, where nobody may say who he is.
package named

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
)

// Words are what is said of a client.
type Words struct {
	Client string // KIND:ID, as in keys: user:u_42, ip:192.0.2.7, header.x-user:ann
	// User, Tier, Tenant and Host are what else rules count by; "" is what the client says by itself.
	User, Tier, Tenant, Host string
}

// Client is the client of some words. It is immutable, and safe for concurrent use.
type Client struct {
	who  core.Identity
	host string
	addr netip.Addr
}

// Parse reads words. The error says what is wrong with them and what to write.
func Parse(w Words) (*Client, error) {
	kind, id, ok := strings.Cut(w.Client, ":")
	if !ok || kind == "" || id == "" {
		return nil, fmt.Errorf("client %q names nobody; write client=KIND:ID, such as client=user:u_42, client=api_key:acme or "+
			"client=ip:192.0.2.7", w.Client)
	}
	if kind, ok = knownKind(kind); !ok {
		return nil, fmt.Errorf("client %q is of no kind that there is; write user:ID, api_key:ID, ip:ADDRESS, header.NAME:VALUE, "+
			"cookie.NAME:VALUE or attr.NAME:VALUE", w.Client)
	}
	c := &Client{who: core.IdentityOf(kind, id), host: w.Host}
	c.who.User, c.who.Tier, c.who.Tenant = w.User, w.Tier, w.Tenant
	switch kind {
	case "user":
		c.who.User = id
	case "api_key":
		c.who.APIKey = id
	case "ip":
		text, _, _ := strings.Cut(id, "/") // as clients are named who are told apart by a prefix: how long it is, policies say
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("client %q is no address; write client=ip:192.0.2.7", w.Client)
		}
		c.addr = addr.Unmap()
	}
	return c, nil
}

// hashSuffix ends the kind of a client whose identifier is too long and counts by its hash.
const hashSuffix = "-sha256"

// knownKind returns the kind of a client as it stands in keys; ok is false if no client is of that kind.
func knownKind(kind string) (known string, ok bool) {
	switch strings.TrimSuffix(kind, hashSuffix) {
	case "user", "api_key", "ip":
		return kind, true
	}
	word, name, _ := strings.Cut(kind, ".")
	if word == "header" { // which are the same however they are written
		kind = strings.ToLower(kind)
	}
	return kind, name != "" && (word == "header" || word == "cookie" || word == "attr")
}

// String returns the client as KIND:ID.
func (c *Client) String() string { return c.who.Kind + ":" + c.who.ID }

// In returns who that is under a policy: how much of an address is one client is the policy's to say, and where the rest
// comes from that was not said.
func (c *Client) In(rs *core.Ruleset) core.Identity {
	if !c.addr.IsValid() {
		return c.who
	}
	var found core.Plan
	found.AddAll(rs, c, 0)
	who := found.Identity()
	who.User, who.Tier, who.Tenant = cmp.Or(c.who.User, who.User), cmp.Or(c.who.Tier, who.Tier), cmp.Or(c.who.Tenant, who.Tenant)
	return who
}

var _ core.Attributes = (*Client)(nil)

// Path returns "/". Together with what follows it is the request that stands for everything else that rules count by.
func (c *Client) Path() string { return "/" }

// Method returns GET.
func (c *Client) Method() string { return http.MethodGet }

// Host returns the host that was said.
func (c *Client) Host() string { return c.host }

// Query returns "".
func (c *Client) Query() string { return "" }

// Header returns "": none was said.
func (c *Client) Header(string) (string, bool) { return "", false }

// Attr returns "": none was said.
func (c *Client) Attr(string) (string, bool) { return "", false }

// Peer returns the address of a client that is one.
func (c *Client) Peer() netip.Addr { return c.addr }

// Remote returns the same as Peer.
func (c *Client) Remote() netip.Addr { return c.addr }

// Now returns this moment.
func (c *Client) Now() core.Micros { return core.Micros(time.Now().UnixMicro()) }
