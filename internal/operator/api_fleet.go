// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock/penstock/internal/fleet"
)

// The default and the maximum number of clients, and of rules, in an answer.
const (
	topDefault = 20
	topMax     = 1024
)

// PoliciesOf converts policies to the form in the record of a node.
func PoliciesOf(policies []Policy) []fleet.Policy {
	all := make([]fleet.Policy, 0, len(policies))
	for i := range policies {
		d := policies[i].Document
		all = append(all, fleet.Policy{Name: d.Name, Version: d.Version(), Rejected: policies[i].Rejected, Published: d.Published(), Region: d.Region()})
	}
	return all
}

// reading returns the reports of all nodes, with a current one of this node. If scope is "node", it
// returns only this node's report.
func (a *API) reading(ctx context.Context, scope string) (*fleet.Reading, error) {
	r := new(fleet.Reading)
	switch {
	case scope != "" && scope != "node":
		return nil, badRequest(fmt.Errorf("scope %q is unknown; write scope=node for this process alone, or leave it out", shortened(scope)))
	case scope == "node" && a.Node == nil:
		return nil, badRequest(fmt.Errorf("scope node is for a running process, and %s is not one; leave it out", a.Front))
	case scope == "" && a.Others != nil:
		var err error
		if r, err = a.Others(ctx); err != nil {
			return nil, fmt.Errorf("%w: %w; scope=node asks for this process alone", ErrStore, err)
		}
	}
	if a.Node != nil {
		r.Add(a.Node.Record(time.Now()))
	}
	return r, nil
}

func (a *API) listNodes(r *request) (any, error) {
	if err := r.only("scope"); err != nil {
		return nil, err
	}
	found, err := a.reading(r.ctx, r.query.Get("scope"))
	if err != nil {
		return nil, err
	}
	return found.Nodes(time.Now()), nil
}

func (a *API) listTop(r *request) (any, error) {
	if err := r.only("n", "scope"); err != nil {
		return nil, err
	}
	n, err := r.number(topMax)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		n = topDefault
	}
	found, err := a.reading(r.ctx, r.query.Get("scope"))
	if err != nil {
		return nil, err
	}
	return found.Top(n), nil
}
