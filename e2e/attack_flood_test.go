// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"strings"
)

// floodName is the prefix of the made-up names in a flood.
const floodName = "flood-"

// floods holds attacks with many requests in flight. Each request has a new counter of its own, so
// that a node cannot decide it from memory.
var floods = []attack{
	{name: "flood of 16 x 250 made-up names", path: "/keyed", limit: 3, inFlight: 4_000, run: attackByCounters(16, 250), admits: isNoFlood, plain: (*attackRun).sendKeyed},
	{name: "flood of 32 x 250 made-up names", path: "/keyed", limit: 3, long: true, inFlight: 8_000, run: attackByCounters(32, 250), admits: isNoFlood,
		plain: (*attackRun).sendKeyed},
}

// attackByCounters returns an attack whose requests each have a new counter of their own.
func attackByCounters(connections, each int) func(a *attackRun) {
	return func(a *attackRun) {
		a.streamBurst(connections, each, func(i int) []string { return []string{"x-id", fmt.Sprint(floodName, a.number, "-", i)} })
	}
}

func isNoFlood(r *http.Request) bool { return !strings.HasPrefix(r.Header.Get("X-Id"), floodName) }
