// SPDX-License-Identifier: Apache-2.0

// Package archive moves old months of events and usage to Parquet files in an S3 bucket, and
// restores them.
//
// # Promise
//
// At each instant a month is in its partition, or all of it is in a verified archive, or both:
// never neither, wherever a process is killed. The partition is dropped only after each object was
// read back whole from the bucket, has the SHA-256 and the rows that were written, and all objects
// have as many rows as the partition, and the same sums. Whoever continues after a kill loses no
// row and writes none twice.
//
// One process at a time works, by an advisory lock. Each attempt writes objects of other names, so
// a process that lost the lock without noticing cannot overwrite what another one has verified.
//
// # Bounds
//
// An object has at most [objectBytesMax] bytes and a row group, and is on disk while it is written
// or read. Each call of the bucket has a deadline.
//
// # When not to use it
//
// To read younger data, which is still in the tables, use package reports. Clients, tiers, policies
// and the history of changes stay in PostgreSQL, and are not archived.
package archive
