// SPDX-License-Identifier: Apache-2.0

//go:build penstock_filter

package usage

// keptShare is empty in the filter, which keeps no compressed bodies.
type keptShare struct{}

func (keptShare) countFor(uint32) {}

func (keptShare) grow(int) bool { return true }

func (keptShare) end() {}
