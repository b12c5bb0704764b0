// SPDX-License-Identifier: Apache-2.0

// Package ruletable turns tables of rate limit rules, as many companies have them in a database,
// into the rules of a policy.
//
// # Promise
//
// A table is CSV with a header, as PostgreSQL's COPY … WITH (FORMAT csv, HEADER) writes it. The
// table's columns say which of three forms it has. A column or a value that is not known is an
// error with its line. Settings that cannot be carried over are reported as notes. The rules are
// checked as those of any policy.
//
// # When not to use it
//
// Limits of single clients are not rules: they are records of the directory.
package ruletable
