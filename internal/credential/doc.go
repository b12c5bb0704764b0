// SPDX-License-Identifier: Apache-2.0

// Package credential verifies credentials and returns their owners. A credential is a JSON Web
// Token ([JWT]) or an API key ([Keys]).
//
// # Promise
//
// A client cannot choose how its credential is verified. A key has one kind, and verifies only
// signatures of that kind's algorithms. Members of a token that refer to its key are ignored. A
// token has only one valid encoding, and no name occurs twice in it. A token must expire, unless
// the options allow otherwise. Claims are read only after the signature is verified. A signed token
// whose limits or tier cannot be read is invalid, and never counts as another client's token.
//
// Verification never waits for a file or the network. Goroutines of this package watch files and
// fetch URLs. If that fails, the last good keys remain in force. Keys are rotated without a
// restart. When a key is removed, all verdicts based on it are dropped.
//
// The processor time for tokens that no key has signed is charged to the address that sends them.
// An address may use 10 ms of processor time at once and 10 ms a second for such tokens. All
// addresses together may use an eighth of all processors. Verification for addresses that send such
// tokens occupies at most half of the processors at any time. A token beyond these bounds is not
// verified and counts as invalid. A remembered verdict is free, and a token with a valid signature
// only waits for its turn. The bounds apply to the whole process, whatever the number of verifiers.
//
// Verdicts are remembered by the whole token. So a client's second request requires no signature
// check, and an attacker's thousandth does not either. Verdicts on failed tokens are stored
// separately, so they do not evict others. Memory is bounded.
//
// API keys are looked up by their SHA-256. A key is never stored, logged or shown. The hash has no
// salt and a single round. Such a hash would be too weak for passwords, but keys from
// [GenerateKey] have 256 random bits.
//
// # Price
//
// A remembered token of 700 bytes costs 0.1 µs and no allocation, or 0.4 µs if 10,000 tokens are
// in use, which do not fit into the processor's cache. A lookup by the token's SHA-256 would cost
// 0.9 µs for the hash alone. A new token costs its signature check, about 30 µs for RS256, and 10
// µs more. An API key costs 0.12 µs, mostly for the hash (2 cores, 2026). A token beyond the
// bounds costs 0.1 µs. Remembered tokens take at most 64 MiB, enough for about 48,000 tokens of
// 700 bytes. In addition, a client's own limits for "*" take 300 bytes for every rule that applies
// to the client. Bad edits, failed fetches and unreadable claims are logged at a bounded rate.
//
// # When not to use it
//
// Do not use it for authorization. This package determines which client to count. The package does
// not check scopes, roles or grants. (The control plane authorizes people by a tier that ChooseTier
// takes from their groups.) The package does not check for revocation either: a token is valid
// until it expires.
package credential
