// SPDX-License-Identifier: Apache-2.0

// Command draw prints random sentences from the comments and the documents of a checkout, for a
// reader who marks those that need a second reading. The same seed and the same files give the same
// sentences.
//
//	cd tools && go run ./draw -seed 20261124
package main

import (
	"bufio"
	"cmp"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// wordsMin is the least number of words of a sentence. Shorter texts, such as the unit of a field
// or the figures of a table, need no marks.
const wordsMin = 4

// word matches a word of a sentence, as opposed to a figure.
var word = regexp.MustCompile(`[A-Za-z]{2,}`)

// sentence is a sentence of a comment or a document, with its place.
type sentence struct {
	path string
	line int
	text string
}

func main() {
	root := flag.String("root", "..", "the `FOLDER` of the checkout")
	seed := flag.Uint64("seed", 1, "the seed of the draw")
	comments := flag.Int("comments", 150, "how many sentences of comments")
	docs := flag.Int("docs", 50, "how many sentences of documents")
	flag.Parse()
	if err := run(*root, *seed, *comments, *docs); err != nil {
		fmt.Fprintln(os.Stderr, "draw:", err)
		os.Exit(1)
	}
}

// run prints the sentences of one draw.
func run(root string, seed uint64, comments, docs int) error {
	inComments, inDocs, err := read(root)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintf(out, "seed %d: %d of %d sentences of comments, %d of %d of documents\n", seed,
		min(comments, len(inComments)), len(inComments), min(docs, len(inDocs)), len(inDocs))
	number := 0
	for _, drawn := range [][]sentence{draw(inComments, seed, comments), draw(inDocs, seed, docs)} {
		for _, s := range drawn {
			number++
			fmt.Fprintf(out, "%d\t%s:%d\t%s\n", number, s.path, s.line, s.text)
		}
	}
	return out.Flush()
}

// draw returns n of the sentences, in random order.
func draw(from []sentence, seed uint64, n int) []sentence {
	all := slices.Clone(from)
	slices.SortFunc(all, func(a, b sentence) int {
		return cmp.Or(cmp.Compare(a.path, b.path), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	random := rand.New(rand.NewPCG(seed, 0))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// read returns the sentences in the comments of Go and Lua files, and the sentences in Markdown
// files.
func read(root string) (comments, docs []sentence, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		var blocks []sentence
		extension := filepath.Ext(name)
		switch extension {
		case ".go":
			blocks, err = goComments(path)
		case ".lua":
			blocks, err = luaComments(path)
		case ".md":
			blocks, err = paragraphs(path)
		}
		if err != nil {
			return err
		}
		short, err := filepath.Rel(root, path)
		for _, b := range blocks {
			b.path = filepath.ToSlash(short)
			if extension == ".md" {
				docs = append(docs, split(b)...)
			} else {
				comments = append(comments, split(b)...)
			}
		}
		return err
	})
	return comments, docs, err
}

// goComments returns the paragraphs of the comments of a Go file, without directives, indented
// examples and the licence.
func goComments(path string) (blocks []sentence, err error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, group := range parsed.Comments {
		var lines []string
		for _, c := range group.List {
			text := strings.TrimPrefix(c.Text, "//")
			if strings.HasPrefix(text, "\t") || strings.HasPrefix(text, "   ") || !strings.HasPrefix(text, " ") {
				text = "" // an example, a directive or an empty line
			}
			lines = append(lines, text)
		}
		blocks = append(blocks, joined(lines, files.Position(group.Pos()).Line)...)
	}
	return blocks, nil
}

// luaComments returns the paragraphs of the comments of a Lua file.
func luaComments(path string) ([]sentence, error) {
	return linesOf(path, func(line string) string {
		text, isComment := strings.CutPrefix(strings.TrimSpace(line), "-- ")
		if !isComment {
			return ""
		}
		return text
	})
}

// paragraphs returns the paragraphs, list items and cells of a Markdown file, without headings,
// code and generated sections.
func paragraphs(path string) (blocks []sentence, err error) {
	code, generated := false, false // generated until the end of the section that a program writes
	return linesOf(path, func(line string) string {
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			code = !code
			return ""
		case strings.HasPrefix(trimmed, "<!--"):
			generated = !strings.HasPrefix(trimmed, "<!-- end of")
			return ""
		case code, generated, strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "|--"), strings.HasPrefix(trimmed, "!["):
			return ""
		case strings.HasPrefix(trimmed, "|"):
			return "\x00" + strings.ReplaceAll(trimmed, "|", "\x00")
		}
		if item := listItem.FindString(trimmed); item != "" {
			return "\x00" + strings.TrimPrefix(trimmed, item)
		}
		return trimmed
	})
}

// listItem is the beginning of a list item.
var listItem = regexp.MustCompile(`^([-*]|\d{1,2}\.) `)

// linesOf applies the function text to each line of a file, and returns the paragraphs of the
// results. A line "" ends a paragraph, and a zero byte begins another one.
func linesOf(path string, text func(line string) string) ([]sentence, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var lines []string
	for line := range strings.Lines(string(data)) {
		lines = append(lines, text(strings.TrimRight(line, "\r\n")))
	}
	return joined(lines, 1), nil
}

// joined joins lines to paragraphs, and returns these with their places. The argument named first
// is the number of the first line.
func joined(lines []string, first int) (blocks []sentence) {
	open := false
	for i, line := range lines {
		parts := strings.Split(line, "\x00")
		for j, part := range parts {
			part = strings.TrimSpace(part)
			if j > 0 || part == "" {
				open = false
			}
			switch {
			case part == "" || strings.HasPrefix(part, "SPDX-"):
				open = false
			case open:
				blocks[len(blocks)-1].text += " " + part
			default:
				blocks = append(blocks, sentence{line: first + i, text: part})
				open = true
			}
		}
	}
	return blocks
}

// sentenceEnd matches the end of a sentence: a mark, a space, and the beginning of the next
// sentence.
var sentenceEnd = regexp.MustCompile("[.!?][)*`]* +([A-Z\\[`*(\"])")

// split returns the sentences of a paragraph, without those that are too short.
func split(block sentence) (all []sentence) {
	rest := block.text
	for rest != "" {
		end := len(rest)
		if at := sentenceEnd.FindStringSubmatchIndex(rest); at != nil {
			end = at[2]
		}
		text := strings.TrimSpace(rest[:end])
		if len(word.FindAllString(text, wordsMin)) >= wordsMin {
			all = append(all, sentence{block.path, block.line, text})
		}
		rest = rest[end:]
	}
	return all
}
