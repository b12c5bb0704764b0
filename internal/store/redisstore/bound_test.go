// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// passText passes a text to a bound, in pieces of at most size bytes.
func passText(text string, size int) error {
	var b bound
	for len(text) > 0 {
		n := min(size, len(text))
		if err := b.see([]byte(text[:n])); err != nil {
			return err
		}
		text = text[n:]
	}
	return nil
}

// slotsReply returns the reply to CLUSTER SLOTS of a cluster in which each slot is a separate
// range, with host names.
func slotsReply(replicas int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", slotCount)
	for slot := range slotCount {
		fmt.Fprintf(&b, "*%d\r\n:%d\r\n:%d\r\n", 3+replicas, slot, slot)
		for range 1 + replicas {
			fmt.Fprintf(&b, "*4\r\n$14\r\n192.168.100.100\r\n:6379\r\n$40\r\n%040d\r\n*2\r\n$8\r\nhostname\r\n$60\r\n%060d\r\n", slot, slot)
		}
	}
	return strings.Replace(b.String(), "$14\r\n", "$15\r\n", -1)
}

// TestBoundLetsPass: genuine replies are accepted, in pieces of any size.
func TestBoundLetsPass(t *testing.T) {
	for name, text := range map[string]string{
		"a batch":        strings.Repeat("$"+fmt.Sprint(len(goodReply))+"\r\n"+goodReply+"\r\n", batchMax),
		"nothing":        "$-1\r\n*-1\r\n$0\r\n\r\n*0\r\n+\r\n",
		"mixed":          "+OK\r\n-ERR no\r\n:12\r\n*2\r\n$3\r\n\r\n\r\r\n*1\r\n:-5\r\n+PONG\r\n",
		"a pushed one":   "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$3\r\nm a\r\n",
		"a long string":  fmt.Sprintf("$%d\r\n%s\r\n", replyStringMax, strings.Repeat("x", replyStringMax)),
		"a long error":   "-ERR " + strings.Repeat("x", replyLineMax-10) + "\r\n",
		"arrays in each": strings.Repeat("*1\r\n", replyDepthMax) + ":1\r\n:2\r\n",
	} {
		for size := 1; size <= 70; size++ {
			if len(text) > 10_000 && size > 1 && size < 69 {
				continue
			}
			if err := passText(text, size); err != nil {
				t.Errorf("%s in pieces of %d: %v", name, size, err)
			}
		}
	}
	text := slotsReply(3)
	t.Logf("cluster slots has %d bytes", len(text))
	if err := passText(text, 32<<10); err != nil {
		t.Errorf("the slots of a large cluster: %v", err)
	}
}

// TestBoundStopsAtTheAnnouncement: replies that are too large for any genuine server are rejected
// at the end of the line that announces their size, or when that line is too long.
func TestBoundStopsAtTheAnnouncement(t *testing.T) {
	for name, text := range map[string]string{
		"a string of 2 GB":       "$2000000000\r\n",
		"a string just too long": fmt.Sprintf("$%d\r\n", replyStringMax+1),
		"a number that wraps":    "$18446744073709551617\r\n",
		"a long number":          "$" + strings.Repeat("0", replyLineMax+1),
		"a large array":          "*1000000000\r\n",
		"one just too large":     fmt.Sprintf("*%d\r\n", replyArrayMax+1),
		"deep":                   strings.Repeat("*1\r\n", replyDepthMax+1),
		"an endless line":        "+" + strings.Repeat("x", replyLineMax+1),
		"an endless error":       "-" + strings.Repeat("x", replyLineMax+1),
		"many strings":           strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", replyStringMax, strings.Repeat("x", replyStringMax)), 16),
		"many elements":          strings.Repeat(fmt.Sprintf("*%d\r\n%s", replyArrayMax, strings.Repeat(":1\r\n", replyArrayMax)), 17),
		"many words":             strings.Repeat("+OK\r\n", repliesBytesMax/4+1),
		"a map":                  "%1\r\n",
		"attributes":             strings.Repeat("|0\r\n", 10),
		"another protocol":       "HTTP/1.1 400 Bad Request\r\n",
		"a sign":                 "$+5\r\n",
		"no number":              "*x\r\n",
		"two numbers":            "$1\r1\n",
	} {
		for _, size := range []int{1, 7, 32 << 10} {
			if size == 1 && len(text) > 1<<20 {
				continue
			}
			if passText(text, size) == nil {
				t.Errorf("%s in pieces of %d passes", name, size)
			}
		}
	}
	var b bound
	for range 20 { // each of these replies belongs to another command
		if err := b.see([]byte(fmt.Sprintf("$%d\r\n%s\r\n", replyStringMax, strings.Repeat("x", replyStringMax)))); err != nil {
			t.Fatal(err)
		}
		b.reset()
	}
}

// FuzzBound: the result does not depend on how a reply is cut into pieces, and accepted sizes are
// bounded.
func FuzzBound(f *testing.F) {
	f.Add("*2\r\n$3\r\nabc\r\n:1\r\n", uint64(1))
	f.Add("$-1\r\n+OK\r\n*0\r\n-ERR\r\n", uint64(2))
	f.Add("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n", uint64(3))
	f.Add("$1048577\r\n", uint64(4))
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		var whole, cut bound
		failure := whole.see([]byte(text))
		random := rand.New(rand.NewPCG(seed, 0))
		for rest := []byte(text); len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			if cut.see(rest[:n]) != nil {
				break
			}
			rest = rest[n:]
		}
		if (failure == nil) != (cut.err == nil) {
			t.Fatalf("seed %d: whole %v, in pieces %v", seed, failure, cut.err)
		}
		if whole.rest > replyStringMax+2 || whole.depth > replyDepthMax || failure == nil && whole.total > repliesBytesMax {
			t.Fatalf("%+v", whole)
		}
	})
}

// TestBoundAllocatesNothing: bound, through which every reply passes, does not allocate.
func TestBoundAllocatesNothing(t *testing.T) {
	text := []byte(strings.Repeat("$"+fmt.Sprint(len(goodReply))+"\r\n"+goodReply+"\r\n", 10))
	var b bound
	if n := testing.AllocsPerRun(100, func() { b.reset(); _ = b.see(text) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkBound measures the replies to a batch.
func BenchmarkBound(b *testing.B) {
	text := bytes.Repeat([]byte("$61\r\n1700000000000000 1 1700000000000000 1 1699999980000000 3 4444\r\n"), batchMax)
	var follow bound
	b.ReportAllocs()
	b.SetBytes(int64(len(text)))
	for range b.N {
		follow.reset()
		if err := follow.see(text); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/batchMax, "ns/reply")
}
