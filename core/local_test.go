// SPDX-License-Identifier: Apache-2.0

package core

import "testing"

// TestLocal: what stands in for the store decides as the store does, and there is nothing to tell of its numbers.
func TestLocal(t *testing.T) {
	rs := mustCompile(t, Policy{Name: "n", Rules: []Rule{
		{Name: "own", Limits: limits(t, "1/1m"), OnError: OnErrorLocal, Match: Match{Path: []string{"/*"}}},
		{Name: "open", Limits: limits(t, "1/1m"), Match: Match{Path: []string{"/*"}}},
		{Name: "shadow", Limits: limits(t, "1/1m"), Action: ActionLogOnly},
	}})
	var plan Plan
	plan.Add(rs, get("192.0.2.1", "/"))
	words := map[OnError]int{}
	for _, c := range plan.Checks() {
		words[c.OnError]++
	}
	if words[OnErrorLocal] != 1 || words[OnErrorAllow] != 1 || words[OnErrorInherit] != 1 {
		t.Errorf("the checks say %v", words)
	}
	own := -1
	for i := range plan.Checks() {
		plan.Results()[i] = Result{At: Second, Local: true}
		if plan.Checks()[i].OnError == OnErrorLocal {
			own = i
		}
	}
	d := plan.Decide()
	if d.Refused() || d.Outcome != OutcomeDegradedLocal || !d.Degraded || d.Limit != nil || plan.Headers(&d) != (Fields{}) {
		t.Errorf("within the share: %+v, tells %+v", d, plan.Headers(&d))
	}
	wantOutcomes(t, &plan, map[string]string{"n/own": "degraded_local", "n/open": "degraded_allowed", "n/shadow": "degraded_allowed"})
	if plan.Settlement(new(Settlement)) {
		t.Error("something is settled of what the store has not charged")
	}

	plan.Results()[own].Refused, plan.Results()[own].Wait = true, 30*Second
	d = plan.Decide()
	if d.Status != 429 || d.Outcome != OutcomeDenied || d.Rule != "own" || !d.Degraded || d.Limit != nil || d.RetryAfter != 30*Second {
		t.Errorf("beyond the share: %+v", d)
	}
	if f := plan.Headers(&d); f != (Fields{RetryAfter: "30"}) {
		t.Errorf("beyond the share it tells %+v", f)
	}
	wantOutcomes(t, &plan, map[string]string{"n/own": "denied", "n/open": "uncharged", "n/shadow": "uncharged"})

	d = plan.Degrade()
	if d.Refused() || d.Outcome != OutcomeDegradedAllowed {
		t.Errorf("where nothing stands in: %+v", d)
	}
}
