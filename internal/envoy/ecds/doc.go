// SPDX-License-Identifier: Apache-2.0

// Package ecds serves the filter's configuration, including the policy, to Envoy, and sends a new
// configuration whenever the policy changes. The package implements Envoy's extension config
// discovery service with one resource.
//
// # Promise
//
// Every Envoy that subscribes to the resource has the current policy a moment after a change,
// because the server sends it on open streams. An Envoy that rejects a version keeps the previous
// one, and the server logs the reason. The content of a request from Envoy determines only whether
// the server answers it.
//
// # Price
//
// The server uses one goroutine for each Envoy. Each version is sent whole, with the policy in
// base64.
//
// # When not to use it
//
// The package is not needed where a control plane already configures Envoy, because a filter that
// is configured without a policy fetches it from the bridge. Only the state-of-the-world stream is
// served, which Envoy uses for api_type: GRPC. Delta streams and REST are not served.
package ecds
