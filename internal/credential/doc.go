// SPDX-License-Identifier: Apache-2.0

// Package credential verifies credentials and returns their owners. A credential is a JSON Web
// Token ([JWT]) or an API key ([Keys]).
//
// # Promise
//
// A client cannot choose how its credential is verified. A key has one kind and verifies only the
// algorithms of that kind. The members of a token that say where to find its key are ignored. A
// token has only one valid encoding, and no name occurs twice in it. A token must expire, unless
// the options allow otherwise. Claims are read only after the signature is verified. A signed token
// whose limits or tier cannot be read is invalid: it never counts as another client's.
//
// Verification never waits for a file or the network. Goroutines of this package watch files and
// fetch URLs. If that fails, the last good keys stay in force. Keys are rotated without a restart.
// When a key is removed, the verdicts that it gave are forgotten.
//
// Tokens that no key has signed are charged to the address that sends them. An address may use 10
// ms of processor time at once and 10 ms a second for such tokens. All addresses together may use
// an eighth of all processors. Verification for addresses that send such tokens occupies at most
// half of the processors at any time. A token beyond these bounds is not verified and counts as
// invalid. A remembered verdict costs nothing, and a token with a valid signature only waits for
// its turn. The bounds hold for the whole process, whatever the number of verifiers.
//
// Verdicts are remembered by the whole token. So neither a client's second request nor an
// attacker's thousandth one costs a signature check. Failed verdicts are kept separately, so they
// evict no good ones. Memory is bounded.
//
// API keys are looked up by their SHA-256. A key is never stored, logged or shown. The hash has no
// salt and one round. Keys that [GenerateKey] makes have 256 random bits, so neither would add
// anything. That is not true for passwords.
//
// # Price
//
// A remembered token of 700 bytes costs 0.1 µs and no allocation, or 0.4 µs if 10,000 tokens do not
// fit into the processor's cache. Its SHA-256 alone would cost 0.9 µs. A new token costs its
// signature check, some 30 µs for RS256, and 10 µs more. An API key costs 0.12 µs, most of it for
// the hash (2 cores, 2026). A token beyond the bounds costs 0.1 µs. Remembered tokens take 64 MiB
// at most, some 48,000 tokens of 700 bytes. In addition, a client's own limits for "*" take 300
// bytes in every rule that it meets. Bad edits, failed fetches and unreadable claims are logged at
// a bounded rate.
//
// # When not to use it
//
// Do not use it for authorization. This package finds the client to count. It checks no scope, role
// or grant, and does not check for revocation: a token is good until it expires.
package credential
