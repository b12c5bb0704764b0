// SPDX-License-Identifier: Apache-2.0

// Package codec encodes and decodes the compact form of policies, identities and settlements.
//
// # Promise
//
// The same code encodes and decodes a value. Each field is named only once, so reader and writer
// agree.
//
// # Price
//
// Decoding allocates the values that it reads. Do not use it on the request path.
//
// # When not to use it
//
// Outside of core, use core/compact and core.Settlement, which are its public API.
package codec
