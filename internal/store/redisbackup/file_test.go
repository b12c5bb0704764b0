// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/seed"
)

// TestAnyAlteredByteIsFound alters each byte of a backup, cuts it at each byte, and drops,
// duplicates and swaps lines. Each change is found before anything is written.
func TestAnyAlteredByteIsFound(t *testing.T) {
	rng := seed.Random(t)
	w := single(t)
	w.take(checks(t, "u1", 3)...)
	w.take(checks(t, "u22", 4)...)
	whole, err := io.ReadAll(w.backup())
	if err != nil {
		t.Fatal(err)
	}
	w.flush()
	wrong := func(what string, at int, bad []byte) {
		if _, err := check(bytes.NewReader(bad)); !errors.Is(err, errAltered) {
			t.Errorf("%s at %d of %d: %v", what, at, len(whole), err)
		}
	}
	for i := range whole {
		bad := slices.Clone(whole)
		bad[i] ^= 1 << rng.IntN(8)
		wrong("altered", i, bad)
		wrong("cut", i, whole[:i])
		wrong("missing", i, slices.Delete(slices.Clone(whole), i, i+1))
		wrong("doubled", i, slices.Insert(slices.Clone(whole), i, whole[i]^1))
	}
	lines := strings.SplitAfter(string(whole), "\n")
	for i := 1; i < len(lines)-2; i++ {
		wrong("line dropped", i, []byte(strings.Join(slices.Delete(slices.Clone(lines), i, i+1), "")))
		swapped := slices.Clone(lines)
		swapped[i], swapped[i-1] = swapped[i-1], swapped[i]
		wrong("lines swapped", i, []byte(strings.Join(swapped, "")))
	}
	bad := slices.Clone(whole)
	bad[len(bad)-1-rng.IntN(len(bad))] ^= 1
	if _, err := Restore(t.Context(), w.servers, bytes.NewReader(bad), false); !errors.Is(err, errAltered) {
		t.Errorf("restored with an altered byte: %v", err)
	}
	if size, err := w.servers.Nodes[0].Client().DBSize(t.Context()).Result(); err != nil || size != 0 {
		t.Errorf("%d keys were written (%v)", size, err)
	}
	if restored := w.restore(bytes.NewReader(whole), false); restored.Added != 12 {
		t.Errorf("the whole backup: %v", restored)
	}
}

// TestABackupOfAnotherFormatIsRejected: a backup that is whole but has another format or unknown
// records is rejected as a whole.
func TestABackupOfAnotherFormatIsRejected(t *testing.T) {
	w := single(t)
	for want, r := range map[string]record{
		"is no counter": {key: "rl1:~secret:{~secret}", value: "1 2 3"},
		"line 2":        {key: "rl1:shop:api:{user:a}:60s:sw", value: "1 2"},
		"line 2, \"0 r": {key: "rl1:shop:api:{user:a}:60s:sl", value: "1:0"},
	} {
		if _, err := Restore(t.Context(), w.servers, newBackup(t, r), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", r.value, err, want)
		}
	}
	var file bytes.Buffer
	if err := newWriter(&file, time.Time{}).end(&file); err != nil {
		t.Fatal(err)
	}
	if _, err := check(bytes.NewReader(file.Bytes())); err != nil {
		t.Errorf("an empty backup: %v", err)
	}
}

// TestWhatIsInABackup: keys of other kinds, and values that no counter can have, are left out and
// counted.
func TestWhatIsInABackup(t *testing.T) {
	w := single(t)
	client := w.servers.Nodes[0].Client()
	for _, key := range []string{"rl1:~secret:{~secret}", "rl1:~who:{user:a}", "other", "rl1:shop:api:{user:a}:60s:fw", "rl1:shop:api:{user:a}:60s:sl", "rl1:shop:api:{user:a}:60s"} {
		if err := client.Set(t.Context(), key, "secret", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	w.take(checks(t, "u1", 3)...)
	var file bytes.Buffer
	got, err := Write(t.Context(), w.servers, &file)
	if err != nil || got.Counters != 6 || got.Wrong != 2 || strings.Contains(file.String(), "secret") {
		t.Errorf("%v, %v\n%s", got, err, file.String())
	}
	restored := w.restore(bytes.NewReader(file.Bytes()), false)
	if restored.Kept != 6 || restored.Added != 0 {
		t.Errorf("%v", restored)
	}
}
