// SPDX-License-Identifier: Apache-2.0

// Package ecds gives Envoy the filter's configuration with the policy inside, and a new one when the policy changes: Envoy's
// extension config discovery service, with one resource.
//
// # Promise
//
// Every Envoy that asks for the resource has the policy in force a moment after it changes, on connections that are open
// as well: it is told, and does not ask. One that refuses a version keeps the one before, and the log says why. What a
// stream sends decides nothing but whether it is answered.
//
// # Price
//
// A goroutine for each Envoy. The policy travels in base64, whole each time.
//
// # When not to use it
//
// Where a control plane configures Envoy already: a filter that is configured without a policy asks the bridge by itself.
// Only the state-of-the-world stream is served, which Envoy uses for api_type: GRPC; neither delta nor REST.
package ecds
