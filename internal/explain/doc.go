// SPDX-License-Identifier: Apache-2.0

// Package explain shows how a proxy would decide a request that somebody describes. An explanation
// names the client, the rules that match, the limits that apply, and the decision.
//
// # Promise
//
// Package core decides the request, with the same code as in a proxy. [Run] charges nothing. An
// explanation contains no credential. If a record cannot be read, Run returns an error instead of
// an explanation without the record.
//
// # Price
//
// Run reads the records of the request's client and networks, and each counter of the request. It
// starts and ends a directory.
//
// # When not to use it
//
// Do not use it on the request path. A client whose name is given instead of a credential is not
// verified.
package explain
