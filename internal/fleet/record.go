// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Bounds of a record.
const (
	// RecordBytesMax bounds the length of a record.
	RecordBytesMax = 32 << 10
	// ClientsMax and RulesMax bound the numbers of clients and rules of a record.
	ClientsMax = 64
	RulesMax   = 128
	// policiesMax bounds the number of policies of a record.
	policiesMax = 64
	// textBytesMax bounds the length of a name or of a problem in a record.
	textBytesMax = 256
)

// recordVersion is the version of the format. Records of later versions are not read.
const recordVersion = 1

// Record is a node's report about itself.
type Record struct {
	Version int    `json:"v"`
	ID      string `json:"id"` // random, for the life of the process
	// Name is the host and the process, such as web-1:4711.
	Name  string `json:"name"`
	Front string `json:"front"` // "caddy", "bridge" or "module"
	Build string `json:"build,omitempty"`
	// Receipts is the latest form of receipts that a bridge reads; 0 if it does not report this.
	Receipts int `json:"receipts,omitempty"`
	// UpSeconds is how long the process has run.
	UpSeconds int64 `json:"up_s"`
	// SeenMicros is when the record was written, by the clock of Redis. 0 means now.
	SeenMicros int64    `json:"seen_us,omitempty"`
	Policies   []Policy `json:"policies"`
	Problems   []string `json:"problems,omitempty"`
	Rules      []Rule   `json:"rules"`
	Clients    []Client `json:"clients"`
}

// Policy is a policy in force.
type Policy struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Rejected bool   `json:"rejected,omitempty"` // whether the last edit of its file was rejected
	// Published is the version as a control plane published it, before this node completed it.
	Published string `json:"published,omitempty"`
	// ByClient reports whether the node can enforce a candidate for a share of the clients.
	ByClient bool `json:"by_client,omitempty"`
	// Candidate is the candidate that the node enforces for a share of the clients; nil if there is
	// none.
	Candidate *Candidate `json:"candidate,omitempty"`
	Events    bool       `json:"events,omitempty"` // whether it reports events
	// Region is the region whose parts of the limits the node enforces, if the policy has regions.
	Region string `json:"region,omitempty"`
}

// Candidate counts the requests that a candidate has decided for its share of the clients, since it
// came into force on the node.
type Candidate struct {
	Published string `json:"published"` // its version as the control plane published it
	Admitted  uint64 `json:"admitted"`
	Denied    uint64 `json:"denied"`
}

// Rule counts the outcomes of requests under a rule since the process began, and in the last
// minute. The rule "" stands for the policy itself: blocks, credentials and penalties.
type Rule struct {
	Policy         string `json:"policy"`
	Rule           string `json:"rule"`
	Admitted       uint64 `json:"admitted"`
	Denied         uint64 `json:"denied"`
	AdmittedMinute uint64 `json:"admitted_last_minute"`
	DeniedMinute   uint64 `json:"denied_last_minute"`
}

// Client is a client that is denied often. Denied is an upper bound, and Over is the maximum by
// which it may be too high. Both halve every hour.
type Client struct {
	Policy string `json:"policy"`
	Client string `json:"client"`
	Denied uint64 `json:"refused"`
	Over   uint64 `json:"over"`
}

// Record.encode returns the record as JSON of at most RecordBytesMax. It drops clients and rules
// until the record fits, the least important first.
func (r *Record) encode() ([]byte, error) {
	short := *r
	short.Version = recordVersion
	short.Clients = short.Clients[:min(len(short.Clients), ClientsMax)]
	short.Rules = short.Rules[:min(len(short.Rules), RulesMax)]
	short.Policies = short.Policies[:min(len(short.Policies), policiesMax)]
	for {
		text, err := json.Marshal(&short)
		if err != nil || len(text) <= RecordBytesMax {
			return text, err
		}
		switch {
		case len(short.Clients) > 0:
			short.Clients = short.Clients[:len(short.Clients)/2]
		case len(short.Rules) > 0:
			short.Rules = short.Rules[:len(short.Rules)/2]
		case len(short.Policies) > 0:
			short.Policies = short.Policies[:len(short.Policies)/2]
		default:
			return nil, fmt.Errorf("the record has %d bytes, and %d is the most", len(text), RecordBytesMax)
		}
	}
}

var errRecord = errors.New("the record cannot be read")

// decode returns the record of a node. The text in Redis is not trusted.
func decode(id string, text []byte) (*Record, error) {
	if len(text) > RecordBytesMax {
		return nil, fmt.Errorf("%w: it has %d bytes", errRecord, len(text))
	}
	r := new(Record)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%w: %w", errRecord, err)
	}
	if r.Version != recordVersion || r.ID != id || r.UpSeconds < 0 || r.UpSeconds > int64(100*365*24*time.Hour/time.Second) ||
		len(r.Policies) > policiesMax || len(r.Rules) > RulesMax || len(r.Clients) > ClientsMax {
		return nil, errRecord
	}
	for i := range r.Clients {
		if r.Clients[i].Over > r.Clients[i].Denied {
			return nil, errRecord
		}
	}
	return r, nil
}
