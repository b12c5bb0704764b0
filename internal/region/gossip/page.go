// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/internal/store/regionstore"
	"github.com/penstock/penstock/lua"
)

// readMax is the number of counters that one call of the store reads. Redis answers the region's
// requests between two calls.
const readMax = 1 << 12

// page is a part of the list of changed counters, as many as fit in one message.
type page struct {
	epoch string // "" if another agent reports
	names []string
	bytes int           // of the names
	last  int64         // the instant of the last change
	age   time.Duration // the age of the first change when it was read
	more  bool
}

// Agent.page reads the names of the counters that changed after an instant, as many as fit in one
// message.
func (a *Agent) page(ctx context.Context, own *Policy, after int64) (p page, err error) {
	p.last, p.more = after, true
	for p.more && len(p.names) < pageMax && p.bytes <= pageBytesMax {
		words, err := a.readChanges(ctx, own, p.last)
		if err != nil || len(words) < 2 {
			return page{}, err
		}
		if err := p.add(words); err != nil {
			return page{}, err
		}
	}
	return p, nil
}

// Agent.readChanges calls the script that returns the next changed counters, at most readMax of
// them.
func (a *Agent) readChanges(ctx context.Context, own *Policy, after int64) (words []any, err error) {
	lock := 3*own.Interval + tellerTime
	call := redisstore.ScriptCall{Keys: []string{regionstore.ChangedKey, regionstore.TellerKey, epochKey, regionstore.ReadKey},
		Args: []any{a.id, lock.Milliseconds(), after, readMax, max(own.Keep, keepMin).Microseconds(), rand.Text()}}
	reply, err := a.o.Store.Eval(ctx, lua.GossipPage, call)
	words, _ = reply.([]any)
	return words, err
}

// page.add adds the counters in a reply of the script, as long as they fit in a message.
func (p *page) add(words []any) error {
	p.epoch, _ = words[0].(string)
	now, err := instantOf(words[1])
	if err != nil {
		return err
	}
	for i := 2; i+1 < len(words); i += 2 {
		name, _ := words[i].(string)
		at, err := instantOf(words[i+1])
		if err != nil {
			return err
		}
		if len(p.names) == 0 {
			p.age = time.Duration(max(0, now-at)) * time.Microsecond
		} else if p.bytes+len(name) > pageBytesMax {
			p.bytes = pageBytesMax + 1 // it is full
			return nil
		}
		p.names, p.bytes, p.last = append(p.names, name), p.bytes+len(name), at
	}
	p.more = len(words) == 2+2*readMax
	return nil
}

// instantOf parses an instant in a script's reply, in microseconds.
func instantOf(word any) (int64, error) {
	text, _ := word.(string)
	at, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("reply %.30q is not an instant", text)
	}
	return int64(at), nil
}
