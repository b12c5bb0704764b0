// SPDX-License-Identifier: Apache-2.0

// Package core decides rate limits; it never asks the network or the clock.
//
// # Promise
//
// The way of a request is
//
//	attributes → Identify → Match → Take → Decision → Headers
//
// and core does every step but Take: it says who is asking, which limits apply and under which keys they are counted,
// and, once a [Store] has answered, what happens to the request and what the client is told. The four algorithms are
// here too, as pure functions of a counter's [State] and an instant, so that every store decides alike. Time and I/O
// come in as arguments; there is no goroutine, no clock, no lock. The package builds for GOOS=wasip1.
//
// # Price
//
// A request that matches three of a thousand rules is identified, matched and turned into checks within about a
// microsecond and without allocating; memory per [Ruleset] grows with its rules, never with its clients.
//
// # When not to use it
//
// To limit one function in one process, use golang.org/x/time/rate: this package is for many limits over many clients,
// counted in one place for several proxies.
package core
