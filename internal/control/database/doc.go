// SPDX-License-Identifier: Apache-2.0

// Package database opens the database of a control plane and keeps its schema current.
//
// # Promise
//
// [Open] connects to PostgreSQL 14 or later. [Migrate] brings the schema to the version of this
// program, in steps, each in its own transaction. The steps are embedded and cannot be reverted.
// Processes that start together take turns with an advisory lock. A schema that is newer than the
// program is an error and is not changed.
//
// # Price
//
// All tables are in the schema penstock. If no step is missing, Migrate takes a few milliseconds.
package database
