// SPDX-License-Identifier: Apache-2.0

//go:build penstock_filter

package policy

// InRegion is nothing in the filter, whose bridge divides limits among regions.
type InRegion = struct{}
