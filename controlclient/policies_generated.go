// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"encoding/json"
	"iter"
	"time"
)

// ListPoliciesOptions are the optional parameters of [Client.ListPolicies].
type ListPoliciesOptions struct {
	// After: the field next of the previous page's answer
	After string
	Limit int64
}

// ListPolicies calls GET /v1/policies: List policies with their publication. Needs the role
// viewer or one above.
func (c *Client) ListPolicies(ctx context.Context, o ListPoliciesOptions) (*PoliciesAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/policies"
	r.text("after", o.After)
	r.number("limit", o.Limit)
	answer, _, err := call[PoliciesAnswer](ctx, c, r)
	return answer, err
}

// AllPolicies returns the items of all pages of [Client.ListPolicies], from o.After on. It
// ends after the first error.
func (c *Client) AllPolicies(ctx context.Context, o ListPoliciesOptions) iter.Seq2[Policy, error] {
	return pages(o.After, func(page string) ([]Policy, string, error) {
		o := o
		o.After = page
		answer, err := c.ListPolicies(ctx, o)
		if err != nil {
			return nil, "", err
		}
		return answer.Policies, answer.Next, nil
	})
}

// GetPolicyOptions are the optional parameters of [Client.GetPolicy].
type GetPolicyOptions struct {
	// Revision: default: the latest
	Revision int64
}

// GetPolicy calls GET /v1/policies/{policy}: Get a revision of a policy. Needs the role
// viewer or one above.
func (c *Client) GetPolicy(ctx context.Context, policy string, o GetPolicyOptions) (*PolicyAnswer, ETag, error) {
	r := newRequest("GET")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "")
	r.number("revision", o.Revision)
	return call[PolicyAnswer](ctx, c, r)
}

// PutPolicy calls PUT /v1/policies/{policy}: Write a revision of a policy, without
// publishing it. Needs the role editor or one above.
func (c *Client) PutPolicy(ctx context.Context, policy string, when Condition, body PutPolicy) (*Revision, ETag, error) {
	r := newRequest("PUT")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "")
	r.condition(when)
	r.json(body)
	return call[Revision](ctx, c, r)
}

// DiffPolicyOptions are the optional parameters of [Client.DiffPolicy].
type DiffPolicyOptions struct {
	// To: default: the latest
	To int64
}

// DiffPolicy calls GET /v1/policies/{policy}/diff: Compare two revisions of a policy. Needs
// the role viewer or one above.
func (c *Client) DiffPolicy(ctx context.Context, policy string, from int64, o DiffPolicyOptions) (*DiffAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/diff")
	r.number("from", from)
	r.number("to", o.To)
	answer, _, err := call[DiffAnswer](ctx, c, r)
	return answer, err
}

// ExplainRequest calls POST /v1/policies/{policy}/explanation: Explain which rules apply to
// a request, without charging. Needs the role viewer or one above.
func (c *Client) ExplainRequest(ctx context.Context, policy string, body ExplainRequest) (*ExplanationAnswer, error) {
	r := newRequest("POST")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/explanation")
	r.json(body)
	answer, _, err := call[ExplanationAnswer](ctx, c, r)
	return answer, err
}

// PublishPolicy calls POST /v1/policies/{policy}/publication: Publish a revision to nodes,
// or withdraw the candidate. Needs the role editor or one above.
func (c *Client) PublishPolicy(ctx context.Context, policy string, body PublishPolicy) (*Policy, error) {
	r := newRequest("POST")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/publication")
	r.json(body)
	answer, _, err := call[Policy](ctx, c, r)
	return answer, err
}

// GetPublishedPolicy calls GET /v1/policies/{policy}/published: Get the signed text that is
// published to nodes, for nodes without Redis. Needs the role viewer or one above, or a
// token of the role node. If known is its ETag, the error is an [*Error] with the status
// 304.
func (c *Client) GetPublishedPolicy(ctx context.Context, policy string, known ETag) ([]byte, ETag, error) {
	r := newRequest("GET")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/published")
	r.field("If-None-Match", string(known))
	text, header, err := c.send(ctx, r)
	return text, ETag(header.Get("ETag")), err
}

// ListRevisionsOptions are the optional parameters of [Client.ListRevisions].
type ListRevisionsOptions struct {
	// Before: the field next of the previous page's answer
	Before int64
	Limit  int64
}

// ListRevisions calls GET /v1/policies/{policy}/revisions: List the revisions of a policy.
// Needs the role viewer or one above.
func (c *Client) ListRevisions(ctx context.Context, policy string, o ListRevisionsOptions) (*RevisionsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/revisions")
	r.number("before", o.Before)
	r.number("limit", o.Limit)
	answer, _, err := call[RevisionsAnswer](ctx, c, r)
	return answer, err
}

// AllRevisions returns the items of all pages of [Client.ListRevisions], from o.Before on.
// It ends after the first error.
func (c *Client) AllRevisions(ctx context.Context, policy string, o ListRevisionsOptions) iter.Seq2[Revision, error] {
	return pages(o.Before, func(page int64) ([]Revision, int64, error) {
		o := o
		o.Before = page
		answer, err := c.ListRevisions(ctx, policy, o)
		if err != nil {
			return nil, 0, err
		}
		return answer.Revisions, answer.Next, nil
	})
}

// RollBackPolicy calls POST /v1/policies/{policy}/rollback: Write a revision with the
// content of an earlier one, without publishing it. Needs the role editor or one above.
func (c *Client) RollBackPolicy(ctx context.Context, policy string, when Condition, body RollBack) (*Revision, ETag, error) {
	r := newRequest("POST")
	r.path = "/v1/policies/"
	r.segment("policy", policy, "/rollback")
	r.condition(when)
	r.json(body)
	return call[Revision](ctx, c, r)
}

// PoliciesAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema PoliciesAnswerBody.
type PoliciesAnswer struct {
	// Next: pass it as the parameter after to get the next page; absent on the last page
	Next     string   `json:"next,omitempty"`
	Policies []Policy `json:"policies"`
}

// Policy is the JSON object that the OpenAPI document of the API describes in the schema
// Policy.
type Policy struct {
	// Head: the latest revision
	Head   int64  `json:"head"`
	Policy string `json:"policy"`
	// Promotion: the promotion of a candidate that is to be published to all nodes
	// automatically
	Promotion   *Promotion  `json:"promotion,omitempty"`
	Publication Publication `json:"publication"`
}

// Promotion is the JSON object that the OpenAPI document of the API describes in the schema
// Promotion.
type Promotion struct {
	// At: when the candidate is published to all nodes, if nodes go on reporting and its
	// denials stay within the bound
	At time.Time `json:"at,omitzero"`
	// ObservedSeconds: how long the candidate was observed in the region that has observed it
	// for the shortest time
	ObservedSeconds int64 `json:"observed_seconds"`
	// Obstacle: why the time of the publication is not known
	Obstacle string `json:"obstacle,omitempty"`
}

// Publication is the JSON object that the OpenAPI document of the API describes in the
// schema Publication.
type Publication struct {
	// Candidate: the revision in shadow, or in force for a share of the nodes or of the
	// clients
	Candidate int64 `json:"candidate,omitempty"`
	// ClientSharePercent: the share of the clients on all nodes, for the step share
	ClientSharePercent float64 `json:"client_share_percent,omitempty"`
	// DenialsMaxPercent: the candidate is withdrawn if it denies a greater share of requests
	DenialsMaxPercent float64 `json:"denials_max_percent,omitempty"`
	// Generation: a number that rises with each publication; 0 before the first
	Generation int64 `json:"generation"`
	// PromoteAfterSeconds: the candidate is published to all nodes automatically when it has
	// been observed for this time within its bound on denials
	PromoteAfterSeconds int64 `json:"promote_after_seconds,omitempty"`
	// Revision: the revision in force on all nodes and for all clients, or for those that do
	// not have the candidate; 0 before the first publication
	Revision int64 `json:"revision"`
	// SharePercent: the share of the nodes, for the step share
	SharePercent float64 `json:"share_percent,omitempty"`
	// Step: one of shadow, share
	Step string `json:"step,omitempty"`
}

// PolicyAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema PolicyAnswerBody.
type PolicyAnswer struct {
	Action string    `json:"action"`
	Actor  string    `json:"actor"`
	At     time.Time `json:"at"`
	// Document: the policy, in the form of a policy file in JSON
	Document json.RawMessage `json:"document"`
	// Head: the latest revision
	Head        int64       `json:"head"`
	Policy      string      `json:"policy"`
	Publication Publication `json:"publication"`
	Reason      string      `json:"reason"`
	Revision    int64       `json:"revision"`
	// Unchanged: the write has the content of this revision, which was the latest already
	Unchanged bool `json:"unchanged,omitempty"`
	// Version: a hash of the content, as nodes report it
	Version string `json:"version"`
}

// PutPolicy is the JSON object that the OpenAPI document of the API describes in the schema
// PutPolicyBody.
type PutPolicy struct {
	// File: the name of the file, for the positions of problems
	File string `json:"file,omitempty"`
	// Format: one of yaml, toml, json
	Format string `json:"format"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Text: the policy, as in a policy file
	Text string `json:"text"`
}

// Revision is the JSON object that the OpenAPI document of the API describes in the schema
// Revision.
type Revision struct {
	Action   string    `json:"action"`
	Actor    string    `json:"actor"`
	At       time.Time `json:"at"`
	Policy   string    `json:"policy"`
	Reason   string    `json:"reason"`
	Revision int64     `json:"revision"`
	// Unchanged: the write has the content of this revision, which was the latest already
	Unchanged bool `json:"unchanged,omitempty"`
	// Version: a hash of the content, as nodes report it
	Version string `json:"version"`
}

// DiffAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema DiffAnswerBody.
type DiffAnswer struct {
	// Added: names of rules
	Added []string `json:"added"`
	// Anew: counters that start at zero, with the reason
	Anew []string `json:"anew"`
	// Changed: rules with the fields that differ
	Changed []string `json:"changed"`
	From    int64    `json:"from"`
	// Removed: names of rules
	Removed []string `json:"removed"`
	To      int64    `json:"to"`
	// Words: fields of the policy itself that differ
	Words []string `json:"words"`
}

// ExplainRequest is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainRequestBody.
type ExplainRequest struct {
	// Attributes: attributes of the proxy
	Attributes map[string]string `json:"attributes,omitempty"`
	// Client: KIND:ID, instead of a token or an API key in the headers
	Client string `json:"client,omitempty"`
	// Counters: read the counters in Redis, without charging
	Counters bool                `json:"counters,omitempty"`
	Headers  map[string][]string `json:"headers,omitempty"`
	Host     string              `json:"host,omitempty"`
	// IP: the client's address, as the proxy reports it
	IP     string `json:"ip,omitempty"`
	Method string `json:"method,omitempty"`
	// Path: the path with its query, if it has one
	Path string `json:"path"`
	// Region: the region whose limits and counters are meant, if there are regions
	Region string `json:"region,omitempty"`
	// Remote: the address of the connection; default: the client's
	Remote string `json:"remote,omitempty"`
	// Revision: default: the revision in force on all nodes, or the latest if none is in force
	Revision int64 `json:"revision,omitempty"`
	// Tenant: the tenant of the client, by its token or key
	Tenant string `json:"tenant,omitempty"`
	// Tier: the tier of the client, by its token or key
	Tier string `json:"tier,omitempty"`
	// User: the user whom the client's token or key names, if it names one
	User string `json:"user,omitempty"`
}

// ExplanationAnswer is the JSON object that the OpenAPI document of the API describes in
// the schema ExplanationAnswerBody.
type ExplanationAnswer struct {
	Address string `json:"address"`
	// Client: null if the request has none
	Client   ExplainedClient   `json:"client"`
	Decision ExplainedDecision `json:"decision"`
	Disabled bool              `json:"disabled,omitempty"`
	// Listed: the entry of block or exempt that matched, with its reason
	Listed  string            `json:"listed,omitempty"`
	Methods []ExplainedMethod `json:"methods"`
	Penalty *ExplainedPenalty `json:"penalty,omitempty"`
	Policy  string            `json:"policy"`
	// Records: the records of the request's client and networks, and of its API key
	Records       []FoundRecord `json:"records"`
	RecordsUnread bool          `json:"records_unread,omitempty"`
	// Revision: the revision of the policy
	Revision int64           `json:"revision"`
	Rules    []ExplainedRule `json:"rules"`
	// Store: where the counters were read; absent if they count as unused
	Store string `json:"store,omitempty"`
	// Unknown: what cannot be known of a named client, with the reason
	Unknown []string `json:"unknown,omitempty"`
}

// ExplainedClient is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainedClient.
type ExplainedClient struct {
	ApiKey string `json:"api_key,omitempty"`
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	// LimitsFor: rules for which the client has its own limits
	LimitsFor []string `json:"limits_for,omitempty"`
	Tenant    string   `json:"tenant,omitempty"`
	Tier      string   `json:"tier,omitempty"`
	User      string   `json:"user,omitempty"`
}

// ExplainedDecision is the JSON object that the OpenAPI document of the API describes in
// the schema ExplainedDecision.
type ExplainedDecision struct {
	DelayMs int64  `json:"delay_ms,omitempty"`
	Outcome string `json:"outcome"`
	// RetryAfterMs: null: never enough for the cost
	RetryAfterMs *int64 `json:"retry_after_ms"`
	Rule         string `json:"rule,omitempty"`
	Status       int64  `json:"status,omitempty"`
	Why          string `json:"why,omitempty"`
}

// ExplainedMethod is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainedMethod.
type ExplainedMethod struct {
	Fate   string `json:"fate"`
	Method string `json:"method"`
	Reason string `json:"reason,omitempty"`
}

// ExplainedPenalty is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainedPenalty.
type ExplainedPenalty struct {
	InForce    bool   `json:"in_force"`
	Key        string `json:"key"`
	Violations int64  `json:"violations"`
	WaitMs     *int64 `json:"wait_ms"`
}

// ExplainedRule is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainedRule.
type ExplainedRule struct {
	Action string           `json:"action"`
	Checks []ExplainedCheck `json:"checks,omitempty"`
	// Fate: applies, or why it does not
	Fate   string `json:"fate"`
	Hidden bool   `json:"hidden,omitempty"`
	// LimitsOf: whose limits are used: the rule's, a tier's or the client's own
	LimitsOf       string `json:"limits_of,omitempty"`
	LostTo         string `json:"lost_to,omitempty"`
	Name           string `json:"name"`
	Outcome        string `json:"outcome,omitempty"`
	Shards         int64  `json:"shards,omitempty"`
	ShardsRefusing int64  `json:"shards_refusing,omitempty"`
	Unlimited      bool   `json:"unlimited,omitempty"`
}

// ExplainedCheck is the JSON object that the OpenAPI document of the API describes in the
// schema ExplainedCheck.
type ExplainedCheck struct {
	Capacity  int64  `json:"capacity"`
	Cost      int64  `json:"cost"`
	Key       string `json:"key"`
	Limit     string `json:"limit"`
	Name      string `json:"name"`
	Refuses   bool   `json:"refuses"`
	Remaining int64  `json:"remaining"`
	ResetMs   *int64 `json:"reset_ms"`
	Used      int64  `json:"used"`
	// WaitMs: null: never enough for the cost
	WaitMs *int64 `json:"wait_ms"`
}

// PublishPolicy is the JSON object that the OpenAPI document of the API describes in the
// schema PublishPolicyBody.
type PublishPolicy struct {
	// ClientSharePercent: the share of the clients on all nodes, for the step share; it
	// replaces share_percent; an answer 422 names nodes that cannot decide by the client
	ClientSharePercent float64 `json:"client_share_percent,omitempty"`
	// DenialsMaxPercent: for the step share: withdraw the candidate if it denies a greater
	// share of requests
	DenialsMaxPercent float64 `json:"denials_max_percent,omitempty"`
	// Generation: the generation that must be present; otherwise the answer is 412
	Generation int64 `json:"generation,omitempty"`
	// PromoteAfterSeconds: for the step share with denials_max_percent, from 60 to 2678400:
	// publish the candidate to all nodes automatically when each region that serves the policy
	// has observed it for this time within its bound on denials
	PromoteAfterSeconds int64 `json:"promote_after_seconds,omitempty"`
	// Reason: why, for the history
	Reason string `json:"reason"`
	// Revision: default: the latest
	Revision int64 `json:"revision,omitempty"`
	// SharePercent: the share of the nodes, for the step share
	SharePercent float64 `json:"share_percent,omitempty"`
	// Step: one of shadow, share, all, withdraw
	Step string `json:"step"`
}

// RevisionsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema RevisionsAnswerBody.
type RevisionsAnswer struct {
	// Next: pass it as the parameter before to get the next page; absent on the last page
	Next int64 `json:"next,omitempty"`
	// Revisions: the latest first
	Revisions []Revision `json:"revisions"`
}

// RollBack is the JSON object that the OpenAPI document of the API describes in the schema
// RollBackBody.
type RollBack struct {
	// Reason: why, for the history
	Reason   string `json:"reason"`
	Revision int64  `json:"revision"`
}
