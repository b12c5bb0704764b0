// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"io"
	"net/http"
	"sync"

	"github.com/penstock/penstock/internal/wire"
)

// serveCheck answers a call: many questions, each with an answer of its own.
func (b *Bridge) serveCheck(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, wire.CallBytesMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	call, err := wire.ReadCall(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	known := b.editions.of(call.Version)
	var questions []*question
	for {
		q := b.plans.Get().(*question)
		ok, err := call.Next(&q.item)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if !ok {
			b.plans.Put(q)
			break
		}
		questions = append(questions, q)
	}
	b.answer(r, known, questions)
	reply := wire.AppendReply(nil)
	for _, q := range questions {
		reply = wire.AppendAnswer(reply, &q.answer)
		b.plans.Put(q)
	}
	w.Header().Set("Content-Type", wire.ContentType)
	_, _ = w.Write(reply) // whoever is gone needs none
}

// answer asks all questions at once: the store sends what it is asked at the same time together.
func (b *Bridge) answer(r *http.Request, e *edition, questions []*question) {
	if len(questions) == 1 {
		questions[0].ask(r.Context(), b, e)
		return
	}
	var all sync.WaitGroup
	for _, q := range questions {
		all.Go(func() { q.ask(r.Context(), b, e) })
	}
	all.Wait()
}
