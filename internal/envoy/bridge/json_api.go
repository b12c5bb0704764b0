// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/response"
)

// description is the JSON description of a request. Missing members are empty.
type description struct {
	Method  string            `json:"method"` // default GET
	Path    string            `json:"path"`   // with or without a query; default /
	Host    string            `json:"host"`
	IP      netip.Addr        `json:"ip"`     // the client's address, as the front sees it
	Remote  netip.Addr        `json:"remote"` // the peer of the connection; default ip
	Headers map[string]string `json:"headers"`
	Attrs   map[string]string `json:"attrs"`
}

// jsonDecision is the JSON form of a decision. Seconds are whole numbers, as in the header fields.
type jsonDecision struct {
	Outcome    string            `json:"outcome"`
	Status     int               `json:"status,omitempty"` // the status of the denial
	Rule       string            `json:"rule,omitempty"`
	Limit      int64             `json:"limit,omitempty"`
	Remaining  *int64            `json:"remaining,omitempty"`
	Reset      string            `json:"reset,omitempty"`       // Unix seconds
	RetryAfter string            `json:"retry_after,omitempty"` // seconds
	Wait       string            `json:"wait,omitempty"`        // how long a throttle rule would delay the request, as a Go duration
	Client     *client           `json:"client,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"` // the header fields of the response
	Body       json.RawMessage   `json:"body,omitempty"`    // the body of the denial
	Version    string            `json:"policy_version"`
	Degraded   bool              `json:"degraded,omitempty"` // whether the store did not answer, and on_error decided
}

type client struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	User   string `json:"user,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// serveJSON decides one request that is described in JSON, by the policy in force, and charges it
// like any other request.
func (b *Bridge) serveJSON(w http.ResponseWriter, r *http.Request, c *call) {
	answer, err := b.answerJSON(r, c)
	if err != nil {
		b.reject(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // the caller may have left
}

// answerJSON decides one request described in JSON. Requests of one address may use at most half
// of CallsMax, so that requests of other addresses are decided too.
func (b *Bridge) answerJSON(r *http.Request, c *call) (t jsonDecision, err error) {
	if !b.enter() {
		return t, errFull
	}
	defer b.leave()
	request, err := readDescription(c.body)
	if err != nil {
		return t, malformedError{err}
	}
	b.metrics.answered.Inc()
	b.metrics.questions.Observe(1)
	q := c.next()
	c.used++ // so that the question is released at the end of the call
	q.item.Kind, q.item.Ask.Known = 0, 0
	q.reset(b, b.policy.Current(), micros(time.Now()))
	q.span = b.options.Tracer.Within(r.Header.Get(core.TraceHeader))
	c.left = verifyTime
	q.ask(&described{description: request, now: q.now}, &c.left)
	from := b.clients.Of(uint64(q.plan.Source()))
	defer from.Leave()
	if ok := from.Enter(b.options.CallsMax); !ok && q.plan.Source() != 0 {
		return t, errFull
	}
	b.resolve(r.Context(), c.questions[:1])
	q.prepare()
	var d core.Decision
	switch {
	case len(q.first) == 0:
		d = q.decide(nil)
	case len(q.throttled) == 0:
		if d, err = q.takeJSON(r.Context()); err != nil {
			return t, err
		}
	default:
		var answered bool
		if d, answered = q.Ask(q.first); answered {
			d = q.decide(nil)
		}
	}
	b.metrics.statuses[q.answer.Status].Inc()
	return q.jsonDecision(&d), nil
}

// readDescription reads a description and rejects unknown members. If a misspelled member were
// ignored, another request would be decided.
func readDescription(data []byte) (*description, error) {
	const example = `; write for example {"method":"GET","path":"/api/x","ip":"192.0.2.7","headers":{"X-API-Key":"k"}}`
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	a := &description{Method: http.MethodGet, Path: "/"}
	if err := decoder.Decode(a); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, fmt.Errorf("the request cannot be read: %w%s", err, example)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is data after the request; send one request at a time" + example)
	}
	if !strings.HasPrefix(a.Path, "/") {
		return nil, fmt.Errorf("path %q does not begin with a slash%s", a.Path, example)
	}
	if !a.Remote.IsValid() {
		a.Remote = a.IP
	}
	headers := make(map[string]string, len(a.Headers))
	for name, value := range a.Headers {
		canonical := http.CanonicalHeaderKey(name)
		if _, twice := headers[canonical]; twice {
			return nil, fmt.Errorf("header %q is listed twice, in different case%s", name, example)
		}
		headers[canonical] = value
	}
	a.Headers = headers
	return a, nil
}

// jsonDecision converts a decision to its JSON form.
func (q *question) jsonDecision(d *core.Decision) jsonDecision {
	var writer response.Writer
	fields := writer.Headers(&q.plan, d)
	t := jsonDecision{Outcome: d.Outcome.String(), Status: d.Status, Rule: d.Rule, Reset: fields[response.FieldReset],
		RetryAfter: fields[response.FieldRetryAfter],
		Version:    q.version.ID, Headers: map[string]string{},
		Degraded: d.Degraded}
	if d.Limit != nil {
		t.Limit, t.Remaining = d.Limit.Capacity(), &d.Remaining
	}
	if d.Delay > 0 {
		t.Wait = d.Delay.String()
	}
	if id := d.Client; id.ID != "" {
		t.Client = &client{Kind: id.Kind, ID: id.ID, User: id.User, Tier: id.Tier, Tenant: id.Tenant}
	}
	for _, f := range [...]struct{ name, value string }{{"X-RateLimit-Limit", fields[response.FieldLimit]},
		{"X-RateLimit-Remaining", fields[response.FieldRemaining]}, {"X-RateLimit-Reset", fields[response.FieldReset]}, {"X-RateLimit-Cost", fields[response.FieldCost]},
		{"RateLimit", fields[response.FieldRateLimit]}, {"RateLimit-Policy", fields[response.FieldPolicy]}, {"Retry-After", fields[response.FieldRetryAfter]},
		{"WWW-Authenticate", response.Challenge(d)}} {
		if f.value != "" {
			t.Headers[f.name] = f.value
		}
	}
	if d.Denied() {
		t.Headers["Content-Type"] = response.ContentType(d)
		body := response.AppendProblem(nil, &q.plan, d)
		if !json.Valid(body) {
			body, _ = json.Marshal(string(body)) // a string can always be marshaled
		}
		t.Body = body
	}
	return t
}

// described implements [policy.Attributes] for a request that is described in JSON.
type described struct {
	*description
	now counter.Micros
}

// Path implements [policy.Attributes].
func (d *described) Path() string {
	path, _, _ := strings.Cut(d.description.Path, "?")
	return path
}

// Query implements [policy.Attributes].
func (d *described) Query() string {
	_, query, _ := strings.Cut(d.description.Path, "?")
	return query
}

func (d *described) Method() string      { return d.description.Method }
func (d *described) Host() string        { return d.description.Host }
func (d *described) Peer() netip.Addr    { return d.description.IP }
func (d *described) Remote() netip.Addr  { return d.description.Remote }
func (d *described) Now() counter.Micros { return d.now }

// Header implements [policy.Attributes]. Spaces around a value are removed, although some servers
// keep them.
func (d *described) Header(name string) (string, bool) {
	value, ok := d.Headers[name]
	return strings.Trim(value, " \t"), ok
}

// Attr implements [policy.Attributes].
func (d *described) Attr(name string) (string, bool) {
	value, ok := d.Attrs[name]
	return value, ok
}

var _ policy.Attributes = (*described)(nil)
