// SPDX-License-Identifier: Apache-2.0

// Package redisadmin is for people who run the Redis that counters are in: it says what servers there are and how they are
// ([Deployment.Health]), what about them would make limits fail and which command mends it ([Deployment.Doctor]), what a
// counter holds ([Deployment.Inspect]), and it starts a cluster to try things out with ([StartTrial]).
//
// It finds out by itself how servers stand together: an address may be that of one server, of any node of a cluster, or of
// any sentinel. It changes nothing, but for a throw-away counter of its own that the doctor tries the script on.
//
// Its price is a connection and some round trips for each server. It is not for the way of a request: nothing here is
// bounded by a request's deadline, and nothing is shared between calls.
package redisadmin
