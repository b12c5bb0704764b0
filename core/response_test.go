// SPDX-License-Identifier: Apache-2.0

package core

import (
	"encoding/json"
	"fmt"
	"github.com/penstock/penstock/internal/test/limittest"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/internal/validate"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/core/slim"
)

// TestBodyContentType tests the content type of bodies for which the policy sets none.
func TestBodyContentType(t *testing.T) {
	for body, want := range map[string]string{"": "", "later": policy.ContentText, "{later": policy.ContentText, "[later": policy.ContentText,
		"7": policy.ContentText, "{}": policy.ContentJSON, `[{"a":1}]`: policy.ContentJSON} {
		if got := BodyContentType(body); got != want {
			t.Errorf("%q: %q, want %q", body, got, want)
		}
	}
}

// TestRetryAfterOfARule: the result is the greater of the actual wait and the rule's retry_after. A
// wait of Never is unchanged.
func TestRetryAfterOfARule(t *testing.T) {
	for _, c := range []struct {
		rules []policy.Rule
		want  counter.Micros
	}{
		{[]policy.Rule{{Limits: limittest.All(t, "1/1m fw")}}, 39_700 * counter.Millisecond},
		{[]policy.Rule{{Limits: limittest.All(t, "1/1m fw"), RetryAfter: 10 * counter.Second}}, 39_700 * counter.Millisecond},
		{[]policy.Rule{{Limits: limittest.All(t, "1/1m fw"), RetryAfter: 2 * counter.Minute}}, 2 * counter.Minute},
		{[]policy.Rule{{Limits: limittest.All(t, "1/1m fw")}, {Limits: limittest.All(t, "1/1s fw"), RetryAfter: 5 * counter.Minute}}, 5 * counter.Minute},
		{[]policy.Rule{{Limits: limittest.All(t, "1/1m fw")}, {Limits: limittest.All(t, "9/1s fw"), RetryAfter: 5 * counter.Minute}}, 39_700 * counter.Millisecond},
	} {
		for i := range c.rules {
			c.rules[i].Name = fmt.Sprintf("r%d", i)
		}
		rs, store := mustCompile(t, policy.Policy{Name: "n", Rules: c.rules}), newCounters()
		store.ask(t, get("192.0.2.1", "/"), rs)
		plan, d := store.ask(t, get("192.0.2.1", "/"), rs)
		if d.RetryAfter != c.want || HeadersOf(plan, &d).RetryAfter != fmt.Sprint(int64((c.want+counter.Second-1)/counter.Second)) {
			t.Errorf("%+v: %s, want %s", c.rules, d.RetryAfter, c.want)
		}
		plan.Checks()[0].Cost = 1e9
		store.take(plan.Checks(), plan.Results())
		if d = plan.Decide(); d.RetryAfter != counter.Never {
			t.Errorf("%+v: %d for a cost that never passes", c.rules, d.RetryAfter)
		}
	}
}

// TestRetryJitter: the jitter spreads clients evenly over its whole range, never shortens the wait,
// and is the same for the same request.
func TestRetryJitter(t *testing.T) {
	rs := mustCompile(t, policy.Policy{Name: "n", Rules: []policy.Rule{{Name: "r", Limits: limittest.All(t, "1/1m fw"), RetryJitter: 10 * counter.Second}}})
	const clients, wait = 2000, 39_700 * counter.Millisecond
	var tenths [10]int
	for i := range clients {
		store := newCounters()
		a := get(fmt.Sprintf("10.0.%d.%d", i/256, i%256), "/")
		store.ask(t, a, rs)
		plan, d := store.ask(t, a, rs)
		if again := plan.Decide(); again.RetryAfter != d.RetryAfter {
			t.Fatalf("%d, and then %d", d.RetryAfter, again.RetryAfter)
		}
		if d.RetryAfter < wait || d.RetryAfter > wait+10*counter.Second {
			t.Fatalf("told to wait %s", d.RetryAfter)
		}
		tenths[min(9, (d.RetryAfter-wait)/counter.Second)]++
	}
	for i, n := range tenths {
		if n < clients/10*7/10 || n > clients/10*13/10 {
			t.Errorf("%d of %d clients in second %d: %v", n, clients, i, tenths)
		}
	}
	var spread [10]int
	for at := range counter.Micros(clients) {
		spread[min(9, jitter([]byte("one key"), noon+at*997, 10*counter.Second)/counter.Second)]++
	}
	for i, n := range spread {
		if n < clients/10*7/10 || n > clients/10*13/10 {
			t.Errorf("%d of %d instants in second %d: %v", n, clients, i, spread)
		}
	}
}

// FuzzValidJSON compares ValidJSON with encoding/json, which also accepts invalid UTF-8.
func FuzzValidJSON(f *testing.F) {
	for _, text := range []string{`{"a":[1,-0.5e+7,true,false,null,"\u00e9\n"]}`, ` [ ] `, `{}`, `01`, `1.`, `"`, `[1,]`, `{"a" 1}`,
		`{"a":1,}`, `nul`, "\"\x01\"", `"\u12x4"`, `[[[]]`, `-`, `1 2`, ``, `"\ud800"`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		deep := strings.Count(text, "[")+strings.Count(text, "{") >= validate.JSONDepthMax
		if !deep && strings.ToValidUTF8(text, "") == text && validate.ValidJSON(text) != json.Valid([]byte(text)) {
			t.Errorf("%q: %v", text, validate.ValidJSON(text))
		}
		var back string
		if err := json.Unmarshal(append(slim.AppendJSON([]byte{'"'}, text), '"'), &back); err != nil ||
			back != strings.ToValidUTF8(text, "\uFFFD") && !strings.Contains(back, "\uFFFD") {
			t.Errorf("%q came back as %q: %v", text, back, err)
		}
	})
}

func TestJSONDepth(t *testing.T) {
	deep := strings.Repeat("[", validate.JSONDepthMax) + strings.Repeat("]", validate.JSONDepthMax)
	if !validate.ValidJSON(deep) || validate.ValidJSON("["+deep+"]") {
		t.Errorf("%d levels: %v, one more: %v", validate.JSONDepthMax, validate.ValidJSON(deep), validate.ValidJSON("["+deep+"]"))
	}
}
