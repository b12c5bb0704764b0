// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
)

// The default and the maximum number of clients, and of rules, in an answer.
const (
	topDefault = 20
	topMax     = 1024
)

// WaitMax is the greatest number of seconds that an answer may wait for an event. Caddy and the
// bridge end requests that take longer.
const WaitMax = 4

// PoliciesOf converts policies to the form in the record of a node.
func PoliciesOf(policies []Policy) []fleet.Policy {
	all := make([]fleet.Policy, 0, len(policies))
	for i := range policies {
		d := policies[i].Document
		all = append(all, fleet.Policy{Name: d.Name, Version: d.Version(), Rejected: policies[i].Rejected, Published: d.Published(),
			ByClient: d.ByClient(), Candidate: policies[i].Candidate.report(), Events: d.ReportsEvents(), Region: d.Region()})
	}
	return all
}

// API.reading returns the reports of all nodes, with a current report of this node. If scope is
// "node", it returns only this node's report.
func (a *API) reading(ctx context.Context, scope string) (*fleet.Reading, error) {
	if err := a.checkScope(scope); err != nil {
		return nil, err
	}
	r := new(fleet.Reading)
	if scope == "" && a.Others != nil {
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

// checkScope returns an error for an unknown scope, and for the scope "node" if this process is not
// a node.
func (a *API) checkScope(scope string) error {
	switch {
	case scope != "" && scope != "node":
		return badRequest(fmt.Errorf("scope %q is unknown; write scope=node for this process alone, or leave it out", shorten(scope)))
	case scope == "node" && a.Node == nil:
		return badRequest(fmt.Errorf("scope node is for a running process, and %s is not one; leave it out", a.Front))
	}
	return nil
}

func (a *API) listNodes(r *request) (any, error) {
	if err := r.allowOnly("scope"); err != nil {
		return nil, err
	}
	found, err := a.reading(r.ctx, r.query.Get("scope"))
	if err != nil {
		return nil, err
	}
	return found.Nodes(time.Now()), nil
}

func (a *API) listTop(r *request) (any, error) {
	if err := r.allowOnly("n", "scope"); err != nil {
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

// eventsAnswer is an answer with events.
type eventsAnswer struct {
	*fleet.EventPage
	// Notes name the parts of the selection that select nothing under the policies in force here.
	Notes []string `json:"notes,omitempty"`
}

// ruleBytesMax bounds the name of the rule whose events are requested.
const ruleBytesMax = 512

// listEvents returns the latest events of all nodes, or of this one.
func (a *API) listEvents(r *request) (any, error) {
	if err := r.allowOnly("client", "rule", "after", "wait", "scope"); err != nil {
		return nil, err
	}
	scope := r.query.Get("scope")
	if err := a.checkScope(scope); err != nil {
		return nil, err
	}
	wait, err := r.wait()
	if err != nil {
		return nil, err
	}
	query := &fleet.EventQuery{Filter: events.Filter{Rule: r.query.Get("rule")}, After: r.query.Get("after")}
	if len(query.Filter.Rule) > ruleBytesMax { // it is written to Redis
		return nil, badRequest(fmt.Errorf("rule %q has %d bytes; %d is the most", shorten(query.Filter.Rule), len(query.Filter.Rule), ruleBytesMax))
	}
	if text := r.query.Get("client"); text != "" {
		name, err := directory.ParseName(text)
		if err != nil {
			return nil, err
		}
		query.Filter.Client = name.String()
	}
	follow := a.Follow
	if scope == "node" || follow == nil {
		follow = fleet.In(nil)
	}
	page, err := await(r.ctx, wait, func() (*fleet.EventPage, error) { return follow(r.ctx, a.Node, query) })
	switch {
	case errors.Is(err, fleet.ErrAfter):
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("%w: %w; scope=node asks for this process alone", ErrStore, err)
	}
	answer := &eventsAnswer{EventPage: page}
	if rule := query.Filter.Rule; rule != "" && a.Desk.Policies != nil {
		answer.Notes = notesOn(rule, a.Desk.Policies())
	}
	return answer, nil
}

// request.wait returns how long the answer may wait for an event.
func (r *request) wait() (time.Duration, error) {
	text := r.query.Get("wait")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(text)
	switch {
	case err != nil || n < 0 || n > WaitMax:
		return 0, badRequest(fmt.Errorf("wait %q is not a number of seconds from 0 to %d", shorten(text), WaitMax))
	case r.query.Get("after") == "":
		return 0, badRequest(errors.New("wait goes with after; leave it out for the first answer"))
	}
	return time.Duration(n) * time.Second, nil
}

// await waits for a page with an event, and returns it. After the given time, it returns a page
// without events. Nodes write their events once a second.
func await(ctx context.Context, most time.Duration, read func() (*fleet.EventPage, error)) (*fleet.EventPage, error) {
	for end := time.Now().Add(most); ; {
		page, err := read()
		if err != nil || len(page.Events) > 0 || page.Missed > 0 || time.Until(end) < time.Second {
			return page, err
		}
		select {
		case <-ctx.Done():
			return page, nil
		case <-time.After(time.Second):
		}
	}
}

// notesOn returns a note if no policy has a rule of that name. Two names are no rules but stand in
// the field "rule" of events: "block[0]" for a block in the policy, and "directory" for a block in
// the directory.
func notesOn(rule string, policies []Policy) []string {
	if err := checkRule(rule, policies); err != nil && rule != "directory" && !strings.HasPrefix(rule, "block[") {
		return []string{err.Error()}
	}
	return nil
}
