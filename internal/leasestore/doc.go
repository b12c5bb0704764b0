// SPDX-License-Identifier: Apache-2.0

// Package leasestore stands between a front and a store that other processes share, and answers from memory what the
// store need not be asked: refusals that it gave a moment ago.
//
// # Promise
//
// Nothing is admitted that the store has not charged.
//
// # Price
//
// A look at a table of fixed size for each check of a call.
//
// # When not to use it
//
// Not over a store in this process's memory: it decides in less time than is saved here.
package leasestore
