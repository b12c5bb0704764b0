// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/freeport"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestAwaitStart tests that the connections of the lanes exist when AwaitStart returns, and that it
// does not wait for a server that cannot be reached.
func TestAwaitStart(t *testing.T) {
	server := redistest.Start(t)
	patient, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for url, want := range map[string]int{server.URL(): LanesDefault, "redis://" + freeport.Address(t): 0} {
		s, err := New(Options{URL: url})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		s.AwaitStart(patient)
		if patient.Err() != nil {
			t.Fatalf("%s: it waits", url)
		}
		clients, err := server.Client().ClientList(t.Context()).Result()
		if n := strings.Count(clients, "name="+clientName+" "); err != nil || n < want {
			t.Errorf("%s: %d connections, %v, want %d", url, n, err, want)
		}
	}
}
