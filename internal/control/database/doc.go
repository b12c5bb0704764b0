// SPDX-License-Identifier: Apache-2.0

// Package database opens the database of a control plane and keeps its schema current.
//
// # Promise
//
// [Open] connects to PostgreSQL 14 or later. [Migrate] brings the schema to the version of this
// program, in steps that are each a transaction. The steps are embedded and lead forward only.
// Processes that start together take turns by an advisory lock. A schema that is newer than the
// program is an error and stays as it is.
//
// # Price
//
// All tables are in the schema penstock. A start without a step to make costs a few milliseconds.
package database
