// SPDX-License-Identifier: Apache-2.0

//go:build !provoke

package front

// The function provoke does nothing. In tests of panics, it is replaced by one that panics.
func provoke(*Stream, string) {}

// Provoke does nothing. In tests of panics, it is replaced by one that panics in the adapter.
func (*Stream) Provoke(string) {}
