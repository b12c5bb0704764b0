// SPDX-License-Identifier: Apache-2.0

package dnstest

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"
)

func TestServer(t *testing.T) {
	s := Start(t, netip.MustParseAddr("127.0.0.2"))
	look := func(patience time.Duration) ([]netip.Addr, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.Address)
		}}
		return r.LookupNetIP(ctx, "ip", "redis.penstock.test.")
	}
	is := func(want string) {
		t.Helper()
		if all, err := look(time.Minute); err != nil || len(all) != 1 || all[0].Unmap().String() != want {
			t.Errorf("%v, %v, want %s", all, err, want)
		}
	}
	is("127.0.0.2")
	s.MoveTo(netip.MustParseAddr("127.0.0.3"))
	is("127.0.0.3")
	s.SetMode(Ignorant)
	var lookup *net.DNSError
	if _, err := look(time.Minute); !errors.As(err, &lookup) || !lookup.IsNotFound {
		t.Errorf("ignorant: %v", err)
	}
	s.SetMode(Silent)
	if _, err := look(100 * time.Millisecond); !errors.As(err, &lookup) || !lookup.IsTimeout {
		t.Errorf("silent: %v", err)
	}
	s.SetMode(Truthful)
	is("127.0.0.3")
}
