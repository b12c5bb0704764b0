// SPDX-License-Identifier: Apache-2.0

package controlclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/penstock/penstock/controlclient"
)

// serveAnswer returns the address of a control plane that gives the same answer to all calls.
func serveAnswer(status int, header, text string) (address string, end func()) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", header)
		w.WriteHeader(status)
		fmt.Fprint(w, text)
	}))
	return server.URL, server.Close
}

func ExampleClient_GetClient() {
	address, end := serveAnswer(200, `"17"`, `{"client":"user:ann","record":{"tier":"gold"},"revision":17,"updated_at":"2026-11-26T08:00:00Z"}`)
	defer end()
	c, err := controlclient.New(address, controlclient.Options{Token: "pst_…"})
	if err != nil {
		fmt.Println(err)
		return
	}
	found, tag, err := c.GetClient(context.Background(), "user:ann")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(found.Record.Tier, tag)
	// Output: gold "17"
}

// A write with the ETag that was read changes nothing if somebody else has changed the record
// meanwhile.
func ExampleClient_PatchClient() {
	address, end := serveAnswer(412, "", `{"title":"Precondition Failed","status":412,"detail":"the client has changed since"}`)
	defer end()
	c, err := controlclient.New(address, controlclient.Options{Token: "pst_…"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tier := "gold"
	_, _, err = c.PatchClient(context.Background(), "user:ann", controlclient.Condition{Match: `"17"`}, controlclient.PatchClient{Tier: &tier, Reason: "paid"})
	var e *controlclient.Error
	if errors.As(err, &e) && e.Status == http.StatusPreconditionFailed {
		fmt.Println("read it again:", e.Detail)
	}
	// Output: read it again: the client has changed since
}

func ExampleClient_AllClients() {
	address, end := serveAnswer(200, "", `{"clients":[{"client":"user:ann","record":{},"revision":1,"updated_at":"2026-11-26T08:00:00Z"}]}`)
	defer end()
	c, err := controlclient.New(address, controlclient.Options{Token: "pst_…"})
	if err != nil {
		fmt.Println(err)
		return
	}
	for one, err := range c.AllClients(context.Background(), controlclient.ListClientsOptions{Blocked: true}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(one.Client)
	}
	// Output: user:ann
}

// Each problem of an invalid write has the place, the value, and what to write instead.
func ExampleError() {
	address, end := serveAnswer(422, "", `{"title":"Unprocessable Entity","status":422,"detail":"the write is not valid, and changes nothing",
		"errors":[{"message":"write 500/1h","location":"body.limits","value":["500/fortnight"]}]}`)
	defer end()
	c, err := controlclient.New(address, controlclient.Options{Token: "pst_…"})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _, err = c.EditClient(context.Background(), "user:ann", controlclient.Condition{},
		controlclient.EditClient{Action: "set-limit", Rule: "api", Limits: []string{"500/fortnight"}, Reason: "until Friday"})
	var e *controlclient.Error
	if errors.As(err, &e) {
		for _, p := range e.Problems {
			fmt.Println(p.Place, string(p.Value), p.Remedy)
		}
	}
	// Output: body.limits ["500/fortnight"] write 500/1h
}
