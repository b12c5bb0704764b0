// SPDX-License-Identifier: Apache-2.0

// Package core decides whether requests are within rate limits. The package does no I/O and reads
// no clock.
//
// # Promise
//
// A request goes through these steps:
//
//	attributes → Identify → Match → Take → Decision → response
//
// The store does Take; this package and package response do the rest. This package identifies the
// client, finds the limits that apply and the keys of their counters, and turns the answers of a
// [counter.Store] into a decision. Package response writes the decision as a response. The
// algorithms themselves are in package [counter], as pure functions of a counter's [counter.State]
// and an instant, so all stores make the same decisions. Callers pass the time and do the I/O; the
// package has no goroutines and no clock. The package builds for GOOS=wasip1. The build tag
// penstock_filter leaves out what only a process with a store needs: [Compile], calendars and the
// text of limits.
//
// The files follow these steps: compile.go makes a [Ruleset]; plan.go identifies the client,
// matches the rules and adds their checks, whose keys key.go builds; decision.go decides; shown.go
// selects the limit that clients see; settlement.go corrects charges once the response is known;
// explain.go describes all of these steps.
//
// # Price
//
// A request that matches three of a thousand rules is identified, matched and turned into checks in
// about a microsecond, without allocating. The memory of a [Ruleset] grows with its rules, not with
// its clients.
//
// # When not to use it
//
// To limit one function in one process, use golang.org/x/time/rate. Use this package if several
// proxies must count many limits of many clients in one place.
package core
