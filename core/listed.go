// SPDX-License-Identifier: Apache-2.0

package core

import "strconv"

// listed is a [Listed] made ready for requests.
type listed struct {
	who    Listed
	prefix condition // of its addresses
}

// compileListed checks the entries of a list; at says where they stand.
func compileListed(at string, entries []Listed, v *verifier) []listed {
	var out []listed
	for i, e := range entries {
		when, problems := compileMatch(at+"["+strconv.Itoa(i)+"]", Match{IP: e.IP})
		v.problems = append(v.problems, problems...)
		out = append(out, listed{who: e, prefix: when})
	}
	return out
}

// find returns the first entry that tells of the client and has not ended, or nil.
func (p *Plan) find(entries []listed) *listed {
	for i := range entries {
		if e := &entries[i]; len(e.who.IP) > 0 && e.prefix.holds(&p.request) {
			return e
		}
	}
	return nil
}
