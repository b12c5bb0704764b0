// SPDX-License-Identifier: Apache-2.0

package loan

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// version is the version of the protocol between agents. Each path begins with it. Agents ignore
// fields that they do not know, so a field may be added if an agent that ignores it keeps the
// promise of the package. Otherwise, the version changes. An agent answers other paths with 404 and
// its own version.
const version = 1

// The paths at which an agent lends, and takes back what the borrower could not restore.
const (
	loansPath   = "/v1/loans"
	returnsPath = "/v1/returns"
)

// returned is the message with which a borrower returns units of a loan that it did not use. The
// borrower sends this message only once.
type returned struct {
	Question Question `json:"question"`
	Loan     Loan     `json:"loan"`
}

// answerBytesMax bounds the size of another region's answer.
const answerBytesMax = 8 << 10

// Peer is another region, which an agent asks for units. Make one with [NewPeer].
type Peer struct {
	Name string
	// send sends a message once, and returns the answer.
	send  func(ctx context.Context, path string, message any) (Loan, error)
	tell  func(ctx context.Context, m message) (message, error)
	close func()

	asked, failed, borrowed, units atomic.Uint64
	answered                       atomic.Int64 // when the last answer arrived, in milliseconds; 0 for never

	// These are the reasons why the last question, and the last message about the state of the
	// regions, failed. A reason is nil or empty if there was no failure. The reason of a question
	// is also cleared when a later message is answered.
	askFailure, tellFailure atomic.Pointer[string]
}

// Peer.failure returns why the region does not answer, or an empty string.
func (p *Peer) failure() string {
	for _, f := range []*atomic.Pointer[string]{&p.askFailure, &p.tellFailure} {
		if text := f.Load(); text != nil && *text != "" {
			return *text
		}
	}
	return ""
}

// note stores the reason why a message failed, or that it succeeded, and returns the previous
// reason.
func note(at *atomic.Pointer[string], err error) (before string) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if last := at.Swap(&text); last != nil {
		before = *last
	}
	return before
}

// NewPeer returns the region whose agent is at an address such as https://agent.us.example:7443.
// The parameter config has the certificate of this region, and the authority that signs those of
// the other regions. The certificate of the agent must name the region: see [CertificatePrefix].
func NewPeer(name, address string, config *tls.Config) (*Peer, error) {
	base, client, err := NewClient(name, address, config)
	if err != nil {
		return nil, err
	}
	c := &caller{name: name, url: base, client: client}
	return &Peer{Name: name, send: c.send, tell: c.tell, close: client.CloseIdleConnections}, nil
}

// NewClient returns a client for the agent of a region, and the beginning of its URLs. The
// arguments are those of [NewPeer].
func NewClient(name, address string, config *tls.Config) (base string, client *http.Client, err error) {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "https" || at.Host == "" || at.Path != "" && at.Path != "/" || at.RawQuery != "" {
		return "", nil, fmt.Errorf("address %q of region %s is not that of an agent: write https://host:port", address, name)
	}
	transport := &http.Transport{TLSClientConfig: toRegion(config, name), ForceAttemptHTTP2: true, MaxConnsPerHost: 16,
		IdleConnTimeout: 5 * time.Minute, TLSHandshakeTimeout: callTime, HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second,
			PingTimeout: callTime}}
	return "https://" + at.Host, &http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// Close closes idle connections.
func (p *Peer) Close() { p.close() }

// Peer.ask asks the region for units.
func (p *Peer) ask(ctx context.Context, q *Question) (l Loan, err error) {
	p.asked.Add(1)
	defer func() {
		note(&p.askFailure, err)
		switch {
		case err != nil:
			p.failed.Add(1)
		case l.Units+l.Later > 0:
			p.borrowed.Add(1)
			p.units.Add(uint64(l.Units + l.Later))
		}
	}()
	l, err = p.call(ctx, loansPath, q)
	switch {
	case err != nil:
		return l, err
	case l.Units > q.Want-l.Later:
		return Loan{}, fmt.Errorf("region %s lends %d units where %d were asked for", p.Name, l.Units+l.Later, q.Want)
	case l.Later > 0 && (!q.Ahead || l.Receipt <= 0 || l.From <= 0 || l.Full <= l.From):
		return Loan{}, fmt.Errorf("region %s lends %d units for later, which was not asked for", p.Name, l.Later)
	}
	return l, nil
}

// Peer.giveBack sends the unused units of a loan back to the region that has lent them. The result
// is how many of these units the region has restored.
func (p *Peer) giveBack(ctx context.Context, q *Question, rest Loan) (units int64, err error) {
	l, err := p.call(ctx, returnsPath, &returned{*q, rest})
	return min(l.Units, rest.Units), err
}

func (p *Peer) call(ctx context.Context, path string, message any) (Loan, error) {
	l, err := p.send(ctx, path, message)
	if err != nil {
		return Loan{}, err
	}
	p.answered.Store(time.Now().UnixMilli())
	if l.Units < 0 || l.Later < 0 {
		return Loan{}, fmt.Errorf("region %s answered with %d units, and %d for later", p.Name, l.Units, l.Later)
	}
	return l, nil
}

// caller sends messages to the agent of another region over HTTP.
type caller struct {
	name, url string
	client    *http.Client
}

func (c *caller) send(ctx context.Context, path string, message any) (l Loan, err error) {
	err = c.post(ctx, path, message, &l)
	return l, err
}

func (c *caller) tell(ctx context.Context, m message) (answer message, err error) {
	err = c.post(ctx, writeoffPath, m, &answer)
	return answer, err
}

// caller.post sends a message, and reads the answer.
func (c *caller) post(ctx context.Context, path string, message, answer any) error {
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.GetBody = nil // the transport cannot repeat it
	request.Header.Set("Content-Type", "application/json")
	return Exchange(c.client, request, c.name, answerBytesMax, answer)
}
