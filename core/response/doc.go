// SPDX-License-Identifier: Apache-2.0

// Package response expresses a decision of package core as an HTTP or gRPC response: the rate limit
// fields, how they merge with the upstream's fields, the body of a denial, and the gRPC status. The
// package writes text and decides nothing.
package response
