// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/meter"
	"github.com/penstock/penstock/internal/test/eventually"
)

// TestUsesOfKeysAreSent tests that each API key that was used arrives with its time, to within five
// seconds, even if the spool was full before.
func TestUsesOfKeysAreSent(t *testing.T) {
	t.Parallel()
	k, m := newTaker(t), meter.New()
	k.answer(http.StatusBadGateway)
	f := k.open(t.TempDir(), m, SpoolBytesMin)
	for f.spool.hasRoom(100_000, eventsPercent) {
		if err := f.spool.put(batch{feed: f.id, number: f.nextNumber()}, emptyBatch(t, 100_000)); err != nil {
			t.Fatal(err)
		}
	}
	begun, want := time.Now().Add(-time.Hour), map[string]time.Time{}
	for n := range 2000 {
		var hash [32]byte
		binary.BigEndian.PutUint64(hash[:], uint64(n))
		at := begun.Add(time.Duration(n) * time.Millisecond)
		want[hex.EncodeToString(hash[:])] = at
		m.NoteKey(hash, at.UnixMicro())
	}
	f.measuredKeys()
	k.answer(0)
	eventually.Until(t, patience, "the spool is empty", func() bool { return f.Figures().Waiting == 0 })
	f.measuredKeys()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.keys) != len(want) {
		t.Fatalf("%d keys arrive, want %d", len(k.keys), len(want))
	}
	for key, at := range want {
		if early := at.Sub(k.keys[key]); early < 0 || early > UsageEvery {
			t.Fatalf("the key %s was used at %v, not at %v", key, at, k.keys[key])
		}
	}
}

// TestLinesOfKeysAreShort tests that a line with as many keys as possible can be read, and that a
// control plane that does not know the field Keys finds no decisions in the line.
func TestLinesOfKeysAreShort(t *testing.T) {
	var e encoder
	uses := make([]meter.KeyUse, 2*keysOfLine)
	if n := e.usedKeys(uses, Escape(string(make([]byte, 255))), Escape(string(make([]byte, 1024)))); n != keysOfLine || len(e.text) > events.LineBytesMax {
		t.Errorf("a line has %d keys and %d bytes", n, len(e.text))
	}
	for _, bucket := range noDecisions {
		if bucket[0] >= 0 && bucket[0] < meter.Buckets {
			t.Errorf("there is a bucket %d", bucket[0])
		}
	}
}
