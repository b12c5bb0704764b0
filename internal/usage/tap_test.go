// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"bytes"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/penstock/penstock/internal/sources"
	"github.com/penstock/penstock/internal/usage/inflate"
)

const (
	document = "application/json"
	stream   = "text/event-stream; charset=utf-8"
	tokens   = "usage.total_tokens"
)

// read returns the number that a tap finds in a body that is written in chunks of n
// bytes.
func read(t *testing.T, body, contentType, encoding string, n int, path string) (string, bool) {
	t.Helper()
	tap := New([]string{path}, contentType, encoding, inflate.Bodies{})
	for rest := []byte(body); len(rest) > 0; {
		chunk := rest[:min(n, len(rest))]
		if wrote, err := tap.Write(chunk); wrote != len(chunk) || err != nil {
			t.Fatalf("wrote %d of %d: %v", wrote, len(chunk), err)
		}
		rest = rest[len(chunk):]
	}
	return tap.JSON(path)
}

// wantEverywhere checks that the number named want is found however the body is cut into chunks; ""
// means that nothing is found.
func wantEverywhere(t *testing.T, body, contentType, path, want string) {
	t.Helper()
	for _, n := range []int{1, 2, 3, 7, 64, len(body) + 1} {
		got, ok := read(t, body, contentType, "", n, path)
		if got != want || ok != (want != "") {
			t.Errorf("%s in chunks of %d of %.80q: %q, %v, want %q", path, n, body, got, ok, want)
		}
	}
}

func TestDocuments(t *testing.T) {
	for _, c := range []struct{ body, path, want string }{
		{`{"id":"x","usage":{"prompt_tokens":9,"total_tokens":21}}`, tokens, "21"},
		{" {\n\t\"usage\" : { \"total_tokens\" : 21 } }\r\n", tokens, "21"},
		{`{"usage":{"total_tokens":0}}`, tokens, "0"},
		{`{"usage":{"total_tokens":-1.5e+3}}`, tokens, "-1.5e+3"},
		{`{"\u0075sage":{"total\u005ftokens":4}}`, tokens, "4"},
		{`{"usage":[{"n":1},{"n":2}]}`, "usage.1.n", "2"},
		{`[[5],[6]]`, "1.0", "6"},
		{`[[5],[6]]`, "01.0", ""},
		{`{"a":{"0":7}}`, "a.0", "7"},
		{`[1,{"n":[2,3]},4]`, "1.n.1", "3"},
		{`{"m":[1,2,{"n":3}],"n":4}`, "n", "4"},
		// Only a JSON number counts.
		{`{"usage":{"total_tokens":"21"}}`, tokens, ""},
		{`{"usage":{"total_tokens":null}}`, tokens, ""},
		{`{"usage":{"total_tokens":{"n":21}}}`, tokens, ""},
		{`{"usage":null}`, tokens, ""},
		{`21`, tokens, ""},
		// A number counts only at exactly this path.
		{`{"x":{"usage":{"total_tokens":21}}}`, tokens, ""},
		{`{"x":{"total_tokens":21},"usage":{}}`, tokens, ""},
		{`{"usage":{"x":{"total_tokens":21}}}`, tokens, ""},
		{`{"text":"\"usage\":{\"total_tokens\":21}"}`, tokens, ""},
		{`{"usage":{"total_tokens_":21}}`, tokens, ""},
		// The last of several members with one name counts, as in other decoders.
		{`{"usage":{"total_tokens":1},"usage":{"total_tokens":2}}`, tokens, "2"},
		{`{"usage":{"total_tokens":1},"usage":{}}`, tokens, ""},
		{`{"usage":{"total_tokens":1,"total_tokens":null}}`, tokens, ""},
		// A broken or cut document has no numbers.
		{`{"usage":{"total_tokens":21}`, tokens, ""},
		{`{"usage":{"total_tokens":21}}}`, tokens, ""},
		{`{"usage":{"total_tokens":21}} {}`, tokens, ""},
		{`{"usage":{"total_tokens":21}},1`, tokens, ""},
		{`{"usage":{"total_tokens":21}}]`, tokens, ""},
		{`{"usage":{"total_tokens":021}}`, tokens, ""},
		{`{"usage":{"total_tokens":21.}}`, tokens, ""},
		{`{"usage":{"total_tokens":21,}}`, tokens, ""},
		{`{"usage":{"total_tokens":21],}`, tokens, ""},
		{"{\"a\":\"\n\",\"usage\":{\"total_tokens\":21}}", tokens, ""},
		{``, tokens, ""},
		// A number of 64 characters is read, but a longer one is not.
		{`{"n":` + strings.Repeat("1", 64) + `}`, "n", strings.Repeat("1", 64)},
		{`{"n":` + strings.Repeat("1", 65) + `}`, "n", ""},
	} {
		wantEverywhere(t, c.body, document, c.path, c.want)
	}
}

func TestEventStreams(t *testing.T) {
	for _, c := range []struct{ body, want string }{
		{"data: {\"usage\":{\"total_tokens\":1}}\n\ndata: {\"usage\":{\"total_tokens\":2}}\n\ndata: [DONE]\n\n", "2"},
		{"data:{\"usage\":{\"total_tokens\":1}}\r\n\r\ndata: {\"usage\":null}\r\n\r\n", "1"},
		{"data: {\"usage\":\rdata: {\"total_tokens\":3}}\r\r", "3"},
		// a line feed joins the lines
		{"data: {\"usage\":{\"total_tokens\":4\ndata:2}}\n\n", ""},
		{"id: 7\nevent: end\n: a comment\ndata: {\"usage\":{\ndata: \"total_tokens\":4}}\nretry: 5\n\n", "4"},
		{"data: {\"usage\":{\"total_tokens\":5}}", "5"},
		{"data: {\"usage\":{\"total_tokens\":5}}\n\ndata: {\"usage\":{\"total_tokens\":6}", "5"},
		{"\uFEFFdata: {\"usage\":{\"total_tokens\":6}}\n\n", "6"},
		{"dat: 1\ndatax: {}\nXdata: {\"usage\":{\"total_tokens\":6}}\n\n", ""},
		{"data\ndata: {\"usage\":{\"total_tokens\":7}}\ndata\n\n", "7"},
		{"{\"usage\":{\"total_tokens\":8}}\n\n", ""},
		{"data: {\"usage\":{\"total_tokens\":9}}\n\ndata: broken\n\ndata: {\"usage\":{\"total_tokens\":1}\n\n", "9"},
		{"data: " + strings.Repeat(" ", documentBytesMax) + "{\"usage\":{\"total_tokens\":9}}\n\n", ""},
		{"data: " + strings.Repeat(" ", documentBytesMax) + "{}\n\ndata: {\"usage\":{\"total_tokens\":9}}\n\n", "9"},
	} {
		wantEverywhere(t, c.body, stream, tokens, c.want)
	}
}

// TestOtherBodies: bodies of types and codings that are not read have no number, and Readable
// returns false.
func TestOtherBodies(t *testing.T) {
	const body = `{"usage":{"total_tokens":21}}`
	for _, c := range []struct {
		contentType, encoding string
		readable              bool
	}{
		{"application/vnd.api+json; charset=utf-8", "", true},
		{"Application/JSON", "Identity", true},
		{"text/html", "", false},
		{"", "", false},
		{document, "br", false},
		{document, "gzip, gzip", false},
	} {
		got, ok := read(t, body, c.contentType, c.encoding, 4, tokens)
		if ok != c.readable || ok != (got == "21") || New(nil, c.contentType, c.encoding, inflate.Bodies{}).Readable() != c.readable {
			t.Errorf("%q in %q: %q, %v", c.contentType, c.encoding, got, ok)
		}
	}
}

func zipped(t *testing.T, body string) (gz, zst string) {
	t.Helper()
	var a, b bytes.Buffer
	g := gzip.NewWriter(&a)
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []interface {
		Write([]byte) (int, error)
		Close() error
	}{g, z} {
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return a.String(), b.String()
}

func TestCompressedBodies(t *testing.T) {
	long := strings.Repeat("data: {\"text\":\"abc\"}\n\n", 100_000)
	bomb := strings.Repeat(" ", inflatedBytesMax)
	for _, c := range []struct{ what, body, contentType, want string }{
		{what: "a document", body: `{"usage":{"total_tokens":21}}`, contentType: document, want: "21"},
		{what: "a stream", body: long + "data: {\"usage\":{\"total_tokens\":8}}\n\n", contentType: stream, want: "8"},
		{what: "a document over 1 MiB", body: strings.Repeat(" ", documentBytesMax) + `{"usage":{"total_tokens":21}}`, contentType: document},
		{what: "a bomb", body: "data: {\"usage\":{\"total_tokens\":8}}\n\n" + bomb, contentType: stream},
	} {
		gz, zst := zipped(t, c.body)
		for encoding, body := range map[string]string{"gzip": gz, "zstd": zst} {
			for _, n := range []int{1000, 1 << 20} {
				if got, _ := read(t, body, c.contentType, encoding, n, tokens); got != c.want {
					t.Errorf("%s in %s: %q, want %q", c.what, encoding, got, c.want)
				}
			}
			if got, ok := read(t, body[:len(body)/2], document, encoding, 100, tokens); ok {
				t.Errorf("%s in %s, cut short: %q", c.what, encoding, got)
			}
		}
	}
	if got, ok := read(t, "no gzip at all", document, "gzip", 3, tokens); ok {
		t.Errorf("what is not compressed: %q", got)
	}
}

// TestBoundOfADocument: a body of 1 MiB is read, but with one byte more it is not, and Readable
// returns false.
func TestBoundOfADocument(t *testing.T) {
	const end = `{"usage":{"total_tokens":21}}`
	fits := strings.Repeat(" ", documentBytesMax-len(end)) + end
	if got, _ := read(t, fits, document, "", 4096, tokens); got != "21" {
		t.Errorf("1 MiB: %q", got)
	}
	tap := New([]string{tokens}, document, "", inflate.Bodies{})
	_, _ = tap.Write([]byte(fits))
	_, _ = tap.Write([]byte(" "))
	if _, ok := tap.JSON(tokens); ok || tap.Readable() {
		t.Error("more than 1 MiB is read")
	}
	tap = New([]string{tokens}, document, "gzip", inflate.Bodies{})
	for range keptBytesMax/1024 + 1 {
		_, _ = tap.Write(make([]byte, 1024))
	}
	if tap.Readable() || tap.kept != nil {
		t.Error("more than 1 MiB is kept")
	}
	deep := strings.Repeat("[", depthMax) + "1" + strings.Repeat("]", depthMax)
	path := strings.Repeat("0.", depthMax-1) + "0"
	if got, _ := read(t, deep, document, "", 9, path); got != "1" {
		t.Errorf("%d levels: %q", depthMax, got)
	}
	if got, ok := read(t, "["+deep+"]", document, "", 9, path+".0"); ok {
		t.Errorf("%d levels: %q", depthMax+1, got)
	}
}

// TestWhatIsBeyondABoundIsUnread: a client can make an upstream repeat a long or a deep text beside
// the number, in a document or in an event. The body then counts as unread, unless a later event
// has the number.
func TestWhatIsBeyondABoundIsUnread(t *testing.T) {
	deep := strings.Repeat("[", depthMax+1) + strings.Repeat("]", depthMax+1)
	long := `"` + strings.Repeat("x", documentBytesMax) + `"`
	with := func(text string) string { return `{"text":` + text + `,"usage":{"total_tokens":21}}` }
	const first, last = "data: {\"usage\":{\"total_tokens\":1}}\n\n", "data: {\"usage\":{\"total_tokens\":2}}\n\n"
	for name, c := range map[string]struct {
		contentType, body, want string
		unread                  bool
	}{
		"a long document":                {document, with(long), "", true},
		"a deep document":                {document, with(deep), "", true},
		"a long event":                   {stream, first + "data: " + with(long) + "\n\n", "1", true},
		"a deep event":                   {stream, first + "data: " + with(deep) + "\n\n", "1", true},
		"a long event that does not end": {stream, "data: " + with(long), "", true},
		"a long event before the number": {stream, "data: " + with(long) + "\n\n" + last, "2", false},
		"a deep event before the number": {stream, "data: " + with(deep) + "\n\n" + last, "2", false},
		"a document that is not JSON":    {document, `{"usage":{"total_tokens":21}]`, "", false},
		"an event that is not JSON":      {stream, first + "data: [DONE]\n\n", "1", false},
	} {
		tap := New([]string{tokens}, c.contentType, "", inflate.Bodies{})
		_, _ = tap.Write([]byte(c.body))
		if got, _ := tap.JSON(tokens); got != c.want || tap.Unread() != c.unread {
			t.Errorf("%s: %q, unread %v, want %q, %v", name, got, tap.Unread(), c.want, c.unread)
		}
	}
}

// TestOneSourceLeavesRoomForCompressedBodies: while one client has many long compressed responses
// that it does not finish, the taps still read the long responses of other clients.
func TestOneSourceLeavesRoomForCompressedBodies(t *testing.T) {
	var taps []*Tap
	unread := func(source uint32) bool {
		tap := New([]string{tokens}, stream, "gzip", inflate.Bodies{})
		tap.CountFor(source)
		_, _ = tap.Write(make([]byte, keptBytesMax))
		taps = append(taps, tap)
		return tap.Unread()
	}
	own := 0
	for range 2 * allBytesMax / keptBytesMax {
		if unread(1) {
			own++
		}
	}
	other := uint32(3)
	for sources.Number(other)%sourceCounts == sources.Number(1)%sourceCounts {
		other += 2
	}
	if own == 0 || unread(other) {
		t.Errorf("%d bodies of one client are unread, and that of another one beside them: %v", own, unread(other))
	}
	for _, tap := range taps {
		tap.Close()
	}
	for i := range bytesOfSource {
		if left := bytesOfSource[i].Load(); left != 0 {
			t.Fatalf("%d bytes of a source are still counted after the end of the taps", left)
		}
	}
}

// TestCompressedBodiesAreBoundedTogether: clients that read long compressed bodies at the same time
// make a process keep a bounded number of bytes. Bodies of a usual length are read all the same.
func TestCompressedBodiesAreBoundedTogether(t *testing.T) {
	before := allBytes.Load()
	var taps []*Tap
	kept, unread := 0, 0
	for range 2 * allBytesMax / keptBytesMax {
		tap := New([]string{tokens}, stream, "gzip", inflate.Bodies{})
		_, _ = tap.Write(make([]byte, keptBytesMax))
		taps = append(taps, tap)
		if kept += len(tap.kept); tap.Unread() {
			unread++
		}
	}
	if most := allBytesMax + len(taps)*freeBytes; kept > most || unread < len(taps)/4 {
		t.Errorf("%d taps keep %d bytes, want at most %d; %d are unread", len(taps), kept, most, unread)
	}
	var body bytes.Buffer
	w := gzip.NewWriter(&body)
	_, _ = w.Write([]byte(`{"usage":{"total_tokens":21}}`))
	_ = w.Close()
	if got, _ := read(t, body.String(), document, "gzip", 7, tokens); got != "21" {
		t.Errorf("a short body beside them: %q", got)
	}
	for _, tap := range taps {
		tap.Close()
	}
	if left := allBytes.Load(); left != before {
		t.Errorf("%d bytes are still counted after the end of the taps, %d before", left, before)
	}
}

func TestSeveralPaths(t *testing.T) {
	tap := New([]string{"a.b", "a", "c", "a.b"}, document, "", inflate.Bodies{})
	_, _ = tap.Write([]byte(`{"a":{"b":1},"c":3}`))
	for path, want := range map[string]string{"a.b": "1", "a": "", "c": "3", "d": ""} {
		if got, ok := tap.JSON(path); got != want || ok != (want != "") {
			t.Errorf("%s: %q, %v", path, got, ok)
		}
	}
	_, _ = tap.Write([]byte(`{"a":{"b":2}}`))
	if got, _ := tap.JSON("a.b"); got != "1" {
		t.Errorf("after the end: %q", got)
	}
}

// TestWritingDoesNotAllocate: writing chunks of a plain body does not allocate, because they are
// not kept.
func TestWritingDoesNotAllocate(t *testing.T) {
	chunk := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"some words\"}}],\"usage\":null}\n\n")
	tap := New([]string{tokens}, stream, "", inflate.Bodies{})
	_, _ = tap.Write(chunk)
	if n := testing.AllocsPerRun(1000, func() { _, _ = tap.Write(chunk) }); n != 0 {
		t.Errorf("a chunk allocates %v times", n)
	}
}
