// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/penstock/penstock/internal/operator"
)

// clientParameters are the parameters that select a client and its counters.
var clientParameters = []string{"client", "policy", "rule", "host", "tier", "tenant", "user"}

// readClient parses the client=KIND:ID parameter, the optional identity parameters and the
// selection of counters.
func readClient(r *http.Request) (*operator.Client, operator.Selection, error) {
	query, err := readQuery(r, clientParameters)
	if err != nil {
		return nil, operator.Selection{}, err
	}
	client, err := operator.Parse(operator.Words{Client: query.Get("client"), User: query.Get("user"), Tier: query.Get("tier"),
		Tenant: query.Get("tenant"), Host: query.Get("host")})
	if err != nil {
		return nil, operator.Selection{}, apiError(http.StatusBadRequest, err)
	}
	return client, operator.Selection{Policy: query.Get("policy"), Rule: query.Get("rule")}, nil
}

// readQuery reads the query parameters and rejects unknown ones. A misspelled parameter would
// otherwise widen the selection, because an omitted policy means all policies.
func readQuery(r *http.Request, words []string) (url.Values, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, apiError(http.StatusBadRequest, fmt.Errorf("the query cannot be read: %w", err))
	}
	for word, values := range query {
		if !slices.Contains(words, word) {
			return nil, apiError(http.StatusBadRequest, fmt.Errorf("%q is not a parameter of %s; the parameters are %q", word, r.URL.Path, words))
		}
		if len(values) > 1 {
			return nil, apiError(http.StatusBadRequest, fmt.Errorf("%q is listed twice; keep one", word))
		}
	}
	return query, nil
}

// desk returns an operator desk for this configuration.
func (a *App) desk() *operator.Desk {
	return &operator.Desk{Store: a.store, Directory: a.store.directory, Denials: eventLog.Recent, Policies: func() (all []operator.Policy) {
		for _, p := range a.inForce() {
			now := p.Current()
			all = append(all, operator.Policy{Ruleset: now.Ruleset, Document: now.Document, Verifiers: now.Verifiers()})
		}
		return all
	}}
}

func (a *App) lookUpClient(r *http.Request) (any, error) {
	client, selection, err := readClient(r)
	if err != nil {
		return nil, err
	}
	return answered(a.desk().Look(r.Context(), client, selection))
}

func (a *App) resetClient(r *http.Request) (any, error) {
	client, selection, err := readClient(r)
	if err != nil {
		return nil, err
	}
	return answered(a.desk().Reset(r.Context(), client, selection))
}

func (a *App) liftPenalty(r *http.Request) (any, error) {
	client, selection, err := readClient(r)
	if err != nil {
		return nil, err
	}
	return answered(a.desk().Lift(r.Context(), client, selection))
}

// answered returns the report, or the error with its HTTP status.
func answered(found *operator.Report, err error) (any, error) {
	switch {
	case err == nil:
		return found, nil
	case errors.Is(err, operator.ErrNobody):
		return nil, err
	case errors.Is(err, operator.ErrUnknown):
		return nil, apiError(http.StatusNotFound, err)
	case errors.Is(err, operator.ErrSelection):
		return nil, apiError(http.StatusBadRequest, err)
	}
	return nil, apiError(http.StatusServiceUnavailable, err)
}
