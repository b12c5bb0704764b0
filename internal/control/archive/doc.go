// SPDX-License-Identifier: Apache-2.0

// Package archive moves old months of events and usage to Parquet files in an S3 bucket, and
// restores them.
//
// # Promise
//
// At each instant a month is in its partition, or completely in a verified archive, or in both, no
// matter where a process is killed. The partition is dropped only after all objects were read back
// completely from the bucket. Each object must have the SHA-256 and the rows that were written. All
// objects together must have the same number of rows and the same sums as the partition. A process
// that continues after a kill loses no row and writes no row twice.
//
// An advisory lock ensures that only one process works at a time. Each attempt writes objects with
// new names, so a process that lost the lock without noticing cannot overwrite what another one has
// verified.
//
// # Bounds
//
// An object has at most [objectBytesMax] bytes plus one row group, and is on disk while it is
// written or read. Each call to the bucket has a deadline.
//
// # When not to use it
//
// To read younger data, which is still in the tables, use package reports. Clients, tiers, policies
// and the history of changes stay in PostgreSQL, and are not archived.
package archive
