// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/penstock/penstock/internal/usage/inflate"
)

// oracle reads a number in a slow and obvious way.
func oracle(body, path string) (string, bool) {
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.UseNumber()
	var value any
	if !json.Valid([]byte(body)) || decoder.Decode(&value) != nil {
		return "", false
	}
	for _, name := range strings.Split(path, ".") {
		switch container := value.(type) {
		case map[string]any:
			value = container[name]
		case []any:
			index, err := strconv.Atoi(name)
			if err != nil || index < 0 || index >= len(container) || strconv.Itoa(index) != name {
				return "", false
			}
			value = container[index]
		default:
			return "", false
		}
	}
	number, ok := value.(json.Number)
	if len(number) > numberBytesMax {
		return "", false
	}
	return number.String(), ok
}

// eventsOracle returns the last number of an event stream: it gives the joined data of each event
// to oracle.
func eventsOracle(body, path string) (value string, ok bool) {
	body = strings.TrimPrefix(body, byteOrderMark)
	body = strings.ReplaceAll(strings.ReplaceAll(body, "\r\n", "\n"), "\r", "\n")
	var data []string
	for _, line := range append(strings.Split(body, "\n"), "") {
		name, rest, _ := strings.Cut(line, ":")
		switch {
		case line == "":
			if found, there := oracle(strings.Join(data, "\n"), path); there {
				value, ok = found, true
			}
			data = nil
		case name == "data":
			data = append(data, strings.TrimPrefix(rest, " "))
		}
	}
	return value, ok
}

// depth returns the number of brackets that body opens, including those in strings.
func depth(body string) int { return strings.Count(body, "[") + strings.Count(body, "{") }

// FuzzTap compares the tap with the oracle, for any body in any chunks.
func FuzzTap(f *testing.F) {
	for _, body := range []string{
		`{"usage":{"total_tokens":21}}`, `{"usage":{"total_tokens":1},"usage":{"total_tokens":-0.5E-7}}`, `[{"n":[1,2]}]`,
		"data: {\"usage\":{\"total_tokens\":2}}\r\n\r\ndata: [DONE]\n\n", "data: {\"a\":\ndata: 1}\n\n", "\uFEFFdata:1",
		`{"\u0061":"\ud800\"","b":{}}`, `{"a":1}`, "data\r\rdata:{\"a\":3}", `{"a":true,"a":9}`,
	} {
		f.Add(body, tokens, uint8(3), false)
		f.Add(body, "a", uint8(1), true)
		f.Add(body, "0.n.1", uint8(2), true)
	}
	f.Fuzz(func(t *testing.T, body, path string, chunk uint8, events bool) {
		if depth(body) > depthMax || !utf8.ValidString(body) || !utf8.ValidString(path) || len(path) > keyBytesMax/8 {
			t.Skip("the oracle has other bounds")
		}
		kind, wanted := document, oracle
		if events {
			kind, wanted = stream, eventsOracle
		}
		want, wantOK := wanted(body, path)
		for _, n := range slices.Compact([]int{1, int(chunk) + 1, len(body) + 1}) {
			if got, ok := read(t, body, kind, "", n, path); got != want || ok != wantOK {
				t.Fatalf("%q in chunks of %d: %q, %v, want %q, %v", body, n, got, ok, want, wantOK)
			}
		}
	})
}

// FuzzCompressed writes arbitrary bodies that are declared to be compressed.
func FuzzCompressed(f *testing.F) {
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff}, true)
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 4, 0}, false)
	f.Fuzz(func(t *testing.T, body []byte, gz bool) {
		encoding := "zstd"
		if gz {
			encoding = "gzip"
		}
		tap := New([]string{tokens}, document, encoding, inflate.Bodies{})
		if n, err := tap.Write(body); n != len(body) || err != nil {
			t.Fatal(n, err)
		}
		tap.JSON(tokens)
	})
}
