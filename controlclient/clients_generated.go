// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// ListClientsOptions are the optional parameters of [Client.ListClients].
type ListClientsOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
	Kind  string
	Tier  string
	// Blocked: only those that are blocked now
	Blocked bool
	// Exempt: only those that are exempt now
	Exempt bool
}

// ListClients calls GET /v1/clients: List clients that have a record. Needs the role viewer
// or one above.
func (c *Client) ListClients(ctx context.Context, o ListClientsOptions) (*ClientsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/clients"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	r.text("kind", o.Kind)
	r.text("tier", o.Tier)
	r.truth("blocked", o.Blocked)
	r.truth("exempt", o.Exempt)
	answer, _, err := call[ClientsAnswer](ctx, c, r)
	return answer, err
}

// AllClients returns the items of all pages of [Client.ListClients], from o.After on. It
// ends after the first error.
func (c *Client) AllClients(ctx context.Context, o ListClientsOptions) iter.Seq2[ClientEntry, error] {
	return pages(o.After, func(page string) ([]ClientEntry, string, error) {
		o := o
		o.After = page
		answer, err := c.ListClients(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Clients, answer.Next, nil
	})
}

// GetClient calls GET /v1/clients/{client}: Get a client's record. Needs the role viewer or
// one above.
func (c *Client) GetClient(ctx context.Context, client string) (*ClientEntry, ETag, error) {
	r := newRequest("GET")
	r.path = "/v1/clients/"
	r.segment("client", client, "")
	return call[ClientEntry](ctx, c, r)
}

// PatchClient calls PATCH /v1/clients/{client}: Replace tier, tenant or note of a client.
// Needs the role editor or one above.
func (c *Client) PatchClient(ctx context.Context, client string, when Condition, body PatchClient) (*Changed, ETag, error) {
	r := newRequest("PATCH")
	r.path = "/v1/clients/"
	r.segment("client", client, "")
	r.condition(when)
	r.json(body)
	return call[Changed](ctx, c, r)
}

// PutClient calls PUT /v1/clients/{client}: Replace a client's record. Needs the role
// editor or one above. A block or an exemption of a network wider than /8 (IPv4) or /19
// (IPv6) needs the role admin.
func (c *Client) PutClient(ctx context.Context, client string, when Condition, body PutClient) (*Changed, ETag, error) {
	r := newRequest("PUT")
	r.path = "/v1/clients/"
	r.segment("client", client, "")
	r.condition(when)
	r.json(body)
	return call[Changed](ctx, c, r)
}

// ListClientChangesOptions are the optional parameters of [Client.ListClientChanges].
type ListClientChangesOptions struct {
	// Before: the field next of the previous page's answer
	Before int64
	Limit  int64
}

// ListClientChanges calls GET /v1/clients/{client}/changes: List the changes of a client.
// Needs the role viewer or one above.
func (c *Client) ListClientChanges(ctx context.Context, client string, o ListClientChangesOptions) (*ChangesAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/clients/"
	r.segment("client", client, "/changes")
	r.number("before", o.Before)
	r.number("limit", o.Limit)
	answer, _, err := call[ChangesAnswer](ctx, c, r)
	return answer, err
}

// AllClientChanges returns the items of all pages of [Client.ListClientChanges], from
// o.Before on. It ends after the first error.
func (c *Client) AllClientChanges(ctx context.Context, client string, o ListClientChangesOptions) iter.Seq2[Change, error] {
	return pages(o.Before, func(page int64) ([]Change, int64, error) {
		o := o
		o.Before = page
		answer, err := c.ListClientChanges(ctx, client, o)
		if err != nil {
			return nil, 0, err
		}
		return answer.Changes, answer.Next, nil
	})
}

// EditClient calls POST /v1/clients/{client}/edits: Make one edit of a client, as penstock
// client does. Needs the role support or one above. A block or an exemption of a network
// wider than /8 (IPv4) or /19 (IPv6) needs the role admin.
func (c *Client) EditClient(ctx context.Context, client string, when Condition, body EditClient) (*Changed, ETag, error) {
	r := newRequest("POST")
	r.path = "/v1/clients/"
	r.segment("client", client, "/edits")
	r.condition(when)
	r.json(body)
	return call[Changed](ctx, c, r)
}

// ForgetUsage calls POST /v1/clients/{client}/forgetting: Remove the name of a client from
// events, usage and denials, and its notices; sums stay. Needs the role admin or one above.
func (c *Client) ForgetUsage(ctx context.Context, client string, body ForgetClient) (*Forgotten, error) {
	r := newRequest("POST")
	r.path = "/v1/clients/"
	r.segment("client", client, "/forgetting")
	r.json(body)
	answer, _, err := call[Forgotten](ctx, c, r)
	return answer, err
}

// GetRemainingOptions are the optional parameters of [Client.GetRemaining].
type GetRemainingOptions struct {
	// Policy: only this policy
	Policy string
	// Rule: only this rule
	Rule string
	// Region: the region whose limits and counters are meant, if there are regions
	Region string
	// Host: the host of the requests, if rules count per host
	Host string
	// User: the user whom the client's token or key names, if it names one
	User string
	// Tier: the tier of the client, by its token or key
	Tier string
	// Tenant: the tenant of the client, by its token or key
	Tenant string
}

// GetRemaining calls GET /v1/clients/{client}/remaining: Get what a client has left of its
// limits, without charging. Needs the role viewer or one above.
func (c *Client) GetRemaining(ctx context.Context, client string, o GetRemainingOptions) (*RemainingAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/clients/"
	r.segment("client", client, "/remaining")
	r.text("policy", o.Policy)
	r.text("rule", o.Rule)
	r.text("region", o.Region)
	r.text("host", o.Host)
	r.text("user", o.User)
	r.text("tier", o.Tier)
	r.text("tenant", o.Tenant)
	answer, _, err := call[RemainingAnswer](ctx, c, r)
	return answer, err
}

// ClientsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema ClientsAnswerBody.
type ClientsAnswer struct {
	Clients []ClientEntry `json:"clients"`
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next string `json:"next,omitempty"`
}

// ClientEntry is the JSON object that the OpenAPI document of the API describes in the
// schema Client.
type ClientEntry struct {
	// Client: KIND:ID
	Client string `json:"client"`
	Record Record `json:"record"`
	// Revision: the number of the latest change
	Revision  int64     `json:"revision"`
	UpdatedAt time.Time `json:"updated_at"`
}

// Record is the JSON object that the OpenAPI document of the API describes in the schema
// Record.
type Record struct {
	Block  *Mark             `json:"block,omitempty"`
	Exempt *Mark             `json:"exempt,omitempty"`
	Grants []Grant           `json:"grants,omitempty"`
	Limits map[string]Limits `json:"limits,omitempty"`
	Note   string            `json:"note,omitempty"`
	Tenant string            `json:"tenant,omitempty"`
	Tier   string            `json:"tier,omitempty"`
	V      int64             `json:"v,omitempty"`
}

// Mark is the JSON object that the OpenAPI document of the API describes in the schema
// Mark.
type Mark struct {
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

// Grant is the JSON object that the OpenAPI document of the API describes in the schema
// Grant.
type Grant struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
	Rule   string    `json:"rule"`
	Units  int64     `json:"units"`
	Window string    `json:"window,omitempty"`
}

// Limits is the JSON object that the OpenAPI document of the API describes in the schema
// Limits.
type Limits struct {
	Limits []string  `json:"limits"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"`
}

// PatchClient is the body of a change. A field that is nil stays as it is.
type PatchClient struct {
	// Note: empty removes it
	Note *string `json:"note,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Tenant: empty removes it
	Tenant *string `json:"tenant,omitempty"`
	// Tier: empty removes it
	Tier *string `json:"tier,omitempty"`
}

// Changed is the JSON object that the OpenAPI document of the API describes in the schema
// Changed.
type Changed struct {
	// After: the record after the change; absent if there is none
	After *Record `json:"after,omitempty"`
	// Before: the record before the change; absent if there was none
	Before *Record `json:"before,omitempty"`
	Client string  `json:"client"`
	// KeysRemoved: how many API keys of the client were removed, by forget
	KeysRemoved int64 `json:"keys_removed,omitempty"`
	// Revision: the number of this change
	Revision int64 `json:"revision"`
}

// PutClient is the JSON object that the OpenAPI document of the API describes in the schema
// PutClientBody.
type PutClient struct {
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Record: the whole record, as it is in Redis
	Record Record `json:"record"`
}

// EditClient is the JSON object that the OpenAPI document of the API describes in the
// schema EditClientBody.
type EditClient struct {
	// Action: one of set-tier, unset-tier, set-tenant, set-limit, unset-limit, grant, ungrant,
	// block, unblock, exempt, unexempt, note, forget
	Action string `json:"action"`
	// Limits: for set-limit: as in a policy, or only unlimited
	Limits []string `json:"limits,omitempty"`
	// Note: for note; empty removes it
	Note string `json:"note,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Rule: for set-limit, unset-limit, grant and ungrant: the name of a rule; for limits also
	// *
	Rule string `json:"rule,omitempty"`
	// Tenant: for set-tenant
	Tenant string `json:"tenant,omitempty"`
	// Tier: for set-tier
	Tier string `json:"tier,omitempty"`
	// Units: for grant: how many units the client may use once, beyond its limit
	Units int64 `json:"units,omitempty"`
	// Until: for set-limit, block and exempt: the end; absent for none
	Until time.Time `json:"until,omitzero"`
	// Window: for grant: the window of the limit, such as 1h or month; absent for the longest
	Window string `json:"window,omitempty"`
}

// ForgetClient is the JSON object that the OpenAPI document of the API describes in the
// schema ForgetClientBody.
type ForgetClient struct {
	// Reason: why, for the history
	Reason string `json:"reason"`
}

// Forgotten is the JSON object that the OpenAPI document of the API describes in the schema
// Forgotten.
type Forgotten struct {
	// Denials: rows of hours; their sums are kept without the name
	Denials int64 `json:"denials"`
	Events  int64 `json:"events"`
	// Usage: rows of days; their sums are kept without the name
	Usage int64 `json:"usage"`
}

// RemainingAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema RemainingAnswerBody.
type RemainingAnswer struct {
	Client string `json:"client"`
	// Counters: a counter of each limit that counts the client
	Counters  []Counter `json:"counters"`
	Penalties []Penalty `json:"penalties"`
	// Profiles: what is known of the client under each policy
	Profiles []Profile `json:"profiles"`
	// Record: the client's own; absent if it has none
	Record *Record `json:"record,omitempty"`
	// Records: the records of the client, of its networks and of its API key
	Records []FoundRecord `json:"records"`
	Region  string        `json:"region,omitempty"`
}

// Counter is the JSON object that the OpenAPI document of the API describes in the schema
// Counter.
type Counter struct {
	Gossip       bool      `json:"gossip,omitempty"`
	Granted      int64     `json:"granted,omitempty"`
	GrantedUntil time.Time `json:"granted_until,omitzero"`
	Key          string    `json:"key"`
	Limit        string    `json:"limit"`
	Policy       string    `json:"policy"`
	Remaining    int64     `json:"remaining"`
	ResetMs      int64     `json:"reset_ms"`
	Rule         string    `json:"rule"`
	ShardOf      string    `json:"shard_of,omitempty"`
	Shared       bool      `json:"shared,omitempty"`
	Used         int64     `json:"used"`
	WaitMs       int64     `json:"wait_ms"`
	Whose        string    `json:"whose"`
}

// Penalty is the JSON object that the OpenAPI document of the API describes in the schema
// Penalty.
type Penalty struct {
	InForce    bool   `json:"in_force"`
	Key        string `json:"key"`
	Policy     string `json:"policy"`
	Violations int64  `json:"violations"`
	WaitMs     int64  `json:"wait_ms"`
}

// Profile is the JSON object that the OpenAPI document of the API describes in the schema
// Profile.
type Profile struct {
	From      string   `json:"from,omitempty"`
	OwnLimits []string `json:"own_limits,omitempty"`
	Policy    string   `json:"policy"`
	State     string   `json:"state,omitempty"`
	Tenant    string   `json:"tenant,omitempty"`
	Tier      string   `json:"tier,omitempty"`
	Unknown   []Gap    `json:"unknown,omitempty"`
	User      string   `json:"user,omitempty"`
}

// Gap is the JSON object that the OpenAPI document of the API describes in the schema Gap.
type Gap struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// FoundRecord is the JSON object that the OpenAPI document of the API describes in the
// schema FoundRecord.
type FoundRecord struct {
	// Name: KIND:ID of the client or network, or ~key: and the SHA-256 of the API key
	Name   string          `json:"name"`
	Record json.RawMessage `json:"record"`
}
