// SPDX-License-Identifier: Apache-2.0

package abi

// clock is one of the clocks of WASI.
type clock uint32

//go:wasmimport wasi_snapshot_preview1 clock_time_get
func clockTimeGet(c clock, precision uint64, nanos *uint64) (errno uint32)

// nanos is the memory into which Envoy writes an instant.
var nanos uint64

func (c clock) micros() int64 {
	if clockTimeGet(c, 1000, &nanos) != 0 {
		panic("abi: Envoy has no clock")
	}
	return int64(nanos / 1000)
}

// Now returns the time in microseconds since 1970.
func Now() int64 { return clock(0).micros() }

// Elapsed returns the time in microseconds since an instant in the past, by a clock that never
// jumps.
func Elapsed() int64 { return clock(1).micros() }
