// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the programs from outside. It builds them, starts real Caddy, Envoy and Redis
// processes, and sends requests over the network. The package exports nothing. If a program that
// the tests need is missing, the run fails.
package e2e
