// SPDX-License-Identifier: Apache-2.0

//go:build penstock_filter

package policy

// InRegion is empty in the filter, because the bridge divides limits among regions.
type InRegion = struct{}
