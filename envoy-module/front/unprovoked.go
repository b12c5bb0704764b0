// SPDX-License-Identifier: Apache-2.0

//go:build !provoke

package front

// The function provoke causes a panic in tests of panics.
func provoke(*Stream, string) {}

// Provoke is provoke for the hooks.
func (*Stream) Provoke(string) {}
