// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"bytes"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/penstock/penstock/internal/events"
	"github.com/penstock/penstock/internal/meter"
)

// KindUsage is the kind of a line with the usage of a client. The other kinds are those of events.
const KindUsage = "usage"

// Bounds of a batch, for both sides.
const (
	LinesMax = 5000
	// BytesMax bounds a batch as it is sent, and TextBytesMax as it is after decompression.
	BytesMax     = 8 << 20
	TextBytesMax = 32 << 20
	// textBytesFull ends a batch of long lines, so that it is far below both bounds.
	textBytesFull = 4 << 20
	// FeedBytes is the length of the identifier of a feed: digits and letters a to f.
	FeedBytes = 32
)

// Line is one line of a batch: an event, or the usage of one client under one rule.
type Line struct {
	Time     time.Time `json:"time"`
	Kind     string    `json:"kind"`
	Policy   string    `json:"policy,omitempty"`
	Version  string    `json:"version,omitempty"`
	Rule     string    `json:"rule,omitempty"`
	Limit    string    `json:"limit,omitempty"`
	Decision string    `json:"decision,omitempty"`
	Client   string    `json:"client,omitempty"` // KIND:ID
	Tier     string    `json:"tier,omitempty"`
	IP       string    `json:"ip,omitempty"`
	Method   string    `json:"method,omitempty"`
	Path     string    `json:"path,omitempty"`
	State    string    `json:"state,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Node     string    `json:"node,omitempty"`
	Region   string    `json:"region,omitempty"` // of the node
	Status   int       `json:"status,omitempty"`
	Seconds  float64   `json:"seconds,omitempty"`
	Share    float64   `json:"share,omitempty"`
	Count    int64     `json:"count,omitempty"`
	// of an event; 0 if it is unknown
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
	LatencyUS    int64 `json:"latency_us,omitempty"`
	// of KindUsage
	Admitted int64 `json:"admitted,omitempty"`
	Denied   int64 `json:"denied,omitempty"`
	Units    int64 `json:"units,omitempty"`
	// Latency has the buckets of a histogram of the endpoint's decisions: the number of the bucket,
	// as in package meter, and how many decisions were admitted and denied. A line with Latency has
	// no client, and its other numbers are 0. So a control plane that does not know Latency loses
	// only the histogram.
	Endpoint string     `json:"endpoint,omitempty"`
	Latency  [][3]int64 `json:"latency,omitempty"`
	// Keys are the SHA-256 of API keys, in hexadecimal, that were used at the time of the line. A
	// line with Keys has a histogram without decisions, so that a control plane that does not know
	// Keys adds up nothing.
	Keys []string `json:"keys,omitempty"`
}

// noDecisions is a histogram in which no decision counts, because there is no such bucket.
var noDecisions = [][3]int64{{-1, 0, 0}}

// keysOfLine is how many API keys are in a line, so that the line is shorter than
// [events.LineBytesMax].
const keysOfLine = 300

// encoder compresses the lines of a batch.
type encoder struct {
	text   []byte
	lines  int
	packed bytes.Buffer
	gzip   *gzip.Writer
}

func (e *encoder) begin() { e.text, e.lines = e.text[:0], 0 }

// encoder.full reports whether the batch may have no further line.
func (e *encoder) full() bool { return e.lines == LinesMax || len(e.text) >= textBytesFull }

// encoder.event appends an event, with its texts escaped.
func (e *encoder) event(of *events.Event) {
	own := *of
	for _, text := range [...]*string{&own.Policy, &own.Version, &own.Rule, &own.Limit, &own.Decision, &own.Client, &own.Tier, &own.Method, &own.Path,
		&own.State, &own.Reason, &own.Node, &own.Region} {
		*text = Escape(*text)
	}
	e.text = append(own.AppendJSON(e.text), '\n')
	e.lines++
}

// encoder.usage appends a row, with its texts escaped.
func (e *encoder) usage(row *meter.Row, at time.Time, node, region string) {
	client := ""
	if row.Client != "" {
		client = row.Kind + ":" + row.Client
	}
	e.line(&Line{Time: at, Kind: KindUsage, Policy: Escape(row.Policy), Rule: Escape(row.Rule), Client: Escape(client),
		Tier: Escape(row.Tier), Node: node, Region: region,
		Admitted: int64(row.Admitted), Denied: int64(row.Denied), Units: row.Units})
}

// encoder.latency appends a histogram.
func (e *encoder) latency(row *meter.LatencyRow, at time.Time, node, region string) {
	l := Line{Time: at, Kind: KindUsage, Policy: Escape(row.Policy), Rule: Escape(row.Rule), Node: node, Region: region,
		Endpoint: Escape(row.Endpoint), Latency: make([][3]int64, len(row.Counts))}
	for i, c := range row.Counts {
		l.Latency[i] = [3]int64{int64(c.Bucket), int64(c.Admitted), int64(c.Denied)}
	}
	e.line(&l)
}

// usedKeys appends a line with the uses that have the same time as the first use, as many as fit
// into the line, and returns their number. The uses must be in the order of their times.
func (e *encoder) usedKeys(uses []meter.KeyUse, node, region string) (n int) {
	l := Line{Time: time.UnixMicro(uses[0].Micros).UTC(), Kind: KindUsage, Node: node, Region: region, Latency: noDecisions}
	for n < min(len(uses), keysOfLine) && uses[n].Micros == uses[0].Micros {
		l.Keys = append(l.Keys, hex.EncodeToString(uses[n].Hash[:]))
		n++
	}
	e.line(&l)
	return n
}

// encoder.line appends a line.
func (e *encoder) line(l *Line) {
	line, err := json.Marshal(l)
	if err != nil {
		panic(err) // texts, numbers and a present time can be marshaled
	}
	e.text = append(append(e.text, line...), '\n')
	e.lines++
}

// encoder.end returns the compressed batch, which is valid until the encoder begins another one.
func (e *encoder) end() ([]byte, error) {
	e.packed.Reset()
	if e.gzip == nil {
		var err error
		if e.gzip, err = gzip.NewWriterLevel(&e.packed, gzip.BestSpeed); err != nil {
			return nil, err
		}
	} else {
		e.gzip.Reset(&e.packed)
	}
	if _, err := e.gzip.Write(e.text); err != nil {
		return nil, err
	}
	err := e.gzip.Close()
	return e.packed.Bytes(), err
}
