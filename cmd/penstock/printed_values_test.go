// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/control/reports"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/fleet"
	"github.com/penstock/penstock/internal/operator"
)

// hostile has control characters of ASCII and of Latin-1, a character that reverses the text, and
// one beyond 16 bits.
const hostile = "a\x1b[31m\u009b2J\u202e\x7f\U000e0001z"

// spoil sets every text in a value to the constant hostile, and every number to 1. Slices and maps
// get an entry.
func spoil(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(hostile)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		spoil(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		spoil(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		spoil(key)
		spoil(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1e9, 0)))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				spoil(v.Field(i))
			}
		}
	}
}

func spoiled[T any]() *T {
	value := new(T)
	spoil(reflect.ValueOf(value).Elem())
	return value
}

func inJSON[T any](t *testing.T) []byte {
	text, err := json.Marshal(spoiled[T]())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPrintedValuesAreQuoted: no command prints a control character of a value that came from a
// client or from the network.
func TestPrintedValuesAreQuoted(t *testing.T) {
	t.Parallel()
	report := spoiled[usageReport]()
	prints := map[string]func(io.Writer) error{
		"explain": func(w io.Writer) error { return printExplanation(w, spoiled[explained](), "--redis URL") },
		"client":  func(w io.Writer) error { return report.print(w, time.Now()) },
		"no counters": func(w io.Writer) error {
			return (&usageReport{Client: hostile, RecordError: hostile}).print(w, time.Now())
		},
		"reset": func(w io.Writer) error { return report.printReset(w, time.Now()) },
		"lift":  func(w io.Writer) error { return report.printLift(w, time.Now()) },
		"gaps":  func(w io.Writer) error { return warnOfGaps(w, inJSON[usageReport](t)) },
		"top":   func(w io.Writer) error { return printTop(w, inJSON[fleet.Top](t)) },
		"nodes": func(w io.Writer) error { return printNodes(w, inJSON[fleet.Nodes](t)) },
		"rules": func(w io.Writer) error { return printRules(w, inJSON[rulesReply](t)) },
		"events": func(w io.Writer) error {
			f := &follower{query: map[string][]string{}, told: map[string]bool{}, out: w, err: w, follow: true}
			return errors.Join(f.print(&eventsReply{EventPage: *spoiled[fleet.EventPage](), Notes: []string{hostile}}),
				f.printEvent(&events.Event{Kind: events.KindDenied, Client: hostile, Path: hostile, Tier: hostile}))
		},
		"keys": func(w io.Writer) error {
			(&keyEdits{clientEdits{admin: new(admin)}}).writeKeyPage(w, spoiled[directory.KeysShown]())
			return nil
		},
		"clients": func(w io.Writer) error { writeListing(w, spoiled[directory.Listing](), time.Now()); return nil },
		"record":  func(w io.Writer) error { writeRecord(w, hostile, spoiled[directory.Record]()); return nil },
		"unknown": func(w io.Writer) error { warnOfUnknown(w, hostile, spoiled[operator.Profile]()); return nil },
		"usage": func(w io.Writer) error {
			u, err := newUsageWriter("table", true, w)
			if err != nil {
				return err
			}
			return errors.Join(u.write("2026-11", spoiled[reports.Usage]()), u.end())
		},
		"JSON":      func(w io.Writer) error { return printJSON(w, report) },
		"an error":  func(w io.Writer) error { _, err := io.WriteString(w, escapeLines(hostile)); return err },
		"two lines": func(w io.Writer) error { _, err := io.WriteString(w, escapeLines("z\n"+hostile)); return err },
	}
	for name, printed := range prints {
		var out strings.Builder
		if err := printed(&out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		text := strings.ReplaceAll(out.String(), "\n", "")
		if i := strings.IndexFunc(text, isControl); i >= 0 || !strings.Contains(text, "z") {
			t.Errorf("%s prints %q", name, out.String())
		}
	}
	var back usageReport
	var out strings.Builder
	if err := printJSON(&out, report); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out.String()), &back); err != nil || back.Client != hostile {
		t.Errorf("the printed JSON is of %q: %v", back.Client, err)
	}
}
