// SPDX-License-Identifier: Apache-2.0

// Package compact encodes policies, identities and refunds for transfer between processes.
//
// # Promise
//
// Each Read function decodes the output of the corresponding Append function of this release or the
// previous one. The output contains no secret: for credentials, it describes only where requests
// carry them. Damaged input causes an error, never a panic.
//
// # Price
//
// A policy of 1,000 rules takes about 100 KB. The decoder adds 30 KB to the filter.
//
// # When not to use it
//
// Do not use it for data that people read or that must outlive a release. Keep policies in YAML,
// TOML or JSON.
package compact
