// SPDX-License-Identifier: Apache-2.0

// Package notify tells receivers over HTTP that clients have used a share of a quota: thresholds of
// usage, by webhooks.
//
// # Promise
//
// For each threshold, client, month and share there is one notice, however many processes work and
// wherever they are killed. One process at a time works, by an advisory lock. A notice is sent
// until the receiver answers 2xx, with growing pauses, for three days at most. So it arrives at
// least once, and each copy has the same identifier.
//
// A message is signed as Standard Webhooks describes: HMAC-SHA256 over the identifier, the time of
// the attempt and the body. A receiver that denies old times and identifiers that it has seen is
// safe against messages that somebody sends again.
//
// A receiver is called over https, at a public address. Other networks, also those of this machine,
// must be allowed, and are called with or without TLS. Redirections are failures. A receiver that
// fails or hangs delays notices to the others by one call, 10 s at most, while fewer than 16 do so.
//
// # When not to use it
//
// A notice comes seconds after the usage, and does not limit: a rule with a limit by month does.
package notify
