// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/policyfile"
)

// readQuery parses the query of a request.
func readQuery(raw string) (url.Values, error) {
	if len(raw) > queryBytesMax {
		return nil, badRequest(fmt.Errorf("the query has %d bytes, and %d is the most", len(raw), queryBytesMax))
	}
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, badRequest(fmt.Errorf("the query cannot be read: %w", err))
	}
	return query, nil
}

// allowOnly rejects parameters that the route does not have. Otherwise a misspelled parameter would
// widen the selection: a request with a misspelled policy= would select all policies.
func (r *request) allowOnly(words ...string) error {
	for word, values := range r.query {
		if !slices.Contains(words, word) {
			return badRequest(fmt.Errorf("%q is not a parameter of %s; the parameters are %q", shorten(word), Prefix+r.route.Name, words))
		}
		if len(values) > 1 {
			return badRequest(fmt.Errorf("%q is listed twice; keep one", word))
		}
	}
	return nil
}

// request.number returns the parameter n of the query, or 0 if it is omitted.
func (r *request) number(most int) (n int, err error) {
	text := r.query.Get("n")
	if text == "" {
		return 0, nil
	}
	if n, err = strconv.Atoi(text); err != nil || n < 1 || n > most {
		return 0, badRequest(fmt.Errorf("n %q is not a number from 1 to %d", shorten(text), most))
	}
	return n, nil
}

// readClient parses the client=KIND:ID parameter, the optional identity parameters and the
// selection of counters.
func (r *request) readClient() (*Client, Selection, error) {
	if err := r.allowOnly("client", "policy", "rule", "host", "tier", "tenant", "user"); err != nil {
		return nil, Selection{}, err
	}
	client, err := Parse(Words{Client: r.query.Get("client"), User: r.query.Get("user"), Tier: r.query.Get("tier"),
		Tenant: r.query.Get("tenant"), Host: r.query.Get("host")})
	if err != nil {
		return nil, Selection{}, badRequest(err)
	}
	return client, Selection{Policy: r.query.Get("policy"), Rule: r.query.Get("rule")}, nil
}

// onClient returns the answer function of a route that reads or changes the counters of a client.
func onClient(do func(*Desk, context.Context, *Client, Selection) (*Report, error)) func(*API, *request) (any, error) {
	return func(a *API, r *request) (any, error) {
		client, selection, err := r.readClient()
		if err != nil {
			return nil, err
		}
		return do(a.Desk, r.ctx, client, selection)
	}
}

// policyInForce describes a policy in an answer.
type policyInForce struct {
	Name    string               `json:"name"`
	Version string               `json:"version"`
	Place   string               `json:"place,omitempty"`
	File    string               `json:"file,omitempty"`
	Policy  *policyfile.Document `json:"policy"`
}

func (a *API) listRules(r *request) (any, error) {
	if err := r.allowOnly(); err != nil {
		return nil, err
	}
	if a.Desk.Policies == nil {
		return nil, errNoPolicies
	}
	told := []policyInForce{}
	for _, p := range a.Desk.Policies() {
		told = append(told, policyInForce{Name: p.Document.Name, Version: p.Document.Version(), Place: p.Place, File: p.File,
			Policy: withoutSecrets(p.Document)})
	}
	return map[string]any{"policies": told}, nil
}

// withoutSecrets returns a copy of the policy without its secrets, for display.
func withoutSecrets(d *policyfile.Document) *policyfile.Document {
	shown := *d
	shown.Identify = slices.Clone(d.Identify)
	for i := range shown.Identify {
		jwt := shown.Identify[i].JWT
		if jwt == nil {
			continue
		}
		hidden := *jwt
		if hidden.Secret != "" {
			hidden.Secret = "(secret)"
		}
		// The text {env.NAME} cannot be parsed, and contains no password.
		if from, err := url.Parse(hidden.JWKSURL); err == nil && from.User != nil {
			hidden.JWKSURL = from.Redacted()
		}
		shown.Identify[i].JWT = &hidden
	}
	return &shown
}

func (a *API) reload(r *request) (any, error) {
	if err := r.allowOnly(); err != nil {
		return nil, err
	}
	if a.Reload == nil {
		return nil, badRequest(errors.New("there is nothing to reload here: ask a running Caddy or bridge"))
	}
	if err := a.Reload(); err != nil {
		return nil, &StatusError{Status: http.StatusUnprocessableEntity, Err: err}
	}
	return a.listRules(r)
}

// editError returns the error of an edit with its status. If the edit names a rule or a tier that
// is not in force, the status is 422 and not 404, because the route itself exists.
func editError(err error) error {
	if errors.Is(err, ErrUnknown) {
		return &StatusError{Status: http.StatusUnprocessableEntity, Err: err}
	}
	return err
}

// editClient makes the edit in the request's body.
func (a *API) editClient(r *request) (any, error) {
	if err := r.allowOnly(); err != nil {
		return nil, err
	}
	var edit directory.Edit
	if err := r.readEdit(&edit); err != nil {
		return nil, err
	}
	change, err := a.Desk.Edit(r.ctx, edit)
	return change, editError(err)
}

// readEdit reads the edit in the request's body.
func (r *request) readEdit(edit any) error {
	text, err := io.ReadAll(r.body)
	switch {
	case err != nil:
		return badRequest(fmt.Errorf("the change cannot be read: %w", err))
	case len(text) > BodyBytesMax:
		return badRequest(fmt.Errorf("the change has more than %d bytes; make several changes", BodyBytesMax))
	case !utf8.Valid(text): // otherwise the decoder would change the name
		return badRequest(errors.New("the change is not UTF-8, so it is not JSON"))
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(edit); err != nil {
		return badRequest(fmt.Errorf("the change cannot be read: %w", err))
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return badRequest(errors.New("there is data after the change; make one change at a time"))
	}
	return nil
}

// editKeys makes the edit of API keys in the request's body. The body contains the hash of a key,
// never the key itself.
func (a *API) editKeys(r *request) (any, error) {
	if err := r.allowOnly(); err != nil {
		return nil, err
	}
	var edit directory.KeyEdit
	if err := r.readEdit(&edit); err != nil {
		return nil, err
	}
	shown, err := a.Desk.EditKeys(r.ctx, edit)
	return shown, editError(err)
}

// importRecords writes the records in the request's body.
func (a *API) importRecords(r *request) (any, error) {
	if err := r.allowOnly(); err != nil {
		return nil, err
	}
	var in directory.Import
	if err := r.readEdit(&in); err != nil {
		return nil, err
	}
	return a.Desk.Import(r.ctx, &in)
}

// showKeys returns the API keys of a name, a page of a client's keys, or a page of all keys.
func (a *API) showKeys(r *request) (any, error) {
	if err := r.allowOnly("name", "client", "after", "n"); err != nil {
		return nil, err
	}
	n, err := r.number(directory.KeyPageMax)
	if err != nil {
		return nil, err
	}
	return a.Desk.LookUpKeys(r.ctx, r.query.Get("name"), directory.KeyQuery{Client: r.query.Get("client"), After: r.query.Get("after"), Most: n})
}

// showRecord returns a client's record and its latest changes.
func (a *API) showRecord(r *request) (any, error) {
	if err := r.allowOnly("client", "n"); err != nil {
		return nil, err
	}
	n, err := r.number(directory.HistoryMax)
	if err != nil {
		return nil, err
	}
	return a.Desk.LookUp(r.ctx, r.query.Get("client"), n)
}

// listRecords returns a page of the records of clients.
func (a *API) listRecords(r *request) (any, error) {
	if err := r.allowOnly("kind", "blocked", "after", "n"); err != nil {
		return nil, err
	}
	n, err := r.number(directory.ListMax)
	if err != nil {
		return nil, err
	}
	query := directory.ListQuery{Kind: r.query.Get("kind"), After: r.query.Get("after"), Most: n}
	switch text := r.query.Get("blocked"); text {
	case "", "false":
	case "true":
		query.Blocked = true
	default:
		return nil, badRequest(fmt.Errorf("blocked %q is neither true nor false", shorten(text)))
	}
	return a.Desk.List(r.ctx, query)
}
