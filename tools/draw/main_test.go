// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestDraw tests that the same seed draws the same sentences, another seed draws others, and that
// code, headings and directives are no sentences.
func TestDraw(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"a.go": "// SPDX-License-Identifier: Apache-2.0\n\n// Package has one sentence here. It has another one\n// on two lines.\n//\n" +
			"//\tthis is an indented example\n//\n//go:generate this is a directive\npackage a\n",
		"b.lua": "-- This file has one sentence.\nlocal x = 1\n",
		"c.md":  "# A heading of four words\n\nOne sentence of five words. A second one of them.\n\n```\nsome code of four words\n```\n\n| the cell with four words | words of another cell |\n|---|---|\n| 1.5 µs, 2 ms | 1 |\n\n<!-- bench x: what follows is written by make bench. -->\nThis sentence is generated.\n<!-- end of bench x -->\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	comments, docs, err := read(folder)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"Package has one sentence here.", "It has another one on two lines.", "This file has one sentence."}
	if got := texts(comments); !slices.Equal(got, want) {
		t.Errorf("comments: %q, want %q", got, want)
	}
	want = []string{"One sentence of five words.", "A second one of them.", "the cell with four words", "words of another cell"}
	if got := texts(docs); !slices.Equal(got, want) {
		t.Errorf("documents: %q, want %q", got, want)
	}
	if one, same := texts(draw(docs, 7, 3)), texts(draw(docs, 7, 3)); !slices.Equal(one, same) || len(one) != 3 {
		t.Errorf("seed 7 draws %q and then %q", one, same)
	}
	differs := false
	for seed := range uint64(10) {
		differs = differs || !slices.Equal(texts(draw(docs, seed, 3)), texts(draw(docs, 7, 3)))
	}
	if !differs {
		t.Error("every seed draws the same sentences")
	}
}

// texts returns the sentences without their places.
func texts(all []sentence) (texts []string) {
	for _, s := range all {
		texts = append(texts, s.text)
	}
	return texts
}
