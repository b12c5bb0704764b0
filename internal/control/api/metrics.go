// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
)

type endpointQuery struct {
	Span
	Granularity string `query:"granularity" enum:"minute,hour,day" default:"hour"`
	Policy      string `query:"policy" maxLength:"255"`
	Rule        string `query:"rule" maxLength:"255"`
	Region      string `query:"region" maxLength:"255" doc:"the region of the nodes"`
	Page
}

// Resolve implements [huma.Resolver].
func (q *endpointQuery) Resolve(huma.Context) []error {
	return slices.Concat(checkStorable("policy", q.Policy), checkStorable("rule", q.Rule), checkStorable("region", q.Region))
}

type endpointsAnswer struct {
	Body struct {
		Endpoints []reports.Endpoint `json:"endpoints" doc:"the oldest first"`
		Next      string             `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type activeQuery struct {
	Span
	Client string `query:"client" maxLength:"512" doc:"KIND:ID"`
	Page
}

// Resolve implements [huma.Resolver].
func (q *activeQuery) Resolve(huma.Context) []error { return checkStorable("client", q.Client) }

type activeAnswer struct {
	Body struct {
		Clients []reports.Active `json:"clients" doc:"the oldest minute first"`
		Next    string           `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

// metricOperations registers the operations that read latencies and the most active clients.
func (a *API) metricOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/metrics/endpoints", "list-endpoints",
		"List the decisions of each path pattern and how long they took; for a day if no span is given", ledger.Viewer), a.endpoints)
	huma.Register(a.huma, operation(http.MethodGet, "/v1/metrics/clients", "list-active-clients",
		"List what the 1,000 most active clients of each minute used, and all others together; for a day if no span is given", ledger.Viewer), a.active)
}

func (a *API) endpoints(ctx context.Context, in *endpointQuery) (*endpointsAnswer, error) {
	after, err := keyOf[reports.EndpointKey](in.After)
	if err != nil {
		return nil, err
	}
	from, to := in.bounds(day)
	rows, err := a.o.Reports.Endpoints(ctx, reports.EndpointQuery{Granularity: in.Granularity, From: from, To: to, Policy: in.Policy, Rule: in.Rule,
		Region: in.Region, After: after, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(endpointsAnswer)
	answer.Body.Endpoints = append([]reports.Endpoint{}, rows...)
	if len(rows) == in.Limit {
		answer.Body.Next = afterOf(rows[len(rows)-1].EndpointKey)
	}
	return answer, nil
}

func (a *API) active(ctx context.Context, in *activeQuery) (*activeAnswer, error) {
	after, err := keyOf[reports.ActiveKey](in.After)
	if err != nil {
		return nil, err
	}
	from, to := in.bounds(day)
	rows, err := a.o.Reports.Active(ctx, reports.ActiveQuery{From: from, To: to, Client: in.Client, After: after, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(activeAnswer)
	answer.Body.Clients = append([]reports.Active{}, rows...)
	if len(rows) == in.Limit {
		answer.Body.Next = afterOf(rows[len(rows)-1].ActiveKey)
	}
	return answer, nil
}
