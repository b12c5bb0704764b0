// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/operator"
)

// remainingPoliciesMax bounds the policies of one question.
const remainingPoliciesMax = 100

type remainingQuery struct {
	ClientPath
	Policy string `query:"policy" maxLength:"64" doc:"only this policy"`
	Rule   string `query:"rule" maxLength:"255" doc:"only this rule"`
	Region string `query:"region" maxLength:"64" doc:"the region whose limits and counters are meant, if there are regions"`
	Host   string `query:"host" maxLength:"255" doc:"the host of the requests, if rules count per host"`
	User   string `query:"user" maxLength:"255" doc:"the user whom the client's token or key names, if it names one"`
	Tier   string `query:"tier" maxLength:"255" doc:"the tier of the client, by its token or key"`
	Tenant string `query:"tenant" maxLength:"255" doc:"the tenant of the client, by its token or key"`
}

// Resolve implements [huma.Resolver].
func (q *remainingQuery) Resolve(huma.Context) []error {
	return slices.Concat(checkStorable("policy", q.Policy), checkStorable("rule", q.Rule), checkStorable("region", q.Region))
}

type remainingAnswer struct {
	Body struct {
		Client    string             `json:"client"`
		Region    string             `json:"region,omitempty"`
		Counters  []operator.Counter `json:"counters" doc:"a counter of each limit that counts the client"`
		Penalties []operator.Penalty `json:"penalties"`
		Profiles  []operator.Profile `json:"profiles" doc:"what is known of the client under each policy"`
		Record    *directory.Record  `json:"record,omitempty" doc:"the client's own; absent if it has none"`
		Records   []foundRecord      `json:"records" doc:"the records of the client, of its networks and of its API key"`
	}
}

// API.remaining looks at the counters of a client under the policies that are in force on all
// nodes.
func (a *API) remaining(ctx context.Context, in *remainingQuery) (*remainingAnswer, error) {
	client, err := operator.Parse(operator.Words{Client: in.Client, User: in.User, Tier: in.Tier, Tenant: in.Tenant, Host: in.Host})
	if err != nil {
		return nil, invalidQuery("path.client", in.Client, err.Error())
	}
	leave, err := a.explaining.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	policies, region, err := a.inForce(ctx, in)
	if err != nil {
		return nil, err
	}
	records := &recordSource{ledger: a.o.Ledger}
	if addr := client.Peer(); addr.IsValid() {
		records.addresses = []netip.Addr{addr}
	}
	clients, err := records.open()
	if err != nil {
		return nil, err
	}
	defer clients.Close() //nolint:errcheck // nothing was written
	desk := &operator.Desk{Store: region.Counters, Directory: clients, Policies: func() []operator.Policy { return policies }}
	report, err := desk.Look(ctx, client, operator.Selection{Policy: in.Policy, Rule: in.Rule})
	switch {
	case err != nil && (errors.Is(err, operator.ErrNobody) || errors.Is(err, operator.ErrUnknown) || errors.Is(err, operator.ErrSelection)):
		return nil, invalidQuery("path.client", in.Client, err.Error())
	case err != nil:
		return nil, a.problemOfLook(err, region)
	case records.failure() != nil:
		return nil, a.problem(records.failure())
	}
	answer := new(remainingAnswer)
	answer.Body.Client, answer.Body.Region, answer.Body.Record = report.Client, region.Name, report.Record
	answer.Body.Counters, answer.Body.Penalties, answer.Body.Profiles = report.Counters, report.Penalties, report.Profiles
	answer.Body.Records = records.list()
	return answer, nil
}

// inForce returns the policies that are in force on all nodes, and the region whose counters are to
// be read.
func (a *API) inForce(ctx context.Context, in *remainingQuery) (policies []operator.Policy, region Region, err error) {
	var published []ledger.Policy
	if in.Policy == "" {
		published, err = a.o.Ledger.Policies(ctx, "", remainingPoliciesMax+1)
	} else if one, failed := a.o.Ledger.Policy(ctx, in.Policy); failed != nil {
		err = failed
	} else {
		published = []ledger.Policy{*one}
	}
	if err != nil {
		return nil, region, a.problem(err)
	}
	if len(published) > remainingPoliciesMax {
		return nil, region, invalidQuery("query.policy", "", fmt.Sprintf("there are more than %d policies: name one", remainingPoliciesMax))
	}
	for i := range published {
		if published[i].Revision == 0 {
			continue
		}
		revision, err := a.o.Ledger.Revision(ctx, published[i].Policy, published[i].Revision)
		if err != nil {
			return nil, region, a.problem(err)
		}
		d := documentOf(revision)
		if names := d.RegionNames(); len(names) > 0 && d.InRegion(in.Region) != nil {
			return nil, region, invalidQuery("query.region", in.Region, "the policy "+revision.Policy+" has regions: write "+strings.Join(names, " or "))
		}
		p, err := policyOf(d)
		if err != nil {
			return nil, region, a.problem(fmt.Errorf("%w: %w", ledger.ErrRows, err))
		}
		policies = append(policies, *p)
	}
	region, err = a.regionOf(in.Region)
	return policies, region, err
}
