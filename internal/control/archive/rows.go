// SPDX-License-Identifier: Apache-2.0

package archive

import (
	"encoding/binary"
	"math"
	"net/netip"
	"time"

	"github.com/penstock/penstock/internal/control/retain"
)

// row is a pointer to a row of a table. A row of a table is also a row of a Parquet file.
type row interface {
	// targets returns the pointers into which the columns of a query are scanned.
	targets() []any
	// normalize changes the scanned values to the form in which they are read back.
	normalize()
	// values returns the values of the columns of the table.
	values() []any
	// measures returns the numbers that are added up.
	measures() []int64
	// key returns the key by which the rows of a partition are ordered.
	key() []string
}

// later is a text that files of earlier releases do not have. In such a file the text is read as ""
// and is not part of the digest.
type later string

// laterRetry and laterLatency are optional numbers, which files of earlier releases do not have. An
// absent number is not part of the digest.
type (
	laterRetry   int64
	laterLatency int64
)

// event is a row of rate_limit_events.
type event struct {
	Time     time.Time `parquet:"time,timestamp(microsecond)"`
	Event    int64     `parquet:"event"`
	Kind     string    `parquet:"kind,dict"`
	Policy   string    `parquet:"policy,dict"`
	Version  string    `parquet:"version,dict"`
	Rule     string    `parquet:"rule,dict"`
	Limit    string    `parquet:"limit,dict"`
	Decision string    `parquet:"decision,dict"`
	Status   int32     `parquet:"status"`
	Client   string    `parquet:"client,dict"`
	Tier     string    `parquet:"tier,dict"`
	IP       string    `parquet:"ip,optional,dict"` // an address with the length of its network
	Method   string    `parquet:"method,dict"`
	Path     string    `parquet:"path,dict"`
	State    string    `parquet:"state,dict"`
	Reason   string    `parquet:"reason,dict"`
	Node     string    `parquet:"node,dict"`
	Region   later     `parquet:"region,dict"`
	Seconds  float64   `parquet:"seconds"`
	Share    float32   `parquet:"share"`
	Count    int64     `parquet:"count"`
	// These are the values of the first decision that the event stands for.
	RetryAfterMS *laterRetry   `parquet:"retry_after_ms,optional"`
	LatencyUS    *laterLatency `parquet:"latency_us,optional"`
}

func (e *event) targets() []any {
	return []any{&e.Time, &e.Event, &e.Kind, &e.Policy, &e.Version, &e.Rule, &e.Limit, &e.Decision, &e.Status, &e.Client, &e.Tier, &e.IP,
		&e.Method, &e.Path, &e.State, &e.Reason, &e.Node, &e.Region, &e.Seconds, &e.Share, &e.Count, &e.RetryAfterMS, &e.LatencyUS}
}

func (e *event) normalize() { e.Time = e.Time.UTC() }

func (e *event) values() []any {
	var ip any
	if prefix, err := netip.ParsePrefix(e.IP); err == nil {
		ip = prefix
	}
	return []any{e.Time, e.Event, e.Kind, e.Policy, e.Version, e.Rule, e.Limit, e.Decision, e.Status, e.Client, e.Tier, ip,
		e.Method, e.Path, e.State, e.Reason, e.Node, string(e.Region), e.Seconds, e.Share, e.Count, (*int64)(e.RetryAfterMS), (*int64)(e.LatencyUS)}
}

func (e *event) measures() []int64 { return []int64{e.Count} }

func (e *event) key() []string { return []string{instant(e.Time), decimal(e.Event)} }

// usage is a row of client_usage.
type usage struct {
	Client   string `parquet:"client,dict"`
	Policy   string `parquet:"policy,dict"`
	Rule     string `parquet:"rule,dict"`
	Tier     string `parquet:"tier,dict"`
	Day      int32  `parquet:"day,date"` // in days since 1970; the library reads a date wrongly into a time.Time
	Admitted int64  `parquet:"admitted"`
	Denied   int64  `parquet:"denied"`
	Units    int64  `parquet:"units"`
}

func (u *usage) targets() []any {
	return []any{&u.Client, &u.Policy, &u.Rule, &u.Tier, &u.Day, &u.Admitted, &u.Denied, &u.Units}
}

func (u *usage) normalize() {}

func (u *usage) date() time.Time { return time.Unix(int64(u.Day)*24*60*60, 0).UTC() }

func (u *usage) values() []any {
	return []any{u.Client, u.Policy, u.Rule, u.Tier, u.date(), u.Admitted, u.Denied, u.Units}
}

func (u *usage) measures() []int64 { return []int64{u.Admitted, u.Denied, u.Units} }

func (u *usage) key() []string {
	return []string{u.Client, u.Policy, u.Rule, u.Tier, u.date().Format(time.DateOnly)}
}

// relation is a table whose months are archived.
type relation struct {
	name    string   // the name of the table
	short   string   // the prefix of the names of its objects
	columns []string // of the table
	query   string   // the columns as they are scanned
	order   string   // the columns of the key
	after   string   // the condition that selects the rows after a key in $1
	sums    []string // the columns of the measures, in the table
	age     func(retain.Keep) time.Duration
	files   files
}

// relations are the tables that are archived.
var relations = []*relation{
	{
		name: "rate_limit_events", short: "events",
		columns: []string{"at", "event", "kind", "policy", "version", "rule", "limited", "decision", "status", "client", "tier", "ip", "method", "path",
			"state", "reason", "node", "region", "seconds", "share", "events", "retry_after_ms", "latency_us"},
		query: "at, event, kind, policy, version, rule, limited, decision, status, client, tier, coalesce(ip::text, ''), method, path, state, reason, node, region, " +
			"seconds, share, events, retry_after_ms, latency_us",
		order: "at, event", after: "(at, event) > (($1::text[])[1]::timestamptz, ($1::text[])[2]::bigint)",
		sums: []string{"events"}, age: func(k retain.Keep) time.Duration { return k.Events }, files: filesOf[event]{},
	},
	{
		name: "client_usage", short: "usage",
		columns: []string{"client", "policy", "rule", "tier", "day", "admitted", "denied", "units"},
		query:   "client, policy, rule, tier, day - DATE '1970-01-01', admitted, denied, units",
		order:   "client, policy, rule, tier, day",
		after: "(client, policy, rule, tier, day) > (($1::text[])[1], ($1::text[])[2], ($1::text[])[3], ($1::text[])[4], " +
			"($1::text[])[5]::date)",
		sums: []string{"admitted", "denied", "units"}, age: func(k retain.Keep) time.Duration { return k.Days }, files: filesOf[usage]{},
	},
}

// appendField appends a value of a row in a form that is different for each value.
func appendField(to []byte, value any) []byte {
	switch v := value.(type) {
	case *string:
		to = binary.AppendUvarint(to, uint64(len(*v)))
		return append(to, *v...)
	case *later:
		if *v == "" {
			return to
		}
		to = binary.AppendUvarint(to, uint64(len(*v)))
		return append(to, *v...)
	case **laterRetry:
		return appendPresent(to, 'r', *v)
	case **laterLatency:
		return appendPresent(to, 'l', *v)
	case *int64:
		return binary.AppendVarint(to, *v)
	case *int32:
		return binary.AppendVarint(to, int64(*v))
	case *float64:
		return binary.BigEndian.AppendUint64(to, math.Float64bits(*v))
	case *float32:
		return binary.BigEndian.AppendUint32(to, math.Float32bits(*v))
	case *time.Time:
		return binary.AppendVarint(to, v.UnixMicro())
	}
	panic("a row has a column of another type") // the types of rows are above
}

// appendPresent appends a number that may be absent, after a letter that is different for each such
// column.
func appendPresent[T ~int64](to []byte, column byte, n *T) []byte {
	if n == nil {
		return to
	}
	return binary.AppendVarint(append(to, column), int64(*n))
}
