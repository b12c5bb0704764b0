// SPDX-License-Identifier: Apache-2.0

package redisbackup

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/penstock/penstock/internal/store/redisadmin"
)

const (
	// scanCount is the number of keys that a server examines in one call.
	scanCount = 500
	// stringBytesMax is the greatest number of bytes that are read of a string. The value of a
	// counter is shorter.
	stringBytesMax = 1024
	// membersPerRecord is the number of members of a set in one record.
	membersPerRecord = 256
	// violationsMax bounds how many violations of a client are read. The limiter keeps at most half
	// of this number.
	violationsMax = 2000
	// answerTimeout is how long a server may take to answer a pipeline.
	answerTimeout = 30 * time.Second
)

// Written counts the contents of a backup.
type Written struct {
	Counters int // keys in the backup
	Wrong    int // keys of counters that hold something else, and are not in the backup
	Example  string
}

// Write writes a backup of all counters. Requests are decided during the backup, and each counter
// is as it was at some instant of the backup.
func Write(ctx context.Context, servers *redisadmin.Deployment, to io.Writer) (Written, error) {
	b := &backup{file: newWriter(to, time.Now())}
	masters, err := servers.Masters()
	if err != nil {
		return b.written, err
	}
	for _, n := range masters {
		if err := b.server(ctx, n); err != nil {
			return b.written, n.Explain(err)
		}
	}
	return b.written, b.file.end(to)
}

// backup is a backup that is being written.
type backup struct {
	file    *writer
	written Written
	reads   []keyReading
}

// keyReading is a key that is being read.
type keyReading struct {
	key    string
	m      meaning
	text   *redis.StringCmd
	member *redis.StringSliceCmd
	left   *redis.DurationCmd
}

// backup.server writes the counters of a server.
func (b *backup) server(ctx context.Context, n *redisadmin.Node) error {
	for cursor := uint64(0); ; {
		keys, next, err := n.Client().Scan(ctx, cursor, keyPrefix+"*", scanCount).Result()
		if err != nil {
			return err
		}
		for part := range slices.Chunk(keys, scanCount) {
			if err := b.keys(ctx, n.Client(), part); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// backup.keys writes the counters at some keys. The server's clock is read last, so that a counter
// does not end sooner than it would have.
func (b *backup) keys(ctx context.Context, client redis.Cmdable, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	b.reads = b.reads[:0]
	pipe := client.Pipeline()
	for _, key := range keys {
		m, ok := meaningOf(key)
		if !ok {
			continue
		}
		r := keyReading{key: key, m: m}
		switch m.kind {
		case kindLog:
			r.member = readFirstMarks(ctx, pipe, key, "-inf")
		case kindViolations:
			r.member = pipe.ZRange(ctx, key, 0, violationsMax-1)
		default:
			r.text = pipe.GetRange(ctx, key, 0, stringBytesMax-1)
		}
		r.left = pipe.PTTL(ctx, key)
		b.reads = append(b.reads, r)
	}
	if len(b.reads) == 0 {
		return nil
	}
	clock := pipe.Time(ctx)
	_, _ = pipe.Exec(ctx) // each command has its error
	now, err := clock.Result()
	if err != nil {
		return err
	}
	for i := range b.reads {
		if err := b.writeKey(ctx, client, &b.reads[i], now); err != nil {
			return err
		}
	}
	return nil
}

// readFirstMarks reads the first marks of a log after an instant.
func readFirstMarks(ctx context.Context, with redis.Cmdable, key, after string) *redis.StringSliceCmd {
	return with.ZRangeByScore(ctx, key, &redis.ZRangeBy{Min: after, Max: "+inf", Count: membersPerRecord})
}

// writeKey writes a key that was read.
func (b *backup) writeKey(ctx context.Context, client redis.Cmdable, r *keyReading, now time.Time) error {
	var value string
	var members []string
	var err error
	if r.text != nil {
		value, err = r.text.Result()
	} else {
		members, err = r.member.Result()
	}
	switch left, wrong := r.left.Result(); {
	case redis.HasErrorPrefix(err, "WRONGTYPE"):
		b.noteWrong(r.key)
		return nil
	case err != nil:
		return err
	case wrong != nil:
		return wrong
	case left == -2 || value == "" && len(members) == 0: // the key has expired
		return nil
	case r.m.kind.set():
		return b.set(ctx, client, r, members, expiry(now, left))
	default:
		return b.addRecord(&record{meaning: r.m, key: r.key, expires: expiry(now, left), value: value}, true)
	}
}

// expiry returns the time at which a key expires, in milliseconds since 1970; 0 means never.
func expiry(now time.Time, left time.Duration) int64 {
	if left < 0 {
		return 0
	}
	return now.Add(left).UnixMilli() + 1
}

// backup.set writes the members of a set, and reads the rest of a long log.
func (b *backup) set(ctx context.Context, client redis.Cmdable, r *keyReading, members []string, expires int64) (err error) {
	first := true
	for len(members) > 0 {
		n := min(len(members), membersPerRecord)
		if err := b.addRecord(&record{meaning: r.m, key: r.key, expires: expires, value: strings.Join(members[:n], " ")}, first); err != nil {
			return err
		}
		last := members[n-1]
		members, first = members[n:], false
		if r.m.kind == kindLog && n == membersPerRecord {
			at, _, _ := strings.Cut(last, ":")
			if _, err := strconv.ParseUint(at, 10, 64); err != nil {
				return nil // addRecord has counted it as wrong
			}
			if members, err = readFirstMarks(ctx, client, r.key, "("+at).Result(); err != nil {
				return err
			}
		}
	}
	return nil
}

// addRecord writes a record. The argument named first reports whether it is the first record of its
// key.
func (b *backup) addRecord(r *record, first bool) error {
	if !r.isValid(r.value) {
		b.noteWrong(r.key)
		return nil
	}
	if first {
		b.written.Counters++
	}
	return b.file.addRecord(r)
}

func (b *backup) noteWrong(key string) {
	if b.written.Wrong++; b.written.Example == "" {
		b.written.Example = key
	}
}

// String describes what was written.
func (w Written) String() string {
	text := fmt.Sprintf("%d counters", w.Counters)
	if w.Wrong > 0 {
		text += fmt.Sprintf("; %d keys of counters hold something else and are left out, such as %q: see penstock redis inspect", w.Wrong, w.Example)
	}
	return text
}
