// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"slices"
	"testing"

	"github.com/penstock/penstock/core/counter"
	corepolicy "github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// readDenialReports answers the calls of the filter, and returns the denials that they report.
func readDenialReports(t *testing.T, e *fakeEnvoy, f *Filter, wanted bool) (all []wire.Item) {
	t.Helper()
	f.endTurns()
	for len(e.calls) > 0 {
		call := e.calls[0]
		e.calls = e.calls[1:]
		if call.Path == policyPath {
			call.answer(Reply{Status: 304, Denials: wanted})
			continue
		}
		reader, err := wire.ReadCall(call.Body)
		if err != nil {
			t.Fatal(err)
		}
		var answers []wire.Answer
		for {
			var item wire.Item
			ok, err := reader.Next(&item)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			if item.Kind == wire.KindDenied {
				all = append(all, item)
			}
			answers = append(answers, wire.Answer{})
		}
		reply := replyWith(answers...)
		reply.Denials = wanted
		call.answer(reply)
		f.endTurns()
	}
	return all
}

// TestDenialsAreReported: the denials that the filter decides without asking are reported once a
// second if the bridge wants them. Each client and rule has one item, with the number of denials.
func TestDenialsAreReported(t *testing.T) {
	for _, wanted := range []bool{true, false} {
		e := newEnvoy(t)
		p := shopPolicy(t, "100/1m")
		p.Rules = append(p.Rules, corepolicy.Rule{Name: "closed", Action: corepolicy.ActionBlock, Match: corepolicy.Match{Path: []string{"/closed"}}},
			corepolicy.Rule{Name: "gone", Action: corepolicy.ActionBlock, Match: corepolicy.Match{Path: []string{"/gone"}}})
		f := withPolicy(t, e, p)
		f.pollEnded(Reply{Status: 304, Denials: wanted})
		e.calls = nil
		id := uint32(0)
		deny := func(path string) {
			id++
			e.now += counter.Millisecond // so that the requests are not a burst, in which they would wait for the end of a turn
			f.NewStream(id).RequestHeaders(get(path))
			f.endTurns()
			if e.responses[id].Status != 403 {
				t.Fatalf("%s: status %d", path, e.responses[id].Status)
			}
		}
		for range 5 {
			deny("/closed")
		}
		deny("/gone")
		if got := readDenialReports(t, e, f, wanted); len(got) > 0 {
			t.Errorf("%d are reported at once", len(got))
		}
		var got []string
		for range 3 {
			e.now += counter.Second
			f.Tick()
			for _, item := range readDenialReports(t, e, f, wanted) {
				got = append(got, fmt.Sprint(item.Ask.Path, " ", item.Units[0].Cost, " ", item.Units[0].Check, " ", item.Units[0].Max))
			}
		}
		slices.Sort(got)
		want := []string{"/closed 5 -1 0", "/gone 1 -1 0"}
		if !wanted {
			want = nil
		}
		if !slices.Equal(got, want) {
			t.Errorf("wanted %t: %q, want %q", wanted, got, want)
		}
	}
}

// TestDenialsBeyondTheBound: if more than denialsMax clients are denied in a second, the denials of
// further clients are reported only as a number.
func TestDenialsBeyondTheBound(t *testing.T) {
	e := newEnvoy(t)
	p := shopPolicy(t, "100/1m")
	p.Rules = append(p.Rules, corepolicy.Rule{Name: "closed", Action: corepolicy.ActionBlock, Match: corepolicy.Match{Path: []string{"/closed"}}})
	f := withPolicy(t, e, p)
	f.pollEnded(Reply{Status: 304, Denials: true})
	e.calls = nil
	const more = 44
	for i := range uint32(denialsMax + more) {
		e.properties["source.address"] = fmt.Sprintf("192.0.%d.%d:4711", i/256, i%256)
		e.now += 10
		f.NewStream(i).RequestHeaders(get("/closed"))
		f.endTurns()
	}
	e.now += 2 * counter.Second
	f.Tick()
	var items, denials, lost int64
	for _, item := range readDenialReports(t, e, f, true) {
		items, denials, lost = items+1, denials+item.Units[0].Cost, lost+item.Units[0].Max
	}
	if items != denialsMax || denials != denialsMax || lost != more {
		t.Errorf("%d items of %d denials, and %d others", items, denials, lost)
	}
}
