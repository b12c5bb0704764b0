// SPDX-License-Identifier: Apache-2.0

// Package notify sends webhooks: it tells receivers that a client has used a given share of its
// quota, such as 80 %.
//
// # Promise
//
// For each threshold, client, month and share there is exactly one notice, no matter how many
// processes work and when they are killed. An advisory lock of PostgreSQL ensures that only one
// process works at a time. A notice is sent again, with growing pauses, until the receiver answers
// 2xx or three days have passed. So each notice arrives at least once, and each copy has the same
// identifier.
//
// A message is signed as Standard Webhooks describes: HMAC-SHA256 over the identifier, the time of
// the attempt and the body. A receiver that rejects old times, and identifiers that it has seen
// before, cannot be deceived by a copy of a message.
//
// A receiver is called over https, at a public address. Any other address, such as one of this
// machine, must be allowed by an option, and is called with or without TLS. A redirection counts as
// a failure. While fewer than 16 receivers fail or hang, each of them delays the notices to other
// receivers by at most one call, which takes up to 10 s.
//
// # When not to use it
//
// A notice is sent seconds after the usage, and has no effect on requests. To deny requests, use a
// rule with a limit per month.
package notify
