// SPDX-License-Identifier: Apache-2.0

package gossip

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"sync/atomic"

	"github.com/penstock/penstock/internal/region/loan"
)

// answerBytesMax bounds the size of another region's answer. The answer has an index for each
// counter whose window has not begun in that region.
const answerBytesMax = 8*pageMax + 1<<10

// Peer is another region, to which an agent reports. Make one with [NewPeer].
type Peer struct {
	Name string
	// send sends a message once, and returns the answer.
	send  func(ctx context.Context, message []byte) (answer, error)
	close func()

	// Only the goroutine that reports to this region uses the fields below.
	cursor          int64  // the instant of the last change that the region knows
	ownEpoch, epoch string // the epochs of this region and of the peer, when the cursor was set
	broken          bool   // whether the last message failed

	told, failed atomic.Uint64
	answered     atomic.Int64 // when the last answer arrived, in milliseconds; 0 for never
	// delay is the time from the first change in the last message until the message was answered.
	delay atomic.Int64
}

// NewPeer returns a peer for the region whose agent is at an address such as
// https://agent.us.example:7443. The arguments are the same as those of [loan.NewPeer].
func NewPeer(name, address string, config *tls.Config) (*Peer, error) {
	base, client, err := loan.NewClient(name, address, config)
	if err != nil {
		return nil, err
	}
	c := &caller{name: name, url: base + Path, client: client}
	return &Peer{Name: name, send: c.send, close: client.CloseIdleConnections}, nil
}

// Close closes idle connections to the region.
func (p *Peer) Close() { p.close() }

// caller sends messages to the agent of another region over HTTP.
type caller struct {
	name, url string
	client    *http.Client
}

func (c *caller) send(ctx context.Context, message []byte) (said answer, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(message))
	if err != nil {
		return said, err
	}
	request.Header.Set("Content-Type", "application/octet-stream")
	if err := loan.Exchange(c.client, request, c.name, answerBytesMax, &said); err != nil {
		return said, err
	}
	if said.Epoch == "" {
		return said, fmt.Errorf("the answer of region %s is not that of an agent", c.name)
	}
	return said, nil
}
