// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/control/reports"
)

// Page is the part of a query that selects a page of a report.
type Page struct {
	After string `query:"after" maxLength:"4096" doc:"the field next of the previous page's answer"`
	Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
}

// keyOf returns the key that After contains, or nil if After is empty.
func keyOf[K any](after string) (*K, error) {
	if after == "" {
		return nil, nil
	}
	key := new(K)
	text, err := base64.RawURLEncoding.DecodeString(after)
	if err == nil {
		err = json.Unmarshal(text, key)
	}
	if err != nil || len(checkStorable("after", string(text))) > 0 {
		return nil, huma.Error422UnprocessableEntity("the parameter is not valid",
			&huma.ErrorDetail{Message: "the value is not the next of a page", Location: "query.after"})
	}
	return key, nil
}

// afterOf returns the value of After for the page that follows a key.
func afterOf(key any) string {
	text, err := json.Marshal(key)
	if err != nil {
		panic(err) // keys are texts, numbers and times of rows
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// Span is the span of time in a query.
type Span struct {
	From time.Time `query:"from" doc:"the beginning"`
	To   time.Time `query:"to" doc:"the end of the span, exclusive; default: now"`
}

// Span.bounds returns the beginning and the end of the span. A span without an end ends a minute
// from now. A span without a beginning begins the duration usual before its end.
func (s Span) bounds(usual time.Duration) (from, to time.Time) {
	if from, to = s.From.UTC(), s.To.UTC(); s.To.IsZero() {
		to = time.Now().UTC().Add(time.Minute) // includes the times of nodes whose clocks are ahead
	}
	if s.From.IsZero() {
		from = to.Add(-usual)
	}
	return from, to
}

type usageQuery struct {
	Month  string `query:"month" pattern:"^[0-9]{4}-(0[1-9]|1[0-2])$" doc:"a month of UTC, as 2026-11; default: the present month"`
	Client string `query:"client" maxLength:"512" doc:"KIND:ID"`
	Policy string `query:"policy" maxLength:"255"`
	Rule   string `query:"rule" maxLength:"255"`
	Region string `query:"region" maxLength:"255" doc:"only what nodes of this region reported"`
	By     string `query:"by" enum:"region" doc:"a row for each region; usage of nodes without a region is left out"`
	Page
}

// Resolve implements [huma.Resolver].
func (q *usageQuery) Resolve(huma.Context) []error {
	return slices.Concat(checkStorable("client", q.Client), checkStorable("policy", q.Policy), checkStorable("rule", q.Rule), checkStorable("region", q.Region))
}

type usageAnswer struct {
	Body struct {
		Month string          `json:"month"`
		Usage []reports.Usage `json:"usage"`
		Next  string          `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type topQuery struct {
	Span
	Policy string `query:"policy" maxLength:"255"`
	Rule   string `query:"rule" maxLength:"255"`
	Limit  int    `query:"limit" default:"20" minimum:"1" maximum:"1000"`
}

// Resolve implements [huma.Resolver].
func (q *topQuery) Resolve(huma.Context) []error {
	return append(checkStorable("policy", q.Policy), checkStorable("rule", q.Rule)...)
}

type topAnswer struct {
	Body struct {
		From    time.Time          `json:"from" doc:"the beginning of the hour in which the span begins"`
		To      time.Time          `json:"to" doc:"the end of the hour in which the span ends"`
		Clients []reports.Violator `json:"clients" doc:"the one with most denials first"`
	}
}

type eventQuery struct {
	Span
	Client string `query:"client" maxLength:"512" doc:"KIND:ID"`
	Rule   string `query:"rule" maxLength:"255"`
	Kind   string `query:"kind" enum:"denied,admitted,degraded,dropped"`
	Region string `query:"region" maxLength:"255" doc:"the region of the node"`
	Page
}

// Resolve implements [huma.Resolver].
func (q *eventQuery) Resolve(huma.Context) []error {
	return slices.Concat(checkStorable("client", q.Client), checkStorable("rule", q.Rule), checkStorable("region", q.Region))
}

type eventsAnswer struct {
	Body struct {
		Events []reports.Event `json:"events" doc:"the newest first"`
		Next   string          `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type metricQuery struct {
	Span
	Granularity string `query:"granularity" enum:"minute,hour,day" default:"hour"`
	Page
}

type metricsAnswer struct {
	Body struct {
		Metrics []reports.Metric `json:"metrics" doc:"the oldest first"`
		Next    string           `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

const day = 24 * time.Hour

// reportOperations registers the operations that read usage, events and sums.
func (a *API) reportOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/usage", "list-usage", "List what clients used in a month, for billing", ledger.Viewer), a.usage)
	huma.Register(a.huma, operation(http.MethodGet, "/v1/top", "top-violators", "List the clients that were denied most", ledger.Viewer), a.top)
	huma.Register(a.huma, operation(http.MethodGet, "/v1/events", "list-events", "List the events that policies report; for a day if no span is given", ledger.Viewer), a.events)
	huma.Register(a.huma, operation(http.MethodPost, clientPathText+"/forgetting", "forget-usage",
		"Remove the name of a client from events, usage and denials, and its notices; sums stay", ledger.Admin), a.forget)
	huma.Register(a.huma, operation(http.MethodGet, "/v1/metrics", "list-metrics", "List sums over all clients; for a day if no span is given", ledger.Viewer), a.metrics)
}

type forgetClient struct {
	ClientPath
	Body struct {
		Reason string `json:"reason" doc:"why, for the history"`
	}
}

type forgottenAnswer struct{ Body ledger.Forgotten }

func (a *API) forget(ctx context.Context, in *forgetClient) (*forgottenAnswer, error) {
	name, err := ledger.Name(in.Client)
	if err != nil {
		return nil, a.problem(err)
	}
	forgotten, err := a.o.Ledger.Forget(ctx, callerOf(ctx).actor, name, in.Body.Reason)
	return &forgottenAnswer{forgotten}, a.problem(err)
}

func (a *API) usage(ctx context.Context, in *usageQuery) (*usageAnswer, error) {
	after, err := keyOf[reports.UsageKey](in.After)
	if err != nil {
		return nil, err
	}
	now := time.Now().UTC()
	from := time.Date(now.Year(), now.Month(), 1, 0, 0, 0, 0, time.UTC)
	if in.Month != "" {
		if from, err = time.Parse("2006-01", in.Month); err != nil {
			return nil, huma.Error422UnprocessableEntity("the parameter is not valid", &huma.ErrorDetail{Message: err.Error(), Location: "query.month"})
		}
	}
	rows, err := a.o.Reports.Usage(ctx, reports.UsageQuery{From: from, To: from.AddDate(0, 1, 0), Client: in.Client, Policy: in.Policy, Rule: in.Rule,
		Region: in.Region, ByRegion: in.By == "region", After: after, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(usageAnswer)
	answer.Body.Month, answer.Body.Usage = from.Format("2006-01"), append([]reports.Usage{}, rows...)
	if len(rows) == in.Limit {
		answer.Body.Next = afterOf(rows[len(rows)-1].UsageKey)
	}
	return answer, nil
}

func (a *API) top(ctx context.Context, in *topQuery) (*topAnswer, error) {
	from, to := in.bounds(day)
	from = from.Truncate(time.Hour)
	if end := to.Truncate(time.Hour); end.Before(to) {
		to = end.Add(time.Hour)
	}
	rows, err := a.o.Reports.Top(ctx, reports.TopQuery{From: from, To: to, Policy: in.Policy, Rule: in.Rule, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(topAnswer)
	answer.Body.From, answer.Body.To, answer.Body.Clients = from, to, append([]reports.Violator{}, rows...)
	return answer, nil
}

func (a *API) events(ctx context.Context, in *eventQuery) (*eventsAnswer, error) {
	before, err := keyOf[reports.EventKey](in.After)
	if err != nil {
		return nil, err
	}
	from, to := in.bounds(day)
	rows, err := a.o.Reports.Events(ctx, reports.EventQuery{From: from, To: to, Client: in.Client, Rule: in.Rule, Kind: in.Kind, Region: in.Region, Before: before, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(eventsAnswer)
	answer.Body.Events = append([]reports.Event{}, rows...)
	if len(rows) == in.Limit {
		answer.Body.Next = afterOf(rows[len(rows)-1].EventKey)
	}
	return answer, nil
}

func (a *API) metrics(ctx context.Context, in *metricQuery) (*metricsAnswer, error) {
	after, err := keyOf[reports.MetricKey](in.After)
	if err != nil {
		return nil, err
	}
	from, to := in.bounds(day)
	rows, err := a.o.Reports.Metrics(ctx, reports.MetricQuery{Granularity: in.Granularity, From: from, To: to, After: after, Limit: in.Limit})
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(metricsAnswer)
	answer.Body.Metrics = append([]reports.Metric{}, rows...)
	if len(rows) == in.Limit {
		answer.Body.Next = afterOf(rows[len(rows)-1].MetricKey)
	}
	return answer, nil
}
