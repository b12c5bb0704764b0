// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/directory"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/policyfile"
)

// Under a policy with directory: true, requests are decided with the records of clients. With keys:
// directory, they are also decided with the records of API keys. Before the bridge decides any
// question of a call, the directory reads the unknown clients and keys of all the call's questions
// together. All questions of the call wait for that read. The client of a new key is known only
// after the key is read, so the clients of new keys are read in a second round.
//
// A filter makes the same plan as the bridge, so it needs the same records. The bridge sends the
// records of a question with its verdict, in the order in which the plan looks them up, unless the
// filter has them already. A filter uses them for at most half a second.

// openDirectory opens the directory for a policy that needs one, unless it is open.
func (b *Bridge) openDirectory() (*directory.Directory, error) {
	b.opening.Lock()
	defer b.opening.Unlock()
	if d := b.directory.Load(); d != nil {
		return d, nil
	}
	d, err := b.options.OpenDirectory()
	if err != nil {
		return nil, fmt.Errorf("the directory of clients: %w", err)
	}
	b.directory.Store(d)
	return d, nil
}

// closeDirectory closes the directory if it is open. closeDirectory is called after the last policy
// was read.
func (b *Bridge) closeDirectory() error {
	if d := b.directory.Load(); d != nil {
		return d.Close()
	}
	return nil
}

// directoryInUse yields the directory if it is open.
func (b *Bridge) directoryInUse(yield func(*directory.Directory) bool) {
	if d := b.directory.Load(); d != nil {
		yield(d)
	}
}

// Bridge.directed turns the directory on for a policy whose API keys are stored there. It rejects a
// policy that needs a directory if the bridge has none.
func (b *Bridge) directed(d *policyfile.Document) error {
	needs := d.Directory
	d.Directory = needs || d.KeysInDirectory()
	switch {
	case !d.Directory || b.options.OpenDirectory != nil:
		return nil
	case !needs:
		return fmt.Errorf("%s: identify: keys: directory needs a directory, and this bridge counts in memory, where nothing could change "+
			"the records of keys; write --redis redis://localhost:6379, or name a keys_file", cmp.Or(d.Place("identify"), "the policy"))
	}
	return fmt.Errorf("%s: directory: is true, and this bridge counts in memory, where nothing could change the records of "+
		"clients; write --redis redis://localhost:6379, or leave it out", cmp.Or(d.Place("directory"), "the policy"))
}

// DirectoryOf returns the directory that a version of the policy uses in its decisions, or nil.
func (o *Observer) DirectoryOf(rs *core.Ruleset) *directory.Directory {
	for _, v := range o.b.policy.Known() {
		if v.Ruleset == rs {
			return formOf(v).directory
		}
	}
	return o.b.candidate.directoryOf(rs)
}

// lookups implements [policy.Directory] and [policy.KeyDirectory] for the plan of one question. It
// looks in the bridge's directory, and keeps the records that it finds.
type lookups struct {
	directory *directory.Directory // the directory; nil for a policy without one
	found     []*policy.ClientRecord
	unknown   bool // whether a client or a key was not known
	encoded   []byte
}

var (
	_ policy.Directory    = (*lookups)(nil)
	_ policy.KeyDirectory = (*lookups)(nil)
)

// Find implements [policy.Directory].
func (l *lookups) Find(kind, id string, now counter.Micros) (*policy.ClientRecord, bool) {
	record, ok := l.directory.Find(kind, id, now)
	l.found, l.unknown = append(l.found, record), l.unknown || !ok
	return record, ok
}

// FindAddr implements [policy.Directory].
func (l *lookups) FindAddr(addr netip.Addr, now counter.Micros) *policy.ClientRecord {
	record := l.directory.FindAddr(addr, now)
	l.found = append(l.found, record)
	return record
}

// FindKey implements [policy.KeyDirectory]. The key's owner and state reach the filter as the
// verdict on the credential.
func (l *lookups) FindKey(hash [32]byte, now counter.Micros) (who *policy.Identity, state policy.CredentialState, ok bool) {
	who, state, ok = l.directory.FindKey(hash, now)
	l.unknown = l.unknown || !ok
	return who, state, ok
}

// lookups.forget drops the records that were found, before another plan is made.
func (l *lookups) forget() {
	clear(l.found)
	l.found, l.unknown = l.found[:0], false
}

// lookups.encode encodes the records for the filter, and returns the sum of their fingerprints.
func (l *lookups) encode() (known uint64) {
	l.encoded = l.encoded[:0]
	for _, record := range l.found {
		before := len(l.encoded)
		l.encoded = wire.AppendRecord(l.encoded, record)
		text, _, _ := wire.CutRecord(string(l.encoded[before:]))
		known += wire.RecordFingerprint(text)
	}
	return known
}

// question.add makes the plan of the question's request.
func (q *question) add() { q.addTo(&q.plan, &q.clients) }

// addTo adds the request to a plan that uses the given lookups.
func (q *question) addTo(p *core.Plan, clients *lookups) {
	if clients.directory != nil {
		clients.forget()
		p.UseDirectory(clients)
	}
	p.Add(q.version.Ruleset, q.request)
}

// Replan implements [throttle.Asker].
func (q *question) Replan(p *core.Plan) {
	clients := &q.clients
	if p != &q.plan { // q.clients keeps only the records of q.plan
		clients = &lookups{directory: q.clients.directory}
	}
	q.addTo(p, clients)
	if len(p.Unresolved()) > 0 {
		clients.directory.Resolve(context.Background(), p, func() { q.addTo(p, clients) })
	}
}

// readsWait is the number of reads of the directory for which a call waits in one round: the read
// that is already running, and the next one, which includes the clients of the call.
const readsWait = 2

// resolveTime bounds the wait of a call for the directory. The rest of [answerTime] is for the
// store.
const resolveTime = answerTime / 2

// Bridge.resolve makes the directory read the unknown clients and keys of all questions
// together, and plans their requests again.
func (b *Bridge) resolve(ctx context.Context, questions []*question) {
	var asking []*question
	for _, q := range questions {
		if q.request != nil && len(q.plan.Unresolved()) > 0 {
			asking = append(asking, q)
		}
	}
	if len(asking) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	if asking = b.readRound(ctx, asking, false); len(asking) > 0 {
		b.readRound(ctx, asking, true)
	}
}

// readRound reads the clients and keys that questions need, and plans their requests again.
// readRound returns the questions whose keys were read and whose clients must be read in the next
// round. After the last round, it returns none.
func (b *Bridge) readRound(ctx context.Context, asking []*question, last bool) (next []*question) {
	unknown := make([]directory.Unknown, len(asking))
	for i, q := range asking {
		unknown[i] = directory.Unknown{Source: q.plan.Source(), Names: q.plan.Unresolved()}
	}
	d := b.directory.Load()
	ctx, cancel := context.WithTimeout(ctx, readsWait*d.Timeout())
	defer cancel()
	d.FetchAll(ctx, unknown)
	for i, q := range asking {
		keyed := slices.ContainsFunc(unknown[i].Names, func(name policy.ClientName) bool { return name.Kind == policy.KindKey })
		switch q.planAgain(unknown[i].Overload); {
		case unknown[i].Overload, q.request == nil, len(q.plan.Unresolved()) == 0, !d.Works():
		case keyed && !last:
			next = append(next, q)
		default: // too many other records were read, so the directory has already evicted these
			q.planAgain(true)
		}
	}
	return next
}

// question.planAgain plans a request again after its clients were read. The argument overload
// reports that the records were not read, or have been evicted already. The request is then denied.
func (q *question) planAgain(overload bool) {
	defer q.rescue()
	q.plan.Retry()
	if overload {
		q.plan.RequireRecords()
	}
	q.add()
}
