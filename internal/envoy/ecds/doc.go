// SPDX-License-Identifier: Apache-2.0

// Package ecds serves the filter's configuration, with the policy inside, to Envoy, and a new one
// whenever the policy changes. It implements Envoy's extension config discovery service with one
// resource.
//
// # Promise
//
// Every Envoy that asks for the resource has the current policy a moment after a change: the server
// sends it on open streams. An Envoy that rejects a version keeps the previous one, and the server
// logs the reason. The content of a request from Envoy determines only whether the server answers
// it.
//
// # Price
//
// One goroutine for each Envoy. Each version is sent whole, with the policy in base64.
//
// # When not to use it
//
// Where a control plane already configures Envoy: a filter that is configured without a policy asks
// the bridge for it. Only the state-of-the-world stream is served, which Envoy uses for api_type:
// GRPC; delta streams and REST are not.
package ecds
