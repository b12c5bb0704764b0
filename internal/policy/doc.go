// SPDX-License-Identifier: Apache-2.0

// Package policy reads policies as people write them: YAML, TOML, JSON, or the words of a Caddyfile.
//
// # Promise
//
// Every format becomes the same tree of [Node]s with places, and one strict decoder turns the tree into a [Document]. It
// reports every problem it finds, not only the first, each with its place, path, value and remedy. Words that are not
// known are refused, and words of a later version are told apart from misspelled ones. [Document.Policy] turns words into
// [core.Policy]; [Document.CompileWith] makes the ruleset that decides. [Document.Advise] says what is right and probably
// not meant, [Watch] when a file changes, and [Diff] what changed in it.
//
// # Price
//
// 10,000 rules take 0.5 s and 280 MB of garbage in YAML, a third of that or less in TOML and JSON (2 cores, 2026). [SizeMax]
// bounds both. Nothing here is for the way of a request.
//
// # When not to use it
//
// To build a policy in a Go program, fill in [core.Policy].
package policy
