// SPDX-License-Identifier: Apache-2.0

// Package e2e tests the programs from outside: it builds them, starts real Caddy, Envoy and Redis
// processes, and sends requests over the network. The package exports nothing. A missing
// redis-server fails the run.
package e2e
