// SPDX-License-Identifier: Apache-2.0

package core

import "github.com/penstock/penstock/core/counter"

// boundsFinder finds the boundaries of a limit's calendar windows. A boundsFinder is an interface
// so that a program that calls no store does not link time zones.
type boundsFinder interface {
	bounds(l *counter.Limit, now counter.Micros) *counter.Bounds
}
