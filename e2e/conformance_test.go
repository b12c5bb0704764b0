// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/conformance"
	"github.com/penstock/penstock/internal/test/freeport"
)

// TestConformanceOfCaddy runs the conformance corpus against Caddy. The timeout of Redis may be
// long, because in the stories without Redis, connections fail at once.
func TestConformanceOfCaddy(t *testing.T) {
	t.Parallel()
	upstream := startUpstream(t, conformance.Upstream())
	attrs := map[string]string{"query": "http.request.uri.query", "protocol": "http.request.proto"}
	runConformance(t, "caddy", attrs, func(redis string, policies []string) (*server, []string) {
		var file strings.Builder
		fmt.Fprintf(&file, "{\n\tadmin ADMIN\n\tpenstock {\n\t\tstore redis %s {\n\t\t\ttimeout 5s\n\t\t}\n\t}\n}\n:SITE {\n\trespond ok\n}\n", redis)
		addresses := make([]string, len(policies))
		for i, policy := range policies {
			addresses[i] = freeport.Address(t)
			fmt.Fprintf(&file, ":%s {\n\tpenstock {\n\t\tpolicy %s\n\t}\n\treverse_proxy %s\n}\n", portOf(addresses[i]), policy, upstream)
		}
		caddy := startCaddy(t, file.String())
		for _, address := range addresses {
			caddy.awaitListening(address)
		}
		return caddy.server, addresses
	})
}
