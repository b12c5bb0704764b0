// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"strconv"
	"strings"
)

// lists checks a list of clients; at says where it stands.
func (v *verifier) lists(at string, entries []Listed) {
	if n := max(listedClients(entries), len(entries)); n > listedMax {
		v.problem(at, strconv.Itoa(n), fmt.Sprintf("are more than %d entries or clients", listedMax),
			"block that many in front of the proxy, or sum addresses up in ranges")
		return
	}
	for i := range entries {
		v.listed(at+"["+strconv.Itoa(i)+"]", &entries[i])
	}
}

// listed checks one entry.
func (v *verifier) listed(at string, e *Listed) {
	if e.clients() == 0 {
		v.problem(at, e.Reason, "tells of nobody", "write at least one of ip, user, api_key, tier and tenant")
	}
	for f, values := range e.byField() {
		v.clientValues(at, clientField(f), values)
	}
	v.ranges(at+".ip", e.IP)
	if len(e.Reason) > listedReasonBytes {
		v.problem(at+".reason", e.Reason[:NameBytesMax]+"…", fmt.Sprintf("has %d bytes", len(e.Reason)),
			fmt.Sprintf("write at most %d", listedReasonBytes))
	} else if strings.ContainsFunc(e.Reason, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		v.problem(at+".reason", e.Reason, "holds a control character", "write it in one line")
	}
	if e.Until < 0 {
		v.problem(at+".until", strconv.FormatInt(int64(e.Until), 10), "is before 1970", "write when the entry ends, or leave it out")
	}
}
