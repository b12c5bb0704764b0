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
)

// asked is a request as people describe it. What is left out is empty.
type asked struct {
	Method  string            `json:"method"` // GET if left out
	Path    string            `json:"path"`   // with or without a query; / if left out
	Host    string            `json:"host"`
	IP      netip.Addr        `json:"ip"`     // of the client, as the front knows it
	Remote  netip.Addr        `json:"remote"` // of whoever holds the connection; ip if left out
	Headers map[string]string `json:"headers"`
	Attrs   map[string]string `json:"attrs"`
}

// told is a decision as people read it. Seconds are whole, as in the header fields.
type told struct {
	Outcome    string            `json:"outcome"`
	Status     int               `json:"status,omitempty"` // of the refusal
	Rule       string            `json:"rule,omitempty"`
	Limit      int64             `json:"limit,omitempty"`
	Remaining  *int64            `json:"remaining,omitempty"`
	Reset      string            `json:"reset,omitempty"`       // Unix seconds
	RetryAfter string            `json:"retry_after,omitempty"` // seconds
	Wait       string            `json:"wait,omitempty"`        // a throttle rule would let the request go on after so long
	Client     *client           `json:"client,omitempty"`
	Headers    map[string]string `json:"headers,omitempty"` // of the response
	Body       json.RawMessage   `json:"body,omitempty"`    // of the refusal
	Version    string            `json:"policy_version"`
	Degraded   bool              `json:"degraded,omitempty"` // the store did not answer, so that on_error decided
}

type client struct {
	Kind   string `json:"kind"`
	ID     string `json:"id"`
	User   string `json:"user,omitempty"`
	Tier   string `json:"tier,omitempty"`
	Tenant string `json:"tenant,omitempty"`
}

// servePeople decides one request that is described in JSON, by the policy in force, and charges it as any other.
func (b *Bridge) servePeople(w http.ResponseWriter, r *http.Request, c *call) {
	answer, err := b.answerPeople(c)
	if err != nil {
		b.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // whoever is gone needs none
}

// answerPeople decides what people ask.
func (b *Bridge) answerPeople(c *call) (t told, err error) {
	if !b.enter() {
		return t, errFull
	}
	defer b.leave()
	request, err := readAsked(c.body)
	if err != nil {
		return t, malformedError{err}
	}
	b.metrics.answered.Inc()
	b.metrics.questions.Observe(1)
	q := c.next()
	c.used++ // so that the end of the call lets go of it
	q.item.Kind, q.item.Ask.Known = 0, 0
	q.reset(b, b.editions.inForce(), micros(time.Now()))
	c.left = verifyTime
	q.ask(&described{asked: request, now: q.now}, &c.left)
	var d core.Decision
	if len(q.first) > 0 {
		var answered bool
		if d, answered = q.Ask(q.first); answered {
			d = q.decide(nil)
		}
	} else {
		d = q.decide(nil)
	}
	b.metrics.statuses[q.answer.Status].Inc()
	return q.tell(&d), nil
}

// readAsked reads a description strictly: a word that is misspelt would be a request that nobody meant.
func readAsked(data []byte) (*asked, error) {
	const example = `; write for example {"method":"GET","path":"/api/x","ip":"192.0.2.7","headers":{"X-API-Key":"k"}}`
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	a := &asked{Method: http.MethodGet, Path: "/"}
	if err := decoder.Decode(a); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("it is empty")
		}
		return nil, fmt.Errorf("the request cannot be read: %w%s", err, example)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is something behind the request; ask about one at a time" + example)
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
			return nil, fmt.Errorf("header %q is there twice, in other letters%s", name, example)
		}
		headers[canonical] = value
	}
	a.Headers = headers
	return a, nil
}

// tell puts a decision into the words of JSON.
func (q *question) tell(d *core.Decision) told {
	fields := q.plan.Headers(d)
	t := told{Outcome: d.Outcome.String(), Status: d.Status, Rule: d.Rule, Reset: fields.Reset, RetryAfter: fields.RetryAfter,
		Version: q.edition.version, Headers: map[string]string{},
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
	for _, f := range [...]struct{ name, value string }{{"X-RateLimit-Limit", fields.Limit},
		{"X-RateLimit-Remaining", fields.Remaining}, {"X-RateLimit-Reset", fields.Reset}, {"X-RateLimit-Cost", fields.Cost},
		{"RateLimit", fields.RateLimit}, {"RateLimit-Policy", fields.Policy}, {"Retry-After", fields.RetryAfter},
		{"WWW-Authenticate", fields.Authenticate}} {
		if f.value != "" {
			t.Headers[f.name] = f.value
		}
	}
	if d.Refused() {
		t.Headers["Content-Type"] = d.ContentType()
		body := q.plan.AppendProblem(nil, d)
		if !json.Valid(body) {
			body, _ = json.Marshal(string(body)) // a text always becomes JSON
		}
		t.Body = body
	}
	return t
}

// described is a request as people describe it, as the policy looks at it.
type described struct {
	*asked
	now core.Micros
}

// Path implements [core.Attributes].
func (d *described) Path() string {
	path, _, _ := strings.Cut(d.asked.Path, "?")
	return path
}

// Query implements [core.Attributes].
func (d *described) Query() string {
	_, query, _ := strings.Cut(d.asked.Path, "?")
	return query
}

func (d *described) Method() string     { return d.asked.Method }
func (d *described) Host() string       { return d.asked.Host }
func (d *described) Peer() netip.Addr   { return d.asked.IP }
func (d *described) Remote() netip.Addr { return d.asked.Remote }
func (d *described) Now() core.Micros   { return d.now }

// Header implements [core.Attributes].
func (d *described) Header(name string) (string, bool) {
	value, ok := d.Headers[name]
	return value, ok
}

// Attr implements [core.Attributes].
func (d *described) Attr(name string) (string, bool) {
	value, ok := d.Attrs[name]
	return value, ok
}

var _ core.Attributes = (*described)(nil)
