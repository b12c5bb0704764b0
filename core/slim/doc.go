// SPDX-License-Identifier: Apache-2.0

// Package slim contains small replacements for standard library functions, which keep the filter
// that runs inside Envoy small.
//
// # Promise
//
// Each function returns what its counterpart in the standard library returns, for the inputs that
// its comment names. Tests compare the two.
//
// # Price
//
// Envoy compiles a filter when it starts, and takes about a second per MB. A function is here if
// the filter is smaller with it than with the library's function. Each function's comment states
// the price, which is the size that the library's function would add to the filter.
// TestSlimIsWorthItsPrice measures it. The prices cannot be summed, because the library's functions
// share code.
//
// Functions for single bytes, digits and escapes have no counterpart in the library. The other
// functions and their callers use them.
//
// # When not to use it
//
// Where the size of the program does not matter, use the standard library, which every reader
// knows.
package slim
