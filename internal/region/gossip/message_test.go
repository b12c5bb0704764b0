// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/internal/test/seed"
)

// TestMessage: a message is decoded to what was encoded.
func TestMessage(t *testing.T) {
	rng := seed.Random(t)
	for range 200 {
		m := message{from: strings.Repeat("r", rng.IntN(33))}
		for range rng.IntN(50) {
			m.counters = append(m.counters, Told{Name: strings.Repeat("ab", rng.IntN(9)) + fmt.Sprint(rng.IntN(1000)),
				Start: 1 + counter.Micros(rng.Int64N(startMax)), Used: rng.Int64N(1 + counter.CountMax), Before: rng.Int64N(50)})
		}
		got, err := decode(m.encode())
		if err != nil || got.from != m.from || !slices.Equal(got.counters, m.counters) {
			t.Fatalf("%+v is decoded as %+v, error %v", m, got, err)
		}
	}
}

// TestMessagesAreSmall: a counter needs at most 64 bytes on average, whether clients are users or
// addresses.
func TestMessagesAreSmall(t *testing.T) {
	limit, err := counter.ParseLimit("1000/1h")
	if err != nil {
		t.Fatal(err)
	}
	rng := seed.Random(t)
	for what, client := range map[string]func() string{
		"users": func() string { return fmt.Sprintf("user:u_%08x", rng.Uint32()) },
		"addresses": func() string {
			return fmt.Sprintf("ip:%d.%d.%d.%d", rng.IntN(256), rng.IntN(256), rng.IntN(256), rng.IntN(256))
		},
		"hashes": func() string { return fmt.Sprintf("api_key:%016x%016x", rng.Uint64(), rng.Uint64()) },
	} {
		m := message{from: "us"}
		for range pageMax {
			c := regionstore.Changed{Key: "rl1:shop:api:{" + client() + "}" + counter.KeyTail(&limit), Limit: limit}
			m.counters = append(m.counters, Told{Name: c.String(), Start: 1_700_006_400 * counter.Second, Used: rng.Int64N(1000), Before: rng.Int64N(1000)})
		}
		each := float64(len(m.encode())) / pageMax
		t.Logf("%s: %.1f bytes for each counter", what, each)
		if each > 64 {
			t.Errorf("%s: %.1f bytes for each counter, want at most 64", what, each)
		}
	}
}

// FuzzMessage: no text makes the decoder panic, and each message that it accepts is within the
// bounds.
func FuzzMessage(f *testing.F) {
	m := message{from: "us", counters: []Told{{Name: "100/1h||rl1:n:api:{user:ann}:3600s:sw", Start: 1, Used: 2, Before: 3}}}
	f.Add(m.encode())
	f.Add([]byte{version, 0, 200, 200, 1})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decode(text)
		if err != nil {
			return
		}
		for _, c := range m.counters {
			if len(c.Name) > nameBytesMax || c.Used < 0 || c.Before < 0 || c.Start < 1 {
				t.Errorf("%+v is out of bounds", c)
			}
		}
	})
}
