// SPDX-License-Identifier: Apache-2.0

package controlclient

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// answerBytesMax is the greatest size of an answer.
const answerBytesMax = 16 << 20

// Client calls a control plane.
type Client struct {
	base  string
	shown string // base without a password
	token func(context.Context) (string, error)
	http  *http.Client
}

// Options configures [New].
type Options struct {
	// Token is a token of the control plane, or a token from the issuer that the control plane
	// accepts.
	Token string
	// TokenSource returns the token for a call, in place of Token. Set it in a program whose tokens
	// expire soon.
	TokenSource func(context.Context) (string, error)
	// HTTP makes the calls. If HTTP is nil, the only deadline of a call is that of its context, and
	// a redirect is an error.
	HTTP *http.Client
}

// New returns a client for the control plane at a URL, such as https://control.example.com.
func New(base string, o Options) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		if err == nil {
			base = u.Redacted()
		}
		return nil, fmt.Errorf("%q is not the URL of a control plane: write https://HOST:PORT", base)
	}
	c := &Client{base: strings.TrimSuffix(base, "/"), shown: u.Redacted(), token: o.TokenSource, http: o.HTTP}
	switch {
	case c.token == nil && o.Token == "":
		return nil, fmt.Errorf("no token for the control plane %s: set Token or TokenSource", c.shown)
	case c.token == nil:
		c.token = func(context.Context) (string, error) { return o.Token, nil }
	}
	if c.http == nil {
		c.http = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return c, nil
}

// ETag identifies a revision of a record.
type ETag string

// Condition says under which condition the control plane makes a write. The zero Condition requires
// nothing.
type Condition struct {
	// Match is the ETag of the revision that was read. If the record has a later revision by now,
	// the write changes nothing, and the answer is 412.
	Match ETag
	// Absent requires that there is no record yet.
	Absent bool
}

// request is a call of one operation of the API.
type request struct {
	method, path string
	query        url.Values
	header       http.Header
	body         io.Reader
	err          error // the first error in a parameter
}

func newRequest(method string) *request {
	return &request{method: method, query: url.Values{}, header: http.Header{}}
}

// request.segment appends a parameter and the text after it to the path.
func (r *request) segment(name, value, after string) {
	if (value == "" || value == "." || value == "..") && r.err == nil {
		r.err = fmt.Errorf("the parameter %s is %q: write the name of a %s", name, value, name)
	}
	r.path += url.PathEscape(value) + after
}

// request.text adds a parameter to the query, unless the value is empty.
func (r *request) text(name, value string) {
	if value != "" {
		r.query.Set(name, value)
	}
}

// request.number adds a parameter to the query, unless the value is 0.
func (r *request) number(name string, value int64) {
	if value != 0 {
		r.query.Set(name, strconv.FormatInt(value, 10))
	}
}

// request.truth adds a parameter to the query if the value is true.
func (r *request) truth(name string, value bool) {
	if value {
		r.query.Set(name, "true")
	}
}

// request.instant adds a parameter to the query, unless the value is the zero time.
func (r *request) instant(name string, value time.Time) {
	if !value.IsZero() {
		r.query.Set(name, value.UTC().Format(time.RFC3339Nano))
	}
}

// request.field adds a header field, unless the value is empty.
func (r *request) field(name, value string) {
	if value != "" {
		r.header.Set(name, value)
	}
}

// request.condition adds the header fields of a condition.
func (r *request) condition(c Condition) {
	r.field("If-Match", string(c.Match))
	if c.Absent {
		r.field("If-None-Match", "*")
	}
}

// request.json makes the JSON of a value the body of the request.
func (r *request) json(value any) {
	text, err := json.Marshal(value)
	if err != nil && r.err == nil {
		r.err = err
	}
	r.body = bytes.NewReader(text)
	r.field("Content-Type", "application/json")
}

// Do calls an operation for which this package has no method, such as an operation of a newer
// control plane. The path begins with /v1/ and may have a query. The body is JSON, or nil if there
// is none. Do decodes the answer into the value that the parameter named answer points to, unless
// the parameter is nil or the answer has no content.
func (c *Client) Do(ctx context.Context, method, path string, header http.Header, body []byte, answer any) error {
	r := newRequest(method)
	r.path = path
	if header != nil {
		r.header = header.Clone()
	}
	if body != nil {
		r.body = bytes.NewReader(body)
		r.field("Content-Type", "application/json")
	}
	text, _, err := c.send(ctx, r)
	if err != nil || answer == nil || len(text) == 0 {
		return err
	}
	return c.decode(text, answer)
}

// Client.decode decodes the body of an answer.
func (c *Client) decode(text []byte, answer any) error {
	if err := json.Unmarshal(text, answer); err != nil {
		return fmt.Errorf("the answer from %s is not that of a control plane: %w", c.shown, err)
	}
	return nil
}

// call makes a call and returns its answer.
func call[T any](ctx context.Context, c *Client, r *request) (answer *T, tag ETag, err error) {
	text, header, err := c.send(ctx, r)
	if err != nil {
		return nil, "", err
	}
	answer = new(T)
	if err := c.decode(text, answer); err != nil {
		return nil, "", err
	}
	return answer, ETag(header.Get("ETag")), nil
}

// Client.send makes a call and returns the body and the header of its answer.
func (c *Client) send(ctx context.Context, r *request) ([]byte, http.Header, error) {
	if r.err != nil {
		return nil, nil, r.err
	}
	token, err := c.token(ctx)
	if err != nil {
		return nil, nil, err
	}
	address := c.base + r.path
	if len(r.query) > 0 {
		address += "?" + r.query.Encode()
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, address, r.body)
	if err != nil {
		return nil, nil, err
	}
	sent.Header = r.header
	sent.Header.Set("Authorization", "Bearer "+token)
	response, err := c.http.Do(sent)
	if err != nil {
		return nil, nil, fmt.Errorf("asking the control plane: %w", err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax+1))
	switch {
	case err != nil:
		return nil, nil, fmt.Errorf("reading the answer of the control plane: %w", err)
	case len(text) > answerBytesMax:
		return nil, nil, fmt.Errorf("the answer of the control plane has more than %d bytes: ask for smaller pages", answerBytesMax)
	case response.StatusCode < 200 || response.StatusCode > 299:
		return nil, nil, newError(response, text)
	}
	return text, response.Header, nil
}

// pages returns the items of all pages. A call read(key) returns the items of a page and the key of
// the next page. After the last page, this key is the zero value.
func pages[T any, K comparable](key K, read func(key K) ([]T, K, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		var last K
		for key := key; ; {
			items, next, err := read(key)
			if err == nil && next == key && next != last {
				err = fmt.Errorf("the control plane names the page %v as the one after itself", next)
			}
			if err != nil {
				yield(none, err)
				return
			}
			for _, item := range items {
				if !yield(item, nil) {
					return
				}
			}
			if key = next; next == last {
				return
			}
		}
	}
}
