// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"github.com/penstock/penstock/internal/test/module"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Fronts are the names of all fronts.
var Fronts = []string{"core", "wasm", "caddy", "envoy", "module"}

// Load reads the corpus.
func Load(t testing.TB) []Story { return load(t, "*.txt") }

// LoadWrong reads the stories with wrong expectations. No front may satisfy one of these stories.
func LoadWrong(t testing.TB) []Story { return load(t, filepath.Join("wrong", "*.txt")) }

func load(t testing.TB, pattern string) (all []Story) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(module.Path(t, "core", "testdata", "conformance"), pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no corpus in %q: %v", module.Path(t, "core", "testdata", "conformance"), err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stories, err := Parse(filepath.Base(file), string(text))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, stories...)
	}
	return all
}

// reader reads one file.
type reader struct {
	file    string
	line    int
	stories []Story
	block   *string // the text to which indented lines are added
}

// Parse reads a file of the corpus. core/testdata/conformance/README.md describes the format. The
// error names the line.
func Parse(file, text string) ([]Story, error) {
	r := &reader{file: file}
	for _, line := range joinLines(text) {
		r.line = line.number
		if err := r.read(line.text); err != nil {
			return nil, fmt.Errorf("%s: %w", r.place(), err)
		}
	}
	for i := range r.stories {
		if s := &r.stories[i]; len(s.Exchanges) == 0 || s.Policy == "" {
			return nil, fmt.Errorf("%s: story %q has no policy, or asks nothing", s.Place, s.Name)
		}
	}
	return r.stories, nil
}

type textLine struct {
	number int
	text   string
}

// joinLines returns the lines of a file without comments. An indented line is joined to the
// request, or to the answer of another front, that precedes it.
func joinLines(text string) (lines []textLine) {
	request := false
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " \t\r")
		indented := strings.HasPrefix(line, " ")
		switch {
		case line == "" || line[0] == '#':
		case indented && request:
			lines[len(lines)-1].text += " " + strings.TrimSpace(line)
		default:
			lines = append(lines, textLine{i + 1, line})
			request = !indented && strings.Contains(line, " -> ") || !indented && isRequest(line)
		}
	}
	return lines
}

// isRequest reports whether a line begins with a method, which is in upper case, or with a number
// of repetitions.
func isRequest(line string) bool {
	word, _, _ := strings.Cut(line, " ")
	return word == strings.ToUpper(word) || timesOf(word) > 0
}

func (r *reader) place() string { return fmt.Sprintf("%s:%d", r.file, r.line) }

func (r *reader) read(line string) error {
	if strings.HasPrefix(line, " ") {
		if r.block == nil {
			return fmt.Errorf("%q belongs to nothing", strings.TrimSpace(line))
		}
		*r.block += strings.TrimPrefix(line, "  ") + "\n"
		return nil
	}
	r.block = nil
	word, rest, _ := strings.Cut(line, " ")
	if word == "story" {
		number := len(r.stories) + 1
		r.stories = append(r.stories, Story{Name: rest, Place: r.place(), Except: map[string]string{},
			ID: strings.TrimSuffix(r.file, ".txt") + "-" + strconv.Itoa(number)})
		return nil
	}
	if len(r.stories) == 0 {
		return fmt.Errorf("%q stands before the first story", word)
	}
	return r.readLine(&r.stories[len(r.stories)-1], word, rest, line)
}

// readLine reads a line of a story.
func (r *reader) readLine(s *Story, word, rest, line string) error {
	if len(s.Exchanges) > 0 && !isRequest(line) && word != "on" {
		return fmt.Errorf("%q stands behind the first request", word)
	}
	switch word {
	case "except":
		fronts, why, ok := strings.Cut(rest, ": ")
		if !ok {
			return fmt.Errorf("write except FRONT,FRONT: WHY")
		}
		return eachFront(fronts, func(front string) { s.Except[front] = why })
	case "store":
		s.Away = true
		if rest != "away" {
			return fmt.Errorf("a store is away or nothing is said of it")
		}
		return nil
	case "policy":
		r.block = &s.Policy
		return nil
	case "key":
		s.Keys = append(s.Keys, Key{ID: rest})
		r.block = &s.Keys[len(s.Keys)-1].Text
		return nil
	case "token":
		token, err := parseToken(rest)
		s.Tokens = append(s.Tokens, token)
		return err
	case "on":
		return r.other(s, rest)
	}
	if !isRequest(line) {
		return fmt.Errorf("%q is none of the words", word)
	}
	e, err := parseExchange(line)
	e.Place = r.place()
	s.Exchanges = append(s.Exchanges, e)
	return err
}

func eachFront(list string, do func(front string)) error {
	for _, front := range strings.Split(list, ",") {
		if !slices.Contains(Fronts, front) {
			return fmt.Errorf("%q is no front: there are %q", front, Fronts)
		}
		do(front)
	}
	return nil
}

// parseToken reads NAME KIND [exp=SPAN] CLAIMS.
func parseToken(text string) (Token, error) {
	head, claims, ok := strings.Cut(text, " {")
	words := strings.Fields(head)
	token := Token{Expiry: "1h", Claims: "{" + claims}
	if len(words) == 3 && strings.HasPrefix(words[2], "exp=") {
		token.Expiry, words = words[2][len("exp="):], words[:2]
	}
	if !ok || len(words) != 2 {
		return token, fmt.Errorf("write token NAME KIND [exp=SPAN] {CLAIMS}")
	}
	token.Name, token.Kind = words[0], words[1]
	return token, nil
}

// reader.other reads a line of the form "on FRONT,FRONT -> ANSWER because WHY" without the word
// "on".
func (r *reader) other(s *Story, text string) error {
	fronts, rest, ok := strings.Cut(text, " -> ")
	answer, why, because := strings.Cut(rest, " because ")
	if !ok || !because || len(s.Exchanges) == 0 {
		return fmt.Errorf("write on FRONT,FRONT -> ANSWER because WHY, behind a request")
	}
	e := &s.Exchanges[len(s.Exchanges)-1]
	if e.Other == nil {
		e.Other = map[string]Other{}
	}
	words, err := split(answer)
	if err != nil {
		return err
	}
	want, err := parseWant(words, &e.Request.Says)
	if err != nil {
		return err
	}
	return eachFront(fronts, func(front string) { e.Other[front] = Other{want, why} })
}

// timesOf returns the number in a word such as 3x, or 0 for any other word.
func timesOf(word string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(word, "x"))
	if err != nil || !strings.HasSuffix(word, "x") {
		return 0
	}
	return n
}

func parseExchange(line string) (e Exchange, err error) {
	e.Text, e.Times = line, 1
	asked, answer, ok := strings.Cut(line, " -> ")
	if !ok {
		return e, fmt.Errorf("a request needs an answer: METHOD TARGET … -> ANSWER")
	}
	words, err := split(asked)
	if err != nil {
		return e, err
	}
	if n := timesOf(words[0]); n > 0 {
		e.Times, words = n, words[1:]
	}
	if len(words) < 2 {
		return e, fmt.Errorf("write METHOD TARGET")
	}
	e.Request, err = parseRequest(words)
	if err != nil {
		return e, err
	}
	if words, err = split(answer); err != nil {
		return e, err
	}
	e.Want, err = parseWant(words, &e.Request.Says)
	return e, err
}

// defaultClient is the client's address if the story names none.
const defaultClient = "192.0.2.1"

func parseRequest(words []string) (Request, error) {
	r := Request{Method: words[0], Target: words[1], Host: "example.com",
		Says: Says{Status: 200, Body: "ok\n"}}
	from := defaultClient
	for _, word := range words[2:] {
		name, value, ok := strings.Cut(word, "=")
		said, says := strings.CutPrefix(name, "says:")
		trailer, trails := strings.CutPrefix(name, "trails:")
		switch {
		case !ok:
			return r, fmt.Errorf("%q is not NAME=VALUE", word)
		case says && said == "body":
			r.Says.Body = strings.ReplaceAll(value, `\n`, "\n")
		case says:
			r.Says.Header = append(r.Says.Header, [2]string{said, value})
		case trails:
			r.Says.Trailer = append(r.Says.Trailer, [2]string{trailer, value})
		case name == "says":
			status, err := strconv.Atoi(value)
			if err != nil {
				return r, fmt.Errorf("%q is no status", value)
			}
			r.Says.Status = status
		case name == "host":
			r.Host = value
		case name == "from":
			from = value
		case name[0] < 'A' || name[0] > 'Z':
			return r, fmt.Errorf("%q is none of the words of a request", name)
		default:
			if name == "X-Forwarded-For" {
				from = "peer"
			}
			r.Header = append(r.Header, [2]string{name, value})
		}
	}
	if from != "peer" {
		r.Header = append(r.Header, [2]string{"X-Forwarded-For", from})
	}
	return r, nil
}
