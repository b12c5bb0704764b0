// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// encoded has two fields in the ABI's form. The second one has no value.
const encoded = "\x02\x00\x00\x00" + "\x05\x00\x00\x00\x03\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" +
	":path\x00/a?\x00" + "b\x00\x00"

func TestFields(t *testing.T) {
	long := strings.Repeat("long", 100_000) // the length of this field needs three bytes
	for name, c := range map[string]struct {
		fields [][2]string
		want   string // "" if only the way back is tested
	}{
		"none":  {fields: [][2]string{}, want: "\x00\x00\x00\x00"},
		"two":   {fields: [][2]string{{":path", "/a?"}, {"b", ""}}, want: encoded},
		"zeros": {fields: [][2]string{{"a\x00b", "\x00"}, {"", "\xff"}}},
		"long":  {fields: [][2]string{{"a", long}, {long, "b"}}},
	} {
		data := encodeFields(c.fields)
		if c.want != "" && string(data) != c.want {
			t.Errorf("%s: encoded as %q, want %q", name, data, c.want)
		}
		if len(data) != cap(data) {
			t.Errorf("%s: %d bytes are allocated for %d", name, cap(data), len(data))
		}
		fields, ok := decodeFields(data)
		if diff := cmp.Diff(c.fields, fields); !ok || diff != "" {
			t.Errorf("%s: decoded %v -want +got\n%.200s", name, ok, diff)
		}
	}
}

// TestFieldsCutShort: truncated data does not have the ABI's form.
func TestFieldsCutShort(t *testing.T) {
	for n := range len(encoded) {
		if fields, ok := decodeFields([]byte(encoded[:n])); ok {
			t.Errorf("the first %d bytes are decoded as %q", n, fields)
		}
	}
}

func FuzzDecodeFields(f *testing.F) {
	f.Add([]byte(encoded))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Add([]byte("\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, data []byte) {
		fields, ok := decodeFields(data)
		if !ok {
			return
		}
		if again, ok := decodeFields(encodeFields(fields)); !ok || !cmp.Equal(fields, again) {
			t.Errorf("%q is decoded as %q and then as %q", data, fields, again)
		}
	})
}

func TestPath(t *testing.T) {
	for want, path := range map[string][]string{"": nil, "plugin_name": {"plugin_name"}, "source\x00address": {"source", "address"}} {
		if got := string(appendPath(nil, path)); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	if err := ok.err(); err != nil {
		t.Errorf("success is the error %v", err)
	}
	for status, want := range map[Status]string{
		NotFound: "Envoy: not found", BadArgument: "Envoy: bad argument", 12: "Envoy: status 12 of the Proxy-Wasm ABI",
	} {
		if err := status.err(); err != error(status) || err.Error() != want {
			t.Errorf("status %d is the error %v, want %q", uint32(status), err, want)
		}
	}
}
