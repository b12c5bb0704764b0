// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
)

type unpublishedAnswer struct {
	Body struct {
		Unpublished []ledger.Unpublished `json:"unpublished"`
		Next        string               `json:"next,omitempty" doc:"pass it as the parameter after to get the next page; absent on the last page"`
	}
}

// unpublishedOperations registers the operation that lists what is not published.
func (a *API) unpublishedOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/unpublished", "list-unpublished",
		"List clients, API keys and policies whose rows are not valid; their last valid state stays published", ledger.Viewer),
		func(ctx context.Context, in *Page) (*unpublishedAnswer, error) {
			after, err := keyOf[policy.ClientName](in.After)
			if err != nil {
				return nil, err
			}
			if after == nil {
				after = new(policy.ClientName)
			}
			found, err := a.o.Ledger.Unpublished(ctx, *after, in.Limit)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(unpublishedAnswer)
			answer.Body.Unpublished = append([]ledger.Unpublished{}, found...)
			if len(found) == in.Limit {
				last := &found[len(found)-1]
				answer.Body.Next = afterOf(policy.ClientName{Kind: last.Kind, ID: last.ID})
			}
			return answer, nil
		})
}

// metricsText writes the state of the process for Prometheus. Like /readyz, it needs no token.
func (a *API) metricsText(w http.ResponseWriter, r *http.Request) {
	ready := a.looks.look(r.Context(), a.o.Ready)
	up := 0
	if ready.Ready {
		up = 1
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	for _, m := range []struct {
		name, help string
		value      int64
	}{
		{"penstock_control_ready", "1 if schema, database and Redis are usable.", int64(up)},
		{"penstock_control_unpublished_changes", "Changes that are not in Redis yet.", ready.Unpublished},
		{"penstock_control_invalid_rows", "Clients, API keys and policies that are not published because their rows are not valid.", ready.Invalid},
	} {
		_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s gauge\n%[1]s %[3]d\n", m.name, m.help, m.value)
	}
}
