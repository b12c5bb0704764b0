// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
)

type regionsAnswer struct {
	Body struct {
		Regions []ledger.Region `json:"regions"`
	}
}

// regionOperations registers the operations on regions.
func (a *API) regionOperations() {
	huma.Register(a.huma, operation(http.MethodGet, "/v1/regions", "list-regions", "List what the Redis of each region has", ledger.Viewer),
		func(ctx context.Context, _ *struct{}) (*regionsAnswer, error) {
			found, err := a.o.Ledger.Regions(ctx)
			if err != nil {
				return nil, a.problem(err)
			}
			answer := new(regionsAnswer)
			answer.Body.Regions = append([]ledger.Region{}, found...)
			return answer, nil
		})
}
