// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
)

// ThresholdPath is the parameter of each path that names a threshold.
type ThresholdPath struct {
	Threshold string `path:"threshold" maxLength:"64"`
}

type thresholdAnswer struct{ Body ledger.Threshold }

type thresholdsAnswer struct {
	Body struct {
		Thresholds []ledger.Threshold `json:"thresholds"`
		Next       string             `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

type putThreshold struct {
	ThresholdPath
	Body struct {
		Policy   string `json:"policy"`
		Rule     string `json:"rule"`
		Client   string `json:"client,omitempty" doc:"KIND:ID; absent for each client by itself"`
		Tier     string `json:"tier,omitempty" doc:"only usage in this tier"`
		Units    int64  `json:"units" minimum:"1" doc:"the quota of a calendar month of UTC"`
		Percents []int  `json:"percents" minItems:"1" maxItems:"10" example:"[80,100]" doc:"shares of the quota, each told once a month"`
		URL      string `json:"url" maxLength:"1000" doc:"who is told, by POST"`
		Reason   string `json:"reason" doc:"why, for the history"`
	}
}

type noticesQuery struct {
	ThresholdPath
	Page
}

type noticesAnswer struct {
	Body struct {
		Notices []ledger.Notice `json:"notices" doc:"the newest first"`
		Next    string          `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

// thresholdOperations registers the operations on thresholds of usage. Only admins may write
// thresholds, because a threshold names a receiver, which the process then calls.
func (a *API) thresholdOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/thresholds", "list-thresholds", "List the thresholds of usage", ledger.Viewer),
		func(ctx context.Context, in *pageQuery) (*thresholdsAnswer, error) {
			found, err := a.o.Ledger.Thresholds(ctx, in.After, in.Limit)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(thresholdsAnswer)
			answer.Body.Thresholds = append([]ledger.Threshold{}, found...)
			if callerOf(ctx).role != ledger.Admin {
				for i := range answer.Body.Thresholds {
					t := &answer.Body.Thresholds[i]
					t.URL = ledger.Host(t.URL)
				}
			}
			if len(found) == in.Limit {
				answer.Body.Next = found[len(found)-1].Threshold
			}
			return answer, nil
		})
	huma.Register(a.huma, operation(http.MethodPut, "/v1/thresholds/{threshold}", "put-threshold", "Make or replace a threshold of usage", ledger.Admin), a.putThreshold)
	huma.Register(a.huma, operation(http.MethodDelete, "/v1/thresholds/{threshold}", "delete-threshold", "Remove a threshold of usage", ledger.Admin, 404),
		func(ctx context.Context, in *struct {
			ThresholdPath
			Reasoned
		},
		) (*struct{}, error) {
			return nil, a.problem(a.o.Ledger.DeleteThreshold(ctx, callerOf(ctx).actor, in.Threshold, in.Reason))
		})
	huma.Register(a.huma, operation(http.MethodGet, "/v1/thresholds/{threshold}/notices", "list-notices", "List what a threshold has told", ledger.Viewer), a.notices)
}

func (a *API) putThreshold(ctx context.Context, in *putThreshold) (*thresholdAnswer, error) {
	if !a.o.Notifies {
		return nil, a.problem(&ledger.Invalid{Text: "this control plane has no secret to sign notices with: start it with --webhook-secret FILE"})
	}
	b := &in.Body
	put, err := a.o.Ledger.PutThreshold(ctx, callerOf(ctx).actor, ledger.Threshold{Threshold: in.Threshold, Policy: b.Policy, Rule: b.Rule, Client: b.Client,
		Tier: b.Tier, Units: b.Units, Percents: b.Percents, URL: b.URL}, b.Reason)
	return &thresholdAnswer{put}, a.problem(err)
}

func (a *API) notices(ctx context.Context, in *noticesQuery) (*noticesAnswer, error) {
	if problems := checkStorable("threshold", in.Threshold); len(problems) > 0 {
		return nil, a.problem(ledger.ErrNone)
	}
	after, err := keyOf[ledger.NoticeKey](in.After)
	if err != nil {
		return nil, err
	}
	found, err := a.o.Ledger.Notices(ctx, in.Threshold, after, in.Limit)
	if err != nil {
		return nil, a.problem(err)
	}
	answer := new(noticesAnswer)
	answer.Body.Notices = append([]ledger.Notice{}, found...)
	if len(found) == in.Limit {
		last := &found[len(found)-1]
		answer.Body.Next = afterOf(ledger.NoticeKey{MadeAt: last.MadeAt, Notice: last.Notice})
	}
	return answer, nil
}
