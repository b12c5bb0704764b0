// SPDX-License-Identifier: Apache-2.0

package directory

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/penstock/penstock/core/policy"
)

// Bounds of an import.
const (
	// ImportMax is the greatest number of records that one call of Import writes.
	ImportMax = 256
	// importsAtOnce is the greatest number of records that are written at the same time.
	importsAtOnce = 16
)

// Line is the record of a client or of an API key in an export.
type Line struct {
	Client string          `json:"client,omitempty"` // KIND:ID
	Key    string          `json:"key,omitempty"`    // the SHA-256 of a key
	Record json.RawMessage `json:"record"`
}

// Import is a part of an export that is to be written.
type Import struct {
	Actor  string `json:"actor"`
	Reason string `json:"reason"`
	// With Check, an import only reports the problems, and changes nothing.
	Check bool `json:"check,omitempty"`
	// With Replace, records replace other records of the same client or key.
	Replace bool `json:"replace,omitempty"`
	// Last is set in the last part. If the source has lost its records, processes use the records
	// that they remember, in place of imported ones, until the last part is written.
	Last  bool   `json:"last,omitempty"`
	Lines []Line `json:"lines"`
}

// Imported is the result of an import.
type Imported struct {
	Written int `json:"written"` // the number of written records; with Import.Check, of records that would be written
	Same    int `json:"same"`    // the number of records that the directory already has
	// Problems are the reasons why records were not written. If there are any, no record was
	// written, unless other programs changed records meanwhile. Notes are the reasons why a record
	// has less effect than it could.
	Problems []LineNote `json:"problems,omitempty"`
	Notes    []LineNote `json:"notes,omitempty"`
}

// LineNote is a remark on one line of an import.
type LineNote struct {
	Line int    `json:"line"` // from 0
	Text string `json:"text"`
}

// Swap is one replacement of a record, as for [Source.Swap].
type Swap struct {
	Name      policy.ClientName
	Old, Text []byte
	Entry     Entry
}

// ParseLine parses a line of an export. The record is in the form in which it is stored. An unknown
// field is an error, because it would otherwise be ignored.
func ParseLine(text []byte) (*Line, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("the line is not UTF-8, so it is not JSON")
	}
	l, err := decode[Line]("line", text)
	if err != nil {
		return nil, err
	}
	one, err := l.parse()
	if err != nil {
		return nil, err
	}
	l.Record = one.text
	return l, nil
}

// lineRecord is a line that has been checked.
type lineRecord struct {
	name   policy.ClientName // the name of the record
	text   []byte
	client *Record    // the record of a client, or nil
	key    *KeyRecord // the record of a key, or nil
	owner  string     // the client, as the history names it
}

// Line.parse checks a line.
func (l *Line) parse() (*lineRecord, error) {
	switch {
	case l.Client != "" && l.Key != "":
		return nil, errors.New("client and key both name the record; write one of them")
	case l.Client != "":
		name, err := ParseName(l.Client)
		if err != nil {
			return nil, err
		}
		r, err := ParseRecord(l.Record)
		if err != nil {
			return nil, err
		}
		text := r.Text()
		switch {
		case text == nil:
			return nil, errors.New("the record is empty; leave the line out")
		case len(text) > RecordBytesMax:
			return nil, fmt.Errorf("the record would have %d bytes, and may have %d", len(text), RecordBytesMax)
		}
		return &lineRecord{name: name, text: text, client: r, owner: name.String()}, nil
	case !isHash(l.Key):
		return nil, fmt.Errorf(`key %.80q is no SHA-256; write {"client": "KIND:ID", "record": {...}}, or the SHA-256 of a key in 64 lower-case `+
			"hexadecimal digits as key", l.Key)
	}
	r, err := ParseKeyRecord(l.Record)
	if err != nil {
		return nil, err
	}
	return &lineRecord{name: KeyName{r.Name, l.Key}.Record(), text: r.Text(), key: r, owner: r.Client}, nil
}

// Name returns the name of the line's record: that of a client, or the SHA-256 of a key.
func (l *Line) Name() string {
	if l.Key != "" {
		return policy.KindKey + ":" + l.Key
	}
	if name, err := ParseName(l.Client); err == nil {
		return name.String()
	}
	return l.Client
}

// Names returns the rules and the tier that the line's record names.
func (l *Line) Names() (rules []string, tier string) {
	one, err := l.parse()
	switch {
	case err != nil:
	case one.key != nil:
		return slices.Sorted(maps.Keys(one.key.Limits)), one.key.Tier
	default:
		return slices.Sorted(maps.Keys(one.client.Limits)), one.client.Tier
	}
	return nil, ""
}

// Import writes records. Import first checks all of them, and writes none if there is a problem. If
// the directory already has a record, Import leaves it unchanged, so an import may be repeated.
// Errors are like those of [Editor.Apply].
func (e *Editor) Import(ctx context.Context, in *Import) (*Imported, error) {
	if err := checkWhy(in.Actor, in.Reason); err != nil {
		return nil, err
	}
	if len(in.Lines) > ImportMax {
		return nil, newEditError("%d records at once are more than %d; send them in parts", len(in.Lines), ImportMax)
	}
	generation, err := e.Source.Generation(ctx)
	switch {
	case err != nil:
		return nil, err
	case strings.HasPrefix(generation, ControlledPrefix):
		return nil, newEditError("a control plane owns this directory, and would undo the import: make the changes there, with penstock client " +
			"ACTION --control URL or penstock control import-clients")
	}
	done := new(Imported)
	lines, swaps, err := e.compare(ctx, in, done)
	if err != nil || in.Check || len(done.Problems) > 0 {
		return done, err
	}
	if err := e.write(ctx, in, lines, swaps, done); err != nil {
		return nil, err
	}
	if in.Last && len(done.Problems) == 0 {
		return done, e.Source.Complete(ctx)
	}
	return done, nil
}

// Editor.compare checks the lines against each other and against the present records. It returns
// the lines to write, each with its replacement of a record. The line of a key is among them even
// if its record is unchanged, because the key may be missing from the set of keys of its name.
func (e *Editor) compare(ctx context.Context, in *Import, done *Imported) (lines []*lineRecord, swaps []Swap, err error) {
	problem := func(i int, format string, args ...any) {
		done.Problems = append(done.Problems, LineNote{i, fmt.Sprintf(format, args...)})
	}
	parsed, names, seen := make([]*lineRecord, len(in.Lines)), []policy.ClientName{}, map[policy.ClientName]int{}
	for i := range in.Lines {
		one, err := in.Lines[i].parse()
		if err != nil {
			problem(i, "%v", err)
			continue
		}
		if _, twice := seen[one.name]; twice {
			problem(i, "%s is listed twice; keep one line", in.Lines[i].Name())
			continue
		}
		seen[one.name] = len(names)
		parsed[i], names = one, append(names, one.name)
	}
	present, err := e.present(ctx, names)
	if err != nil {
		return nil, nil, err
	}
	for i, one := range parsed {
		if one == nil {
			continue
		}
		old := present[seen[one.name]]
		switch same := bytes.Equal(canonicalText(one, old), one.text); {
		case old != nil && same && one.key == nil:
			done.Same++
		case old != nil && !same && !in.Replace:
			problem(i, "%s has another record in the directory; take the line out, or replace the record with --replace", in.Lines[i].Name())
		case old != nil && one.key != nil && !sameName(old, one.key):
			problem(i, "the key %.12s… is in the directory under another name; forget it there first", in.Lines[i].Key)
		default:
			if same {
				old = one.text // the line remains, because the key may be missing from its name
			}
			lines, swaps = append(lines, one), append(swaps, Swap{one.name, old, one.text, e.importEntry(in, one, old)})
		}
	}
	return lines, swaps, e.checkNames(ctx, in, parsed, problem)
}

// canonicalText returns the text of a present record in the form in which this program writes it.
func canonicalText(one *lineRecord, old []byte) []byte {
	if one.key != nil {
		if r, err := ParseKeyRecord(old); err == nil {
			return r.Text()
		}
	} else if r, err := ParseRecord(old); err == nil {
		return r.Text()
	}
	return nil
}

// sameName reports whether the present record of a key has the name that the import gives to the
// key. An invalid record counts as having that name.
func sameName(old []byte, key *KeyRecord) bool {
	r, err := ParseKeyRecord(old)
	return err != nil || r.Name == key.Name
}

// Editor.present reads the present records of the clients, and returns them as texts, in the order
// of the names.
func (e *Editor) present(ctx context.Context, names []policy.ClientName) (texts [][]byte, err error) {
	texts = make([][]byte, len(names))
	var others []policy.ClientName
	var places []int
	var networks map[string][]byte
	for i, name := range names {
		if name.Kind != KindNetwork {
			others, places = append(others, name), append(places, i)
			continue
		}
		if networks == nil {
			if networks, err = e.Source.Networks(ctx); err != nil {
				return nil, err
			}
		}
		texts[i] = networks[name.ID]
	}
	if len(others) == 0 {
		return texts, nil
	}
	found := make([][]byte, len(others))
	if err := e.Source.Read(ctx, others, found); err != nil {
		return nil, err
	}
	for i, place := range places {
		texts[place] = found[i]
	}
	return texts, nil
}

// checkNames reports the names that would have too many keys after the import.
func (e *Editor) checkNames(ctx context.Context, in *Import, parsed []*lineRecord, problem func(int, string, ...any)) error {
	var mu sync.Mutex
	hashes := map[string][]string{}
	var names []string
	for _, one := range parsed {
		if one != nil && one.key != nil && !slices.Contains(names, one.key.Name) {
			names = append(names, one.key.Name)
		}
	}
	err := callConcurrently(len(names), func(i int) error {
		found, err := e.Source.KeyHashes(ctx, names[i])
		mu.Lock()
		hashes[names[i]] = found
		mu.Unlock()
		return err
	})
	if err != nil {
		return err
	}
	for i, one := range parsed {
		if one == nil || one.key == nil || slices.Contains(hashes[one.key.Name], in.Lines[i].Key) {
			continue
		}
		if hashes[one.key.Name] = append(hashes[one.key.Name], in.Lines[i].Key); len(hashes[one.key.Name]) > KeysOfNameMax {
			problem(i, "%q would have %d keys, and may have %d; forget those that have ended", one.key.Name, len(hashes[one.key.Name]), KeysOfNameMax)
		}
	}
	return nil
}

// importEntry returns the entry of the history for an imported record.
func (e *Editor) importEntry(in *Import, one *lineRecord, old []byte) Entry {
	entry := Entry{At: e.now().UTC(), Name: one.owner, Actor: in.Actor, Action: "import", Reason: in.Reason, Before: string(old), After: string(one.text)}
	if one.key != nil {
		entry.Action, entry.Key = "import key "+one.key.Name, one.name.ID
	}
	entry.Client, _ = ParseName(entry.Name)
	return entry
}

// Editor.write writes records that differ, and adds new keys to their names.
func (e *Editor) write(ctx context.Context, in *Import, lines []*lineRecord, swaps []Swap, done *Imported) error {
	different := make([]Swap, 0, len(swaps))
	for i := range swaps {
		if !bytes.Equal(swaps[i].Old, swaps[i].Text) {
			different = append(different, swaps[i])
		}
	}
	swapped, err := e.Source.SwapAll(ctx, different)
	if err != nil {
		return err
	}
	done.Same += len(swaps) - len(different)
	for i, ok := range swapped {
		if ok {
			done.Written++
			continue
		}
		at := slices.IndexFunc(in.Lines, func(l Line) bool {
			one, err := l.parse()
			return err == nil && one.name == different[i].Name
		})
		done.Problems = append(done.Problems, LineNote{at, "others have changed the record meanwhile; look at it, and import again"})
	}
	return callConcurrently(len(lines), func(i int) error {
		if lines[i].key == nil {
			return nil
		}
		return e.nameKey(ctx, KeyName{lines[i].key.Name, lines[i].name.ID})
	})
}

// nameKey adds a key to the set of keys of its name, unless the set has it.
func (e *Editor) nameKey(ctx context.Context, key KeyName) error {
	for range swapsMax {
		hashes, err := e.Source.KeyHashes(ctx, key.Name)
		if err != nil || slices.Contains(hashes, key.Hash) {
			return err
		}
		if added, err := e.Source.AddKey(ctx, key, len(hashes)); added || err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: others keep changing the keys of %q; try again", ErrSource, key.Name)
}

// callConcurrently calls do(...) with the numbers 0 to n-1, some at the same time, and returns the
// errors.
func callConcurrently(n int, do func(i int) error) error {
	errs := make([]error, n)
	places := make(chan struct{}, importsAtOnce)
	var running sync.WaitGroup
	for i := range n {
		places <- struct{}{}
		running.Go(func() {
			errs[i] = do(i)
			<-places
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
