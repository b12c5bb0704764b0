// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"net/http"

	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

// AdminHandler serves only the routes of operators, on a separate listener. If there is a token of
// operators, requests must carry it. Requests of browser pages are rejected, as by
// [Bridge.Handler].
func (b *Bridge) AdminHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(operator.Prefix, b.requireAdminToken(b.serveOperators))
	return b.recoverPanics(b.closeAfterReply(b.guard.RejectPages(mux, b.options.AdminToken)))
}

// serveOperatorsByToken serves operators on the listener of filters. The filters' token is not
// enough: a caller that may ask whether a request is within its limits must not be able to reset
// them.
func (b *Bridge) serveOperatorsByToken() http.HandlerFunc {
	if b.options.AdminToken != "" {
		return b.requireAdminToken(b.serveOperators)
	}
	return b.requireToken(func(w http.ResponseWriter, _ *http.Request) {
		operator.WriteError(w, &operator.StatusError{Status: http.StatusNotFound, Err: errors.New(
			"operators are not served here; start the bridge with --admin-token-file, or ask at its --admin-listen")})
	})
}

func (b *Bridge) requireAdminToken(next http.HandlerFunc) http.HandlerFunc {
	return b.requireTokenOf("the token of operators", b.options.AdminToken, next)
}

func (b *Bridge) serveOperators(w http.ResponseWriter, r *http.Request) {
	b.operators().ServeHTTP(w, r)
}

// Bridge.operators returns the API of operators for the policy in force.
func (b *Bridge) operators() *operator.API {
	return &operator.API{Desk: &operator.Desk{Store: b.options.Store, Denials: b.options.Events.Recent, Policies: b.operated,
		Directory: formOf(b.policy.Current()).directory}, Front: "bridge",
		DirectoryRemedy: "write directory: true in its policy, which needs --redis, or ask Redis itself: --redis in place of --bridge", Reload: b.Reload, Node: b.node, Others: b.options.Others,
		Follow: b.options.Follow}
}

// Bridge.operated returns the policy in force and the candidate, in the form that the
// operators' API needs.
func (b *Bridge) operated() []operator.Policy {
	all := []operator.Policy{operatedOf(b.policy, b.options.PolicyFile)}
	if b.candidate != nil {
		all = append(all, operatedOf(b.candidate.policy, b.options.ShadowPolicyFile))
	}
	return all
}

func operatedOf(p *live.Policy, file string) operator.Policy {
	now := p.Current()
	return operator.Policy{Ruleset: now.Ruleset, Document: now.Document, Verifiers: now.Verifiers(), File: file, Rejected: p.Err() != nil}
}

// Node returns the bridge as one of the nodes that count in its store.
func (b *Bridge) Node() *fleet.Node { return b.node }

func (b *Bridge) totals() (all []fleet.Total) {
	for _, total := range b.metrics.Totals() {
		all = append(all, fleet.Total(total))
	}
	return all
}
