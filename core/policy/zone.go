// SPDX-License-Identifier: Apache-2.0

//go:build !penstock_filter

package policy

import "time"

// Zone is the time zone of a policy.
type Zone = time.Location
