// SPDX-License-Identifier: Apache-2.0

// Package push sends the metrics of a process to an OpenTelemetry collector, by OTLP over HTTP.
//
// # Promise
//
// Each report has the values of all metrics since the process started, so if a report is lost, only
// the values at its time are missing. A collector that is away, slow or hostile costs at most one
// goroutine, one connection and the memory for a bounded answer. The names and labels are those of
// Prometheus, as package otlp sends them. A panic while metrics are gathered is reported, and the
// next report follows.
//
// # Price
//
// The package adds 0.1 MB to a program; the exporters of OpenTelemetry, with gRPC, add 13 MB to the
// native module, because they keep the linker from removing unused methods.
//
// # When not to use it
//
// Package otlp also sends spans, speaks gRPC, and is configured by the variables of OpenTelemetry.
package push
