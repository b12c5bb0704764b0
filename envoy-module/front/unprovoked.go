// SPDX-License-Identifier: Apache-2.0

//go:build !provoke

package front

// provoke does nothing. In tests of panics, a function that can panic replaces it.
func provoke(*Stream, string) {}

// Provoke does nothing. In tests of panics, a method that can panic replaces it.
func (*Stream) Provoke(string) {}
