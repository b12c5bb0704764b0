// SPDX-License-Identifier: Apache-2.0

// Package redisadmin inspects the Redis servers that hold counters. It lists the servers and their
// state ([Deployment.Health]), finds settings that would make limits fail, with the commands that
// correct them ([Deployment.Doctor]), prints the content of a counter ([Deployment.Inspect]), and
// starts a local cluster for experiments ([StartTrial]).
//
// It discovers the topology by itself: an address may be a single server, any node of a cluster, or
// any sentinel. It changes nothing, except for a temporary counter with which the doctor tests the
// script.
//
// It costs a connection and some round trips per server. Do not use it while a request waits:
// nothing here is bounded by a request's deadline, and calls share nothing.
package redisadmin
