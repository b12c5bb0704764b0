// SPDX-License-Identifier: Apache-2.0

// Code generated from docs/reference/control.openapi.json; DO NOT EDIT.

package controlclient

import (
	"context"
	"time"
)

// ListRegions calls GET /v1/regions: List what the Redis of each region has. Needs the role
// viewer or one above.
func (c *Client) ListRegions(ctx context.Context) (*RegionsAnswer, error) {
	r := newRequest("GET")
	r.path = "/v1/regions"
	answer, _, err := call[RegionsAnswer](ctx, c, r)
	return answer, err
}

// RegionsAnswer is the JSON object that the OpenAPI document of the API describes in the
// schema RegionsAnswerBody.
type RegionsAnswer struct {
	Regions []Region `json:"regions"`
}

// Region is the JSON object that the OpenAPI document of the API describes in the schema
// Region.
type Region struct {
	// Behind: changes that this Redis does not have yet
	Behind int64 `json:"behind"`
	// Change: the latest change that this Redis has
	Change int64 `json:"change"`
	// Complete: whether this Redis ever had all records
	Complete bool `json:"complete"`
	// MissingPolicies: policies whose latest publication this Redis does not have yet, at most
	// 100
	MissingPolicies []string `json:"missing_policies"`
	// Policies: policies whose publication this Redis has
	Policies int64 `json:"policies"`
	// Published: whether a process of the control plane publishes to this region
	Published bool `json:"published"`
	// Region: empty if the control plane has no regions
	Region string `json:"region"`
	// Since: when the trouble began or ended
	Since time.Time `json:"since"`
	// Trouble: why nothing can be published now
	Trouble string `json:"trouble,omitempty"`
}
