// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/http/httptest"
	"reflect"
	"testing"

	"github.com/penstock/penstock/internal/envoy/wire"
)

// TestACallIsLetGoOf: a question that is kept for reuse does not refer to data of its last call,
// which may be a megabyte.
func TestACallIsLetGoOf(t *testing.T) {
	h := open(t, shop, nil)
	c := new(call)
	question := h.question("/who", "192.0.2.1")
	for i := range question.Ask.Headers {
		question.Ask.Headers[i] = wire.Value{Text: "gold", Given: true}
	}
	c.body = h.call(question, settlementItem("receipt", "3"))
	e, err := h.b.read(c)
	if err != nil || !h.b.answer(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/check", nil), c, e) || c.questions[0].answer.Status != wire.StatusOK {
		t.Fatal(err)
	}
	h.b.release(c)
	for i, q := range c.questions {
		ask, settle := &q.item.Ask, &q.item.Settle
		ask.Headers, ask.Attrs = ask.Headers[:cap(ask.Headers)], ask.Attrs[:cap(ask.Attrs)]
		settle.Headers, settle.Numbers = settle.Headers[:cap(settle.Headers)], settle.Numbers[:cap(settle.Numbers)]
		for _, list := range [][]wire.Value{ask.Headers, ask.Attrs} {
			for _, v := range list {
				if v != (wire.Value{}) {
					t.Errorf("question %d keeps %q", i, v.Text)
				}
			}
		}
		for _, list := range [][]wire.Field{settle.Headers, settle.Numbers} {
			for _, f := range list {
				if f != (wire.Field{}) {
					t.Errorf("question %d keeps %q", i, f)
				}
			}
		}
		ask.Headers, ask.Attrs, settle.Headers, settle.Numbers = nil, nil, nil, nil
		if !reflect.DeepEqual(q.item, wire.Item{}) {
			t.Errorf("question %d keeps %+v", i, q.item)
		}
	}
}
