// SPDX-License-Identifier: Apache-2.0

//go:build penstock_filter

package policy

// Zone is never set in the filter, which has no calendar.
type Zone struct{}
