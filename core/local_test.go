// SPDX-License-Identifier: Apache-2.0

package core

import (
	"github.com/penstock/penstock/internal/test/limittest"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// TestLocal: a decision by the fallback equals the store's, but has no numbers.
func TestLocal(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{
		{Name: "own", Limits: limittest.All(t, "1/1m"), OnError: counter.OnErrorLocal, Match: policy.Match{Path: []string{"/*"}}},
		{Name: "open", Limits: limittest.All(t, "1/1m"), Match: policy.Match{Path: []string{"/*"}}},
		{Name: "shadow", Limits: limittest.All(t, "1/1m"), Action: policy.ActionLogOnly},
	}})
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/"))
	words := map[counter.OnError]int{}
	for _, c := range plan.Checks() {
		words[c.OnError]++
	}
	if words[counter.OnErrorLocal] != 1 || words[counter.OnErrorAllow] != 1 || words[counter.OnErrorInherit] != 1 {
		t.Errorf("the checks say %v", words)
	}
	own := -1
	for i := range plan.Checks() {
		plan.Results()[i] = counter.Result{At: counter.Second, Local: true}
		if plan.Checks()[i].OnError == counter.OnErrorLocal {
			own = i
		}
	}
	d := plan.Decide()
	if d.Denied() || d.Outcome != OutcomeDegradedLocal || !d.Degraded || d.Limit != nil || HeadersOf(&plan, &d) != (Fields{}) {
		t.Errorf("within the share: %+v, tells %+v", d, HeadersOf(&plan, &d))
	}
	wantOutcomes(t, &plan, map[string]string{"n/own": "degraded_local", "n/open": "degraded_allowed", "n/shadow": "degraded_allowed"})
	if plan.Settlement(new(Settlement)) {
		t.Error("something is settled of what the store has not charged")
	}

	plan.Results()[own].Denied, plan.Results()[own].Wait = true, 30*counter.Second
	d = plan.Decide()
	if d.Status != 429 || d.Outcome != OutcomeDenied || d.Rule != "own" || !d.Degraded || d.Limit != nil || d.RetryAfter != 30*counter.Second {
		t.Errorf("beyond the share: %+v", d)
	}
	if f := HeadersOf(&plan, &d); f != (Fields{RetryAfter: "30"}) {
		t.Errorf("beyond the share it tells %+v", f)
	}
	wantOutcomes(t, &plan, map[string]string{"n/own": "denied", "n/open": "uncharged", "n/shadow": "uncharged"})

	d = plan.Degrade()
	if d.Denied() || d.Outcome != OutcomeDegradedAllowed {
		t.Errorf("where nothing stands in: %+v", d)
	}
}
