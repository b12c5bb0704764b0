// SPDX-License-Identifier: Apache-2.0

// Package e2e proves the promises from outside: it builds bin/caddy, starts real Caddy and Redis processes, and asks over
// the network. It has nothing to import. A missing redis-server fails the run.
package e2e
