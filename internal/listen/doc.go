// SPDX-License-Identifier: Apache-2.0

// Package listen opens the addresses at which a process serves programs and operators, and rejects
// callers that it must not serve.
//
// # Promise
//
// An address is resolved once, so that the address that was checked is the one that is listened on.
// A Unix socket never has a wider mode than was asked for. A [Limit] bounds the connections of a
// listener, and reserves places for callers that make a call as soon as they connect. [Restrain]
// bounds what callers without a token cost the server. Requests that a web page makes in a browser
// are never served, whatever host name the page uses for this machine. The time in which tokens are
// compared reveals only their length.
//
// # Price
//
// A connection holds one timer until its first call. A call costs two look-ups of header fields.
//
// # When not to use it
//
// Do not use it for the sites of a web server, which browsers must be able to call.
package listen
