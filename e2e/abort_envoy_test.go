// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
)

const abortPolicy = `name: abort
rules:
  - {name: refunded, match: {path: [/refunded, /small/**]}, limit: 5/31d, refund_on: {status: [4xx, 5xx]}}
  - {name: counted, match: {path: /counted}, limit: 5/31d, count_if: {status: [401]}}
`

// TestWhatAClientAbortsIsNotRefundedInEnvoy is [TestWhatAClientAbortsIsNotRefunded] for Envoy with
// the filter. Envoy itself ends a request whose body is too slow.
func TestWhatAClientAbortsIsNotRefundedInEnvoy(t *testing.T) {
	t.Parallel()
	seen := newAbortUpstream()
	s := &site{manager: "use_remote_address: true, xff_num_trusted_hops: 1, request_timeout: 1s, delayed_close_timeout: 0.01s"}
	useEnvoy(t, seen, s)
	s.startBridge(t, abortPolicy)
	seen.abortAllWays(t, s.address, abortsOfEnvoy())
}

// TestModuleRefundsNothingThatAClientAborts is [TestWhatAClientAbortsIsNotRefunded] for Envoy with
// the native module.
func TestModuleRefundsNothingThatAClientAborts(t *testing.T) {
	t.Parallel()
	seen := newAbortUpstream()
	s := &site{manager: "use_remote_address: true, xff_num_trusted_hops: 1, request_timeout: 1s, delayed_close_timeout: 0.01s",
		filter: moduleFilter(abortPolicy)}
	startEnvoyIn(t, []string{modulePath(t)}, "", seen, s)
	seen.abortAllWays(t, s.address, abortsOfEnvoy())
}

// abortsOfEnvoy returns the ways to abort that apply to Envoy. It leaves out the body that is too
// large for Caddy's request_body, because Envoy has no such bound.
func abortsOfEnvoy() (ways []abort) {
	for _, way := range aborts {
		if way.path == "" {
			ways = append(ways, way)
		}
	}
	return ways
}
