// SPDX-License-Identifier: Apache-2.0

// Package controlclient calls the API of a Penstock control plane.
//
// # Promise
//
// The package has a method for each operation of the API, with typed parameters, bodies and
// answers. The methods are generated from the OpenAPI document of the API,
// docs/reference/control.openapi.json, and a test compares them with it. The names of methods are
// the operations' identifiers: list-clients is [Client.ListClients]. A method for pages, such as
// ListClients, has one beside it that reads all of them, such as [Client.AllClients].
//
// An answer of status 400 or above is an [Error], with the places, values and remedies that the
// control plane reports. An answer is read up to 16 MiB. A method makes one call and repeats
// nothing: a write that timed out may have been made, so repeat it with a [Condition].
//
// A client is safe for concurrent use. The package needs the standard library only.
//
// # When not to use it
//
// Proxies do not call the control plane, and neither should a program that decides requests: they
// read records from Redis.
package controlclient

//go:generate go test ../internal/test/clientgen -run TestTheClientIsTheOneOfTheDocument -args -update
