// SPDX-License-Identifier: Apache-2.0

package core

// Explanation says how a request was decided, for people: it is made by the code that decides requests.
type Explanation struct {
	Client      Identity
	Credentials []CredentialUse // every way of identifying that was tried
	Address     string          // the address the client is counted by, and why it is that one
	Listed      string          // the entry of block or exempt that told, with its reason; "" if none did
	Rules       []RuleExplanation
}

// RuleExplanation says what became of one rule that matched.
type RuleExplanation struct {
	Name    string
	Action  Action
	Fate    string // "in play", "lost to NAME: why", "skipped: why", "exempt"
	LostTo  string // the rule that won instead; "" if none did
	Limits  string // whose limits are used: "the rule", "tier premium", "this client's own"
	Checks  []Check
	Results []Result // of Checks, after Decide
}

// Trace makes the next Add remember what Explain tells. It costs allocations. Reset ends it.
func (p *Plan) Trace() {}

// Explain says what Add did, policy by policy, and what the store said. It is for plans that were traced.
func (p *Plan) Explain() []Explanation { return nil }
