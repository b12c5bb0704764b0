// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisadmin"
	"github.com/penstock/penstock/internal/store/redisstore"
	"github.com/penstock/penstock/lua"
)

//go:embed merge.lua
var mergeText string

var mergeScript = redis.NewScript(lua.IntMath + mergeText)

const (
	// recordsPerCall is the number of records that one call of the script merges, so that a call
	// keeps a server busy for less than a millisecond. In a cluster, each call merges one record,
	// because the keys of a call must be in one slot.
	recordsPerCall = 32
	// recordsPerPipeline is the number of records that are sent to a server at once.
	recordsPerPipeline = 256
	// rights are the rights that a restore needs beyond those of the store.
	rights = "+type +exists +pttl +persist +zscore"
)

// outcome is the result of restoring a record, as the script replies.
type outcome int64

const (
	kept outcome = iota
	added
	raised
	over
	unreadable
)

// outcome.strength returns the rank of an outcome. The outcome of a key is that of its records with
// the highest rank.
func (o outcome) strength() int {
	return [...]int{kept: 1, added: 4, raised: 3, over: 0, unreadable: 2}[o]
}

// Restored counts the keys of a backup by the outcome of their restore.
type Restored struct {
	Made       time.Time // when the backup was begun
	Added      int       // keys that were not in Redis
	Raised     int       // counters that had less use in Redis than in the backup
	Kept       int       // counters that had at least as much use in Redis as in the backup
	Over       int       // keys that have expired since the backup
	Unreadable int       // keys that hold something else in Redis, and were left alone
	Example    string    // one of the unreadable keys
}

// Restore merges the counters of a backup into the servers. Restore writes nothing if any byte of
// the backup is not as it was written, or if dry is set. If Restore fails, some counters may have
// been merged; it can be repeated.
func Restore(ctx context.Context, servers *redisadmin.Deployment, file io.ReadSeeker, dry bool) (Restored, error) {
	r := &restore{servers: servers, dry: "0", queues: map[*redisadmin.Node]*queue{}}
	if dry {
		r.dry = "1"
	}
	var err error
	if r.restored.Made, err = check(file); err != nil {
		return r.restored, err
	}
	masters, err := servers.Masters()
	if err != nil {
		return r.restored, err
	}
	for _, n := range masters {
		if err := mergeScript.Load(ctx, n.Client()).Err(); err != nil {
			return r.restored, n.Explain(err)
		}
	}
	if err := read(file, func(one *record) error { return r.queueRecord(ctx, one) }); err != nil {
		return r.restored, err
	}
	for n, q := range r.queues {
		if err := r.send(ctx, n, q); err != nil {
			return r.restored, err
		}
		r.count(q)
	}
	return r.restored, nil
}

// restore is a restore under way.
type restore struct {
	servers  *redisadmin.Deployment
	dry      string
	queues   map[*redisadmin.Node]*queue
	restored Restored
}

// queue has the records that will be sent to a server. Of the key whose records are being restored,
// it has the outcome so far.
type queue struct {
	records []record
	key     string
	outcome outcome
}

// queueRecord queues a record for the server of its key.
func (r *restore) queueRecord(ctx context.Context, one *record) error {
	n, err := r.servers.Serving(one.key)
	if err != nil {
		return err
	}
	q := r.queues[n]
	if q == nil {
		q = new(queue)
		r.queues[n] = q
	}
	if q.records = append(q.records, *one); len(q.records) < recordsPerPipeline {
		return nil
	}
	return r.send(ctx, n, q)
}

// restore.send merges the queued records of a server.
func (r *restore) send(ctx context.Context, n *redisadmin.Node, q *queue) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	together := recordsPerCall
	if r.servers.Mode == redisadmin.ModeCluster {
		together = 1
	}
	pipe := n.Client().Pipeline()
	var calls []*redis.Cmd
	for begin := 0; begin < len(q.records); begin += together {
		keys, args := call(q.records[begin:min(begin+together, len(q.records))], r.dry)
		calls = append(calls, mergeScript.EvalSha(ctx, pipe, keys, args...))
	}
	if len(calls) == 0 {
		return nil
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	i := 0
	for _, cmd := range calls {
		replies, err := cmd.Int64Slice()
		if err != nil {
			return fmt.Errorf("%w; some counters may be restored: repeat the restore", explain(n, err))
		}
		for _, reply := range replies {
			if i == len(q.records) || reply < int64(kept) || reply > int64(unreadable) {
				return fmt.Errorf("%s answers the script with %v", n.Addr, replies)
			}
			r.noteOutcome(q, q.records[i].key, outcome(reply))
			i++
		}
	}
	if i != len(q.records) {
		return fmt.Errorf("%s answers %d of %d records", n.Addr, i, len(q.records))
	}
	q.records = q.records[:0]
	return nil
}

// explain adds a remedy to an error.
func explain(n *redisadmin.Node, err error) error {
	if _, moved := redis.IsMovedError(err); moved || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN") {
		return fmt.Errorf("slots of the cluster move (%w): wait until penstock redis health shows no move", err)
	}
	if redisstore.LacksRights(err) {
		return fmt.Errorf("%w; beyond the rights of the store, a restore needs %s", n.Explain(err), rights)
	}
	return n.Explain(err)
}

// call returns the keys and arguments of a call of the script.
func call(records []record, dry string) (keys []string, args []any) {
	args = append(args, dry)
	for i := range records {
		one := &records[i]
		keys = append(keys, one.key)
		if one.kind == kindLog {
			keys = append(keys, one.key+":n")
		}
		args = append(args, string(one.kind), strconv.FormatInt(int64(one.window), 10), strconv.FormatInt(one.expires, 10), one.value)
	}
	return keys, args
}

// noteOutcome notes the outcome of a record. The records of one key must be noted one after
// another, with no other key between them.
func (r *restore) noteOutcome(q *queue, key string, o outcome) {
	if q.key == key {
		if o.strength() > q.outcome.strength() {
			q.outcome = o
		}
		return
	}
	r.count(q)
	q.key, q.outcome = key, o
}

// restore.count adds the outcome for the queue's key to the result, after noteOutcome has noted all
// records of that key.
func (r *restore) count(q *queue) {
	if q.key == "" {
		return
	}
	counts := [...]*int{kept: &r.restored.Kept, added: &r.restored.Added, raised: &r.restored.Raised, over: &r.restored.Over,
		unreadable: &r.restored.Unreadable}
	*counts[q.outcome]++
	if q.outcome == unreadable && r.restored.Example == "" {
		r.restored.Example = q.key
	}
	q.key = ""
}

// String describes the outcomes of the counters.
func (r Restored) String() string {
	text := fmt.Sprintf("%d added, %d raised, %d kept because as much is used there, %d over", r.Added, r.Raised, r.Kept, r.Over)
	if r.Unreadable > 0 {
		text += fmt.Sprintf("; %d hold something else and were left alone, such as %q: see penstock redis inspect", r.Unreadable, r.Example)
	}
	return text
}
