// SPDX-License-Identifier: Apache-2.0

package core

// guard appends the check of the client's penalty and returns its number among the checks, counted from 1; 0 if the
// policy has no penalties or nobody was found.
func (p *Plan) guard(rs *Ruleset) int {
	return 0
}

// violation returns in whose record a refusal by a check of the rule counts, and under which number; 0 and 0 if it is no
// violation. guard is the number of the client's penalty, key is the check's.
func (p *Plan) violation(rs *Ruleset, r *rule, guard int, key []byte) (int, int64) {
	return 0, 0
}

// penalty checks the policy's penalties; nil is fine.
func (v *verifier) penalty(penalty *Penalty) {
}
