// SPDX-License-Identifier: Apache-2.0

// Package identity says whose a credential is: a JSON Web Token ([JWT]) or an API key ([Keys]).
//
// # Promise
//
// Nothing that a client writes chooses how it is verified. A key is of one kind and verifies the algorithms of that kind
// only; what a token says about where its key is to be found is not read; a token is written in one way only, and no name
// stands in it twice. A token must expire, unless the options say otherwise. Claims are not looked at before the signature
// holds. A token that was signed but has limits or a tier that cannot be read is invalid: it never counts as somebody
// else's.
//
// Verifying never waits for a file or the network: files are watched and URLs fetched by goroutines of this package, and when
// that fails the last good keys stay in force. Keys are rotated without a restart; what a key has verified is forgotten with
// it.
//
// Tokens that no key has signed cost those who send them: an address has 10 ms of a processor for them at once and 10 ms a
// second, all addresses together have an eighth of all processors, and no more than half of the processors verify at once for
// addresses that send such tokens. A token beyond that is not looked at and counts as one that does not verify. What is known
// or signed is free. The bounds are those of the process, whatever the number of verifiers.
//
// Verdicts are remembered by the whole token, good and failed ones apart, so that neither a client's second request nor an
// attacker's thousandth costs a signature check, and so that failed ones push out no good ones. Memory is bounded.
//
// API keys are looked up by their SHA-256. A key is never kept, logged or shown. The hash has no salt and one round: keys
// that [GenerateKey] makes have 256 random bits, so that neither would add anything. That is not so for passwords.
//
// # Price
//
// A remembered token of 700 bytes costs 0.1 µs and no allocation, 0.4 µs where 10,000 of them do not stay in the processor's
// cache; its SHA-256 alone would cost 0.9 µs. A new one costs its signature check, for RS256 some 30 µs, and 10 µs more. An
// API key costs 0.12 µs, most of it the hash (2 cores, 2026). One that there is no time for costs 0.1 µs. Tokens that are remembered take 64 MiB at most, some 48,000 of
// 700 bytes; beside that, a client's own limits for "*" take 300 bytes each in every rule that it meets. A bad edit, a URL
// that fails and a token whose claims make no sense are log lines at a bounded rate.
//
// # When not to use it
//
// To authorize. This package finds out whom to count; it looks at no scope, role or grant, and asks nobody whether a token
// was taken back: a token is good until it expires.
package identity
