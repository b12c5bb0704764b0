// SPDX-License-Identifier: Apache-2.0

// Package syntax parses YAML, TOML and JSON into one tree of nodes with their positions. The
// package bounds the size and the depth of documents, and rejects constructs that parsers of a
// format interpret differently.
//
// The package does not depend on policies; package policyfile decodes the tree. Package syntax also
// collects the problems of a document (see [Report]) and finds the position of a path in it.
package syntax
