// SPDX-License-Identifier: Apache-2.0

// Package redisadmin inspects the Redis servers that hold counters. The package lists the servers
// and their state ([Deployment.Health]), finds settings that would make limits fail, with the
// commands that correct them ([Deployment.Doctor]), prints the content of a counter
// ([Deployment.Inspect]), and starts a local cluster for experiments ([StartTrial]).
//
// The package discovers the topology by itself: an address can be that of a single server, any node
// of a cluster, or any sentinel. The package changes nothing, except for a temporary counter with
// which the doctor tests the script.
//
// An inspection takes a connection and several round trips per server. Do not use the package while
// a request waits: an inspection does not respect a request's deadline, and each call connects to
// all servers anew.
package redisadmin
