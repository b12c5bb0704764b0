// SPDX-License-Identifier: Apache-2.0

package validate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/penstock/penstock/core/internal/identify"
	"github.com/penstock/penstock/core/internal/match"
	"github.com/penstock/penstock/core/policy"
)

// Lists checks the list of clients at a place in the policy, such as "exempt".
func (v *Verifier) Lists(at string, entries []policy.Listed) {
	if n := max(identify.ListedClients(entries), len(entries)); n > identify.ListedMax {
		v.problem(at, strconv.Itoa(n), fmt.Sprintf("are more than %d entries or clients", identify.ListedMax),
			"block so many in front of the proxy, or combine addresses into ranges")
		return
	}
	for i := range entries {
		v.checkListed(at+"["+strconv.Itoa(i)+"]", &entries[i])
	}
}

// checkListed checks one entry.
func (v *Verifier) checkListed(at string, e *policy.Listed) {
	if e.Clients() == 0 {
		v.problem(at, e.Reason, "names no client", "write at least one of ip, user, api_key, tier and tenant")
	}
	for f, values := range identify.ByField(e) {
		v.checkClientValues(at, match.ClientField(f), values)
	}
	v.checkRanges(at+".ip", e.IP)
	if len(e.Reason) > identify.ListedReasonBytes {
		v.problem(at+".reason", e.Reason[:policy.NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(e.Reason)),
			fmt.Sprintf("write at most %d", identify.ListedReasonBytes))
	} else if strings.ContainsFunc(e.Reason, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		v.problem(at+".reason", e.Reason, "holds a control character", "write it in one line")
	}
	if e.Until < 0 {
		v.problem(at+".until", strconv.FormatInt(int64(e.Until), 10), "is before 1970", "write when the entry ends, or leave it out")
	}
}
