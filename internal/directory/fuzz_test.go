// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"encoding/json"
	"testing"

	"github.com/penstock/penstock/internal/directory"
)

// FuzzRecord tests that any text is either parsed or rejected as a record, and that a parsed record
// is the same after it is written and read again.
func FuzzRecord(f *testing.F) {
	for _, text := range []string{"{}", `{"tier":"gold","note":"x"}`,
		`{"grants":[{"rule":"api","units":500,"window":"month","at":"2026-11-23T08:31:00Z","reason":"x"},{"rule":"api","units":1,"at":"2026-11-23T08:31:00Z"}]}`, `{"block":{"until":"2026-11-27T00:00:00Z","reason":"x"},"exempt":{}}`,
		`{"limits":{"api":{"limits":["500/1h"]},"*":{"limits":["unlimited"]}}}`, `{"v":2}`, `{"tire":1}`, "[]", ""} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := directory.ParseRecord(text)
		if err != nil {
			return
		}
		written := r.Text()
		if written == nil {
			return // this is a record without settings
		}
		again, err := directory.ParseRecord(written)
		if err != nil || string(again.Text()) != string(written) {
			t.Errorf("%q was written as %q and read as %+v, %v", text, written, again, err)
		}
	})
}

// FuzzName tests that any text is either parsed or rejected as a name, and that a parsed name stays
// the same when it is parsed again.
func FuzzName(f *testing.F) {
	for _, text := range []string{"user:u", "ip:192.0.2.0/24", "ip:::ffff:192.0.2.7", "header.X-A:b", "tenant-sha256:00", ":", ""} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, err := directory.ParseName(text)
		if err != nil {
			return
		}
		if again, err := directory.ParseName(name.String()); err != nil || again != name || len(name.ID) > 255 {
			t.Errorf("%q is %q, and that is %q, %v", text, name, again, err)
		}
	})
}

// FuzzLine tests that a parsed line of an export has its final form: when it is written and parsed
// again, the result is the same line.
func FuzzLine(f *testing.F) {
	for _, line := range fewRecords {
		f.Add([]byte(line))
	}
	f.Add([]byte(`{"client":"user:x","key":"","record":{"limits":{"*":{"limits":["unlimited"]}},"v":1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		line, err := directory.ParseLine(text)
		if err != nil {
			return
		}
		written, err := json.Marshal(line)
		if err != nil {
			t.Fatal(err)
		}
		again, err := directory.ParseLine(written)
		if err != nil || again.Name() != line.Name() || string(again.Record) != string(line.Record) {
			t.Errorf("%q is read as %+v and then as %+v, %v", text, line, again, err)
		}
	})
}
