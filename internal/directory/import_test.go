// SPDX-License-Identifier: Apache-2.0

package directory_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/redistest"
)

// keyHash returns the SHA-256 of a made-up key.
func keyHash(n int) string { return fmt.Sprintf("%064x", n) }

// newImport returns an import of the lines, which are given as JSON.
func newImport(t *testing.T, lines ...string) *directory.Import {
	t.Helper()
	in := &directory.Import{Actor: "tester", Reason: "a test", Last: true}
	for _, text := range lines {
		var l directory.Line
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		in.Lines = append(in.Lines, l)
	}
	return in
}

// runImport runs an import, and fails the test if it does not succeed.
func runImport(t *testing.T, source directory.Source, in *directory.Import) *directory.Imported {
	t.Helper()
	editor := directory.Editor{Source: source}
	done, err := editor.Import(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return done
}

// fewRecords holds lines with records of every kind.
var fewRecords = []string{
	`{"client":"user:ann","record":{"tier":"gold","limits":{"api":{"limits":["7/1m"],"until":"2030-01-01T00:00:00Z","reason":"trial"}},"note":"<b>"}}`,
	`{"client":"ip:192.0.2.0/24","record":{"block":{"reason":"abuse"}}}`,
	`{"client":"ip:2001:db8::/64","record":{"exempt":{}}}`,
	`{"client":"header.x-user:bob","record":{"grants":[{"rule":"api","units":5,"window":"month","at":"2026-01-01T00:00:00Z"}]}}`,
	`{"key":"` + keyHash(1) + `","record":{"name":"acme","client":"api_key:acme","tier":"gold","limits":{"*":["9/1m"]}}}`,
	`{"key":"` + keyHash(2) + `","record":{"name":"acme","client":"api_key:acme","revoked":{"at":"2026-01-01T00:00:00Z","by":"ops","reason":"leaked"}}}`,
}

// TestImport tests that an import writes the records as they are, and that it may be repeated.
func TestImport(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		editor := directory.Editor{Source: source}
		in := newImport(t, fewRecords...)
		in.Check = true
		if done := runImport(t, source, in); done.Written != 0 || done.Same != 0 || len(done.Problems) > 0 {
			t.Errorf("a check: %+v", done)
		}
		if page, err := editor.List(t.Context(), directory.ListQuery{Most: 10}); err != nil || len(page.Clients) > 0 {
			t.Fatalf("a check has written %+v, %v", page, err)
		}
		in.Check = false
		if done := runImport(t, source, in); done.Written != len(fewRecords) || len(done.Problems) > 0 {
			t.Errorf("%+v", done)
		}
		for i, line := range in.Lines {
			texts := make([][]byte, 1)
			name := policy.ClientName{Kind: policy.KindKey, ID: line.Key}
			if line.Key == "" {
				name, _ = directory.ParseName(line.Client)
			}
			if err := source.Read(t.Context(), []policy.ClientName{name}, texts); err != nil ||
				string(texts[0]) != strings.NewReplacer("<", `\u003c`, ">", `\u003e`).Replace(string(line.Record)) {
				t.Errorf("line %d is %s, %v; want %s", i, texts[0], err, line.Record)
			}
		}
		if keys, err := editor.KeysOf(t.Context(), "acme"); err != nil || len(keys.Keys) != 2 || keys.Keys[0].Hash != keyHash(1) {
			t.Errorf("the keys: %+v, %v", keys, err)
		}
		if _, err := source.Networks(t.Context()); err != nil {
			t.Error(err)
		}
		history, err := source.History(t.Context(), policy.ClientName{Kind: "user", ID: "ann"}, 10)
		if err != nil || len(history) != 1 || history[0].Action != "import" || history[0].Actor != "tester" {
			t.Errorf("the history of a client: %+v, %v", history, err)
		}
		if done := runImport(t, source, in); done.Written != 0 || done.Same != len(fewRecords) {
			t.Errorf("once more: %+v", done)
		}
	})
}

// TestImportsAreRejectedWhole tests that nothing is written if one line is wrong, and that every
// wrong line is named.
func TestImportsAreRejectedWhole(t *testing.T) {
	sources(t, func(t *testing.T, source directory.Source) {
		edit(t, source, directory.Edit{Client: "user:ann", Action: directory.ActionBlock})
		edit(t, source, directory.Edit{Client: "ip:192.0.2.7", Action: directory.ActionBlock})
		in := newImport(t, fewRecords[3], fewRecords[0], `{"client":"ip:192.0.2.7","record":{"exempt":{}}}`, `{"client":"ann","record":{"tier":"x"}}`,
			`{"client":"user:x","record":{"limits":{"api":{"limits":["5/fortnight"]}}}}`, `{"client":"user:y","record":{}}`,
			`{"client":"user:z","record":{"teir":"x"}}`, fewRecords[3], `{"key":"abc","record":{"name":"a","client":"user:a"}}`,
			`{"client":"user:w","key":"`+keyHash(1)+`","record":{}}`, `{"client":"user:v","record":null}`)
		done := runImport(t, source, in)
		want := []string{"1 user:ann has another record", "2 ip:192.0.2.7 has another record", `3 client "ann" has no form`, "4 limits for rule", "5 the record is empty",
			`6 the record is not read: json: unknown field "teir"`, "7 header.x-user:bob is listed twice", `8 key "abc" is no SHA-256`, "9 client and key both",
			"10 the record is empty"}
		if done.Written != 0 || len(done.Problems) != len(want) {
			t.Errorf("%+v", done)
		}
		for _, text := range want {
			found := false
			for _, p := range done.Problems {
				found = found || strings.HasPrefix(fmt.Sprint(p.Line, " ", p.Text), text)
			}
			if !found {
				t.Errorf("no problem %q in %+v", text, done.Problems)
			}
		}
		texts := make([][]byte, 1)
		if err := source.Read(t.Context(), []policy.ClientName{{Kind: "header.x-user", ID: "bob"}}, texts); err != nil || texts[0] != nil {
			t.Errorf("a record beside wrong ones was written: %s, %v", texts[0], err)
		}
		in = newImport(t, fewRecords[0])
		in.Replace = true
		if done := runImport(t, source, in); done.Written != 1 {
			t.Errorf("a replacement: %+v", done)
		}
	})
}

// TestNamesHaveFewKeys tests that an import cannot give a name more keys than it may have.
func TestNamesHaveFewKeys(t *testing.T) {
	var lines []string
	for i := range directory.KeysOfNameMax + 1 {
		lines = append(lines, fmt.Sprintf(`{"key":%q,"record":{"name":"acme","client":"api_key:acme"}}`, keyHash(i)))
	}
	source := new(directory.Memory)
	if done := runImport(t, source, newImport(t, lines...)); done.Written != 0 || len(done.Problems) != 1 || done.Problems[0].Line != directory.KeysOfNameMax {
		t.Errorf("%+v", done)
	}
	if done := runImport(t, source, newImport(t, lines[1:]...)); done.Written != directory.KeysOfNameMax {
		t.Errorf("%+v", done)
	}
	in := newImport(t, fmt.Sprintf(`{"key":%q,"record":{"name":"other","client":"api_key:acme"}}`, keyHash(1)))
	in.Replace = true
	if done := runImport(t, source, in); len(done.Problems) != 1 || !strings.Contains(done.Problems[0].Text, "under another name") {
		t.Errorf("%+v", done)
	}
}

// TestImportRestoresALostDirectory tests that the directory in an emptied Redis counts as
// incomplete until the import ends. Until then, processes keep the records that they remember.
func TestImportRestoresALostDirectory(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	edit(t, source, directory.Edit{Client: "user:mallory", Action: directory.ActionBlock})
	d := open(t, directory.Options{Source: source})
	if r := fetch(t, d, "user", "mallory"); r == nil || !r.Blocked {
		t.Fatalf("%+v", r)
	}
	if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	first, last := newImport(t, fewRecords[0], fewRecords[1]), newImport(t, `{"client":"user:mallory","record":{"block":{"reason":"restored"}}}`)
	first.Last = false
	runImport(t, source, first)
	if generation, err := source.Generation(t.Context()); generation != "" || err != nil {
		t.Errorf("before the last part, the directory has the generation %q, %v", generation, err)
	}
	if r, ok := d.Find("user", "mallory", now()); !ok || r == nil || !r.Blocked {
		t.Errorf("before the last part: %+v", r)
	}
	runImport(t, source, last)
	if generation, err := source.Generation(t.Context()); generation == "" || err != nil {
		t.Errorf("after the last part, the directory has the generation %q, %v", generation, err)
	}
	eventually.Until(t, 20*time.Second, "an imported record is in force", func() bool { return fetch(t, d, "user", "ann") != nil })
	if r := fetch(t, d, "user", "mallory"); r == nil || !r.Blocked {
		t.Errorf("after the import: %+v", r)
	}
}

// TestOwnedDirectoriesAreNotImported tests that a directory which a control plane writes is not
// changed by an import.
func TestOwnedDirectoriesAreNotImported(t *testing.T) {
	server := redistest.Start(t)
	source := inRedis(t, server.URL())
	if err := source.SetGeneration(t.Context(), directory.ControlledPrefix+"1"); err != nil {
		t.Fatal(err)
	}
	editor := directory.Editor{Source: source}
	if _, err := editor.Import(t.Context(), newImport(t, fewRecords...)); !errors.Is(err, directory.ErrEdit) || !strings.Contains(err.Error(), "--control URL") {
		t.Errorf("an import: %v", err)
	}
	if keys := server.Client().Keys(t.Context(), "rl1:~who:*").Val(); len(keys) > 0 {
		t.Errorf("it has written %q", keys)
	}
}
