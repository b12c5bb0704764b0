// SPDX-License-Identifier: Apache-2.0

package core

// guard appends the check of the client's penalty and returns its number among the checks, counted from 1; 0 if the
// policy has no penalties or nobody was found.
func (p *Plan) guard(rs *Ruleset) int {
	return 0
}
