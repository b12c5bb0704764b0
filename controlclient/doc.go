// SPDX-License-Identifier: Apache-2.0

// Package controlclient calls the API of a Penstock control plane.
//
// # Promise
//
// The package has a method for each operation of the API, with typed parameters, bodies and
// answers. The methods are generated from the OpenAPI document of the API,
// docs/reference/control.openapi.json, and a test compares them with it. The names of methods are
// the operations' identifiers: list-clients is [Client.ListClients]. If a method returns one page,
// as ListClients does, another method returns the items of all pages, such as [Client.AllClients].
//
// An answer of status 400 or above is returned as an [Error], which lists the problems that the
// control plane reports. An answer may have up to 16 MiB. A method makes one call and never repeats
// it. A write that timed out may have taken effect, so repeat it with a [Condition].
//
// A client is safe for concurrent use. The package imports only the standard library.
//
// # When not to use it
//
// Do not use it in a program that decides requests. Such a program should read records from Redis,
// as the proxies do.
package controlclient

//go:generate go test ../internal/test/clientgen -run TestTheClientIsTheOneOfTheDocument -args -update
