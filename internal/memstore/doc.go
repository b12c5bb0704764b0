// SPDX-License-Identifier: Apache-2.0

// Package memstore keeps counters in the memory of this process.
package memstore
