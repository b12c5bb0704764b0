// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/control/ledger"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/test/eventually"
)

// plane.rows returns the texts of the records of all clients, from the database.
func (p *plane) rows() map[policy.ClientName]string {
	p.t.Helper()
	pooled, err := p.ledger.Pool.Acquire(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	defer pooled.Release()
	all := map[policy.ClientName]string{}
	for after := (policy.ClientName{}); ; {
		clients, err := ledger.ClientsAfter(p.t.Context(), pooled.Conn(), after, pageMax)
		if err != nil {
			p.t.Fatal(err)
		}
		for i := range clients {
			after = clients[i].Name()
			text, _ := clients[i].Text()
			if text != nil {
				all[after] = string(text)
			}
		}
		if len(clients) < pageMax {
			return all
		}
	}
}

// plane.records returns the texts of all records in Redis, except those of networks.
func (p *plane) records() map[policy.ClientName]string {
	p.t.Helper()
	all := map[policy.ClientName]string{}
	if err := p.source.Names(p.t.Context(), func(names []policy.ClientName) error {
		texts := make([][]byte, len(names))
		err := p.source.Read(p.t.Context(), names, texts)
		for i, name := range names {
			all[name] = string(texts[i])
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// awaitsRows waits until Redis has the records of all rows, and no others.
func (p *plane) awaitsRows(what string) {
	p.t.Helper()
	eventually.Until(p.t, patience, what, func() bool { return p.isComplete() && maps.Equal(p.rows(), p.records()) })
}

// plane.flush removes everything from Redis.
func (p *plane) flush() {
	p.t.Helper()
	if err := p.redis.Client().FlushAll(p.t.Context()).Err(); err != nil {
		p.t.Fatal(err)
	}
}

// awaitsBeginning waits until some records were written to a Redis that was empty.
func (p *plane) awaitsBeginning() {
	p.t.Helper()
	eventually.Until(p.t, patience, "some records are written", func() bool {
		n, err := p.redis.Client().DBSize(p.t.Context()).Result()
		return err == nil && n > pageMax
	})
}

// TestClientsThatChangeWhileRedisIsFilled tests that Redis has what the rows say if clients are
// changed, forgotten and made while all records are written.
func TestClientsThatChangeWhileRedisIsFilled(t *testing.T) {
	t.Parallel()
	const clients = 12 * pageMax
	p := newPlane(t)
	p.writeClients(clients)
	p.start()
	p.awaitsRows("Redis is filled")
	p.flush()
	p.awaitsBeginning()
	meanwhile := 0
	for i := 0; i < 60 || i < 600 && !p.isComplete(); i++ {
		if !p.isComplete() {
			meanwhile++
		}
		client := fmt.Sprint("user:m_", 1+rand.IntN(clients+100))
		switch i % 3 {
		case 0:
			p.edit(directory.Edit{Client: client, Action: directory.ActionSetLimits, Rule: "api", Limits: []string{fmt.Sprintf("%d/1h", 1+i)}})
		case 1:
			p.edit(directory.Edit{Client: client, Action: directory.ActionForget})
		case 2:
			p.block(fmt.Sprint("user:new_", i))
		}
	}
	p.awaitsRows("Redis has what the rows say")
	if meanwhile == 0 {
		t.Error("no client was changed while Redis was filled")
	}
}

// TestAFillingThatEndsInTheMiddle ends a publisher while it writes all records. The test tests that
// the next publisher removes the records whose rows are gone. It also tests that a publisher begins
// again if Redis is emptied while the publisher writes all records.
func TestAFillingThatEndsInTheMiddle(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.writeClients(12 * pageMax)
	_, end := p.start()
	p.awaitsRows("Redis is filled")
	for range 2 {
		p.flush()
		p.awaitsBeginning()
		end()
		if p.isComplete() {
			t.Error("the records are not all written, and there is a generation")
		}
		for name := range p.records() {
			p.edit(directory.Edit{Client: name.String(), Action: directory.ActionForget})
			break
		}
		_, end = p.start()
		p.awaitsRows("the second publisher has written all")
	}
	p.flush()
	p.awaitsBeginning()
	p.flush()
	p.awaitsRows("Redis is filled after it was emptied twice")
}

// TestOldRecordsInARedisWithoutAGeneration tests that what Redis has of clients and keys without
// rows is removed, although Redis has neither a generation nor a history.
func TestOldRecordsInARedisWithoutAGeneration(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	p.block("user:bob")
	_, end := p.start()
	p.awaitsRows("Redis is filled")
	gone := directory.KeyName{Name: "gone", Hash: strings.Repeat("0", 64)}
	for what, write := range map[string]func() error{
		"a client": func() error {
			return p.source.Fill(t.Context(), []policy.ClientName{{Kind: "user", ID: "gone"}}, [][]byte{[]byte(blocked)})
		},
		"a key": func() error {
			return p.source.Fill(t.Context(), []policy.ClientName{gone.Record()}, [][]byte{[]byte(`{}`)})
		},
		"a name": func() error { return p.source.NameKeys(t.Context(), []directory.KeyName{gone}, nil) },
	} {
		end()
		p.flush()
		if err := write(); err != nil {
			t.Fatal(err)
		}
		_, end = p.start()
		p.awaitsRows("the rows are in Redis after it had " + what)
		names, err := p.source.KeysAfter(t.Context(), "", 1)
		keys, keysErr := p.redis.Client().Exists(t.Context(), "rl1:~key:"+gone.Hash).Result()
		if err != nil || keysErr != nil || len(names) > 0 || keys > 0 {
			t.Errorf("Redis had %s without a row, and has the names %v and %d keys: %v, %v", what, names, keys, err, keysErr)
		}
	}
}

// TestAPageThatCannotBeWrittenEndsTheReading tests that all pages are written, and that at most one
// more page is read after Redis has stopped answering.
func TestAPageThatCannotBeWrittenEndsTheReading(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	l := &lockedPublisher{Publisher: &Publisher{Source: p.source}}
	const pages = 10
	read := 0
	next := func(context.Context) (*page, bool, error) {
		read++
		return &page{names: []policy.ClientName{{Kind: "user", ID: fmt.Sprint(read)}}, texts: [][]byte{[]byte(blocked)}}, read < pages, nil
	}
	if err := l.writePages(t.Context(), next); err != nil || read != pages || len(p.records()) != pages {
		t.Errorf("%d pages were read, and %d records written: %v", read, len(p.records()), err)
	}
	p.redis.Kill()
	read = 0
	if err := l.writePages(t.Context(), next); err == nil || read > 2 {
		t.Errorf("%d pages were read without a Redis: %v", read, err)
	}
}
