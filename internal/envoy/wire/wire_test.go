// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

var alike = []cmp.Option{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()}

var items = []Item{
	{Kind: KindAsk, Ask: Ask{Path: "/api/x", Method: "GET", Host: "example.com:8080", Query: "a=b",
		Peer: netip.MustParseAddr("192.0.2.7"), Remote: netip.MustParseAddr("2001:db8::1"), Known: 1 << 63,
		Headers: []Value{{}, {Given: true}, {Text: "x\x00é", Given: true}}, Attrs: []Value{{Text: "a", Given: true}}}},
	{Kind: KindWait},
	{Kind: KindSettle, Settle: Settle{Receipt: "\xff\x00", Status: 200, Headers: []Field{{"X-Cost", "5"}}, Numbers: []Field{{"usage.total", "17"}}}},
	{Kind: KindSettle},
	{Kind: KindLease, Ask: Ask{Path: "/"}, Units: []Units{{Check: 1, Counter: 1 << 63, Cost: 3, Max: 50, ShareMille: 7, Age: 250_000}, {Max: -1}}},
	{Kind: KindFetch, Units: []Units{{Max: 9}}},
	{Kind: KindRefund, Refund: Refund{Token: "\x00sealed", Units: 17}},
	{Kind: KindDenied, Ask: Ask{Path: "/"}, Units: []Units{{Check: -1, Counter: 1 << 63, Cost: 3, Max: 9}}},
}

var answers = []Answer{
	{Status: StatusUnavailable},
	{Results: []counter.Result{{At: 1_700_000_000_000_000, Granted: 1, Remaining: 9, Reset: 5, Next: 6, Violations: 2},
		{At: 1_700_000_000_000_007, Denied: true, Wait: counter.Never, Overflow: true}, {Denied: true, Wait: 60_000_000, LeasedIn: 3},
		{At: 1_700_000_000_000_008, Local: true}},
		Receipt: "sealed", Leases: []Lease{{Check: 2, Granted: 41, Receipt: 1_700_000_000_000_000, Token: "sealed too"}, {}}},
	{Verdict: &Verdict{TTLMicros: 60_000_000, Ways: []Way{{Index: 0, State: policy.CredentialExpired},
		{Index: 2, State: policy.CredentialValid, Identity: policy.Identity{Kind: "user", ID: "u", User: "u", Tier: "gold"}}}}},
	{Verdict: &Verdict{TTLMicros: 1, Records: string(AppendRecord(AppendRecord(nil, nil), &policy.ClientRecord{Blocked: true}))}},
	{Status: StatusBusy},
	{Status: StatusLate},
}

func callOf(items ...Item) []byte {
	call := AppendCall(nil, "v1")
	for i := range items {
		call = AppendItem(call, &items[i])
		if items[i].Kind >= KindLease {
			Leasing(call)
		}
	}
	return call
}

func replyOf(answers ...Answer) []byte {
	reply := AppendLeasingReply(nil)
	for i := range answers {
		reply = AppendLeasingAnswer(reply, &answers[i])
	}
	return reply
}

func TestCallsAreReadAlike(t *testing.T) {
	r, err := ReadCall(callOf(items...))
	if err != nil || r.Version != "v1" {
		t.Fatal(r, err)
	}
	for i, want := range items {
		var got Item
		if ok, err := r.Next(&got); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		if diff := cmp.Diff(want, got, alike...); diff != "" {
			t.Errorf("item %d: %s", i, diff)
		}
	}
	if ok, err := r.Next(new(Item)); ok || err != nil {
		t.Error(ok, err)
	}
}

func TestRepliesAreReadAlike(t *testing.T) {
	r, err := ReadReply(replyOf(answers...))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range answers {
		var got Answer
		if ok, err := r.Next(&got); !ok || err != nil {
			t.Fatal(i, ok, err)
		}
		if diff := cmp.Diff(want, got, alike...); diff != "" {
			t.Errorf("answer %d: %s", i, diff)
		}
	}
	if ok, err := r.Next(new(Answer)); ok || err != nil {
		t.Error(ok, err)
	}
}

// TestTheFirstVersionStays: calls without leases are still written and read as in version 1.
func TestTheFirstVersionStays(t *testing.T) {
	call, reply := callOf(items[:4]...), AppendAnswer(AppendReply(nil), &answers[1])
	if call[2] != 1 || reply[2] != 1 {
		t.Fatalf("versions %d and %d", call[2], reply[2])
	}
	got, err := readAnswers(reply)
	if err != nil || len(got) != 1 || len(got[0].Leases) != 0 || got[0].Receipt != "sealed" {
		t.Errorf("%+v %v", got, err)
	}
	if got, err := readAll(call); err != nil || len(got) != 4 {
		t.Errorf("%+v %v", got, err)
	}
}

// TestCounters: another key, count or capacity gives another hash.
func TestCounters(t *testing.T) {
	limit := func(count, burst int64) *counter.Limit {
		l, err := counter.NewLimit(counter.TokenBucket, count, counter.Minute, burst)
		if err != nil {
			t.Fatal(err)
		}
		return &l
	}
	seen := map[uint64]bool{}
	for _, c := range []counter.Check{{Key: []byte("a"), Limit: limit(1, 2)}, {Key: []byte("b"), Limit: limit(1, 2)},
		{Key: []byte("a"), Limit: limit(2, 2)}, {Key: []byte("a"), Limit: limit(1, 3)}} {
		if seen[CounterOf(&c)] {
			t.Errorf("%+v is one of the others", c)
		}
		seen[CounterOf(&c)] = true
	}
}

// TestListsAreUsedAgain: the values of one item must not appear in the next.
func TestListsAreUsedAgain(t *testing.T) {
	r, err := ReadCall(callOf(items[0], Item{Kind: KindAsk}))
	if err != nil {
		t.Fatal(err)
	}
	var item Item
	for range 2 {
		if ok, err := r.Next(&item); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if diff := cmp.Diff(Item{Kind: KindAsk}, item, alike...); diff != "" {
		t.Error(diff)
	}
}

// TestTruncatedCallsAreRejected: reading a call or reply that is cut short gives fewer items or an
// error, but never an item that was not sent.
func TestTruncatedCallsAreRejected(t *testing.T) {
	call, reply := callOf(items...), replyOf(answers...)
	for n := range call {
		got, err := readAll(call[:n])
		again := callOf(got...)
		Leasing(again)
		if err == nil && !bytes.Equal(again, call[:n]) {
			t.Fatalf("the first %d bytes are read as %+v", n, got)
		}
	}
	for n := range reply {
		got, err := readAnswers(reply[:n])
		if err == nil && !bytes.Equal(replyOf(got...), reply[:n]) {
			t.Fatalf("the first %d bytes are read as %+v", n, got)
		}
	}
}

func readAll(data []byte) (all []Item, err error) {
	r, err := ReadCall(data)
	if err != nil {
		return nil, err
	}
	for {
		var item Item
		ok, err := r.Next(&item)
		if !ok {
			return all, err
		}
		all = append(all, item)
	}
}

func readAnswers(data []byte) (all []Answer, err error) {
	r, err := ReadReply(data)
	if err != nil {
		return nil, err
	}
	for {
		var answer Answer
		ok, err := r.Next(&answer)
		if !ok {
			return all, err
		}
		all = append(all, answer)
	}
}

func TestBounds(t *testing.T) {
	for _, c := range []struct {
		name string
		data []byte
		ok   bool
	}{
		{"as many items as there may be", callOf(makeItems(ItemsMax)...), true},
		{"one more", callOf(makeItems(ItemsMax + 1)...), false},
		{"about leases", []byte("pc\x02\x00"), true},
		{"another version", []byte("pc\x03\x00"), false},
		{"no version", []byte("pc"), false},
		{"about leases, and not told so", AppendItem(AppendCall(nil, "v1"), &Item{Kind: KindLease}), false},
		{"a reply", replyOf(), false},
		{"nothing", nil, false},
		{"too long", append(callOf(), make([]byte, CallBytesMax)...), false},
		{"too many values", callOf(Item{Kind: KindAsk, Ask: Ask{Headers: make([]Value, ValuesMax+1)}}), false},
		{"an unknown kind", append(callOf(), 9), false},
	} {
		if _, err := readAll(c.data); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := readAll([]byte("x")); !errors.Is(err, ErrMalformed) {
		t.Error(err)
	}
}

func makeItems(n int) []Item {
	all := make([]Item, n)
	for i := range all {
		all[i].Kind = KindAsk
	}
	return all
}

func TestWritingAllocatesNothing(t *testing.T) {
	var buffer []byte
	if n := testing.AllocsPerRun(100, func() {
		buffer = AppendCall(buffer[:0], "v1")
		buffer = AppendItem(buffer, &items[0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzRead: no bytes make a reader panic, and the values that are read are the same after writing
// and reading them again.
func FuzzRead(f *testing.F) {
	f.Add(callOf(items...))
	f.Add(replyOf(answers...))
	f.Fuzz(func(t *testing.T, data []byte) {
		if got, err := readAll(data); err == nil {
			r, _ := ReadCall(data)
			call := AppendCall(nil, r.Version)
			if r.Leasing {
				Leasing(call)
			}
			for i := range got {
				call = AppendItem(call, &got[i])
			}
			again, err := readAll(call)
			if diff := cmp.Diff(got, again, alike...); err != nil || diff != "" {
				t.Fatal(err, diff)
			}
		}
		if got, err := readAnswers(data); err == nil {
			// The answers are written in version 2, which contains the fields of version 1 too.
			again, err := readAnswers(replyOf(got...))
			if err != nil || fmt.Sprintf("%+v", again) != fmt.Sprintf("%+v", got) && cmp.Diff(got, again, append(alike, cmpopts.IgnoreUnexported(policy.Overrides{}))...) != "" {
				t.Fatalf("%v\n%+v\n%+v", err, got, again)
			}
		}
	})
}
