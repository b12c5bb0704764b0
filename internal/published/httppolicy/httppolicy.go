// SPDX-License-Identifier: Apache-2.0

// Package httppolicy reads published policies from the API of a control plane, for nodes without
// Redis.
//
// # Promise
//
// An [Origin] has the text of one policy, for package follow. The text is, byte for byte, the one
// that other nodes read in Redis. The control plane sends the text only if it has changed since the
// Origin last read it (ETag). A call ends after [callTime], and a call to a machine that does not
// answer after [dialTime]. The result of a call, even of a failed one, answers all reads within
// [sharedFor]. So a start makes one call for the policy and its candidate, and even a reload can
// get a text that is a second old. No call follows a redirect, so the token goes only to the host
// of the URL. At most [published.TextBytesMax] bytes of a text are used.
//
// # Price
//
// There is no announcement: a change is found by the next look, within 36 seconds if the control
// plane answers within a second. A look is a request and an answer without a body, on a connection
// that stays open. The process keeps the text.
//
// # When not to use it
//
// Do not use it for a node whose counters are in Redis. With package redispolicy, such a node
// learns of a change at once, and needs no second address.
package httppolicy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock/penstock/internal/controlcall"
	"github.com/penstock/penstock/internal/published"
	"github.com/penstock/penstock/internal/published/follow"
)

const (
	// callTime bounds a call, and so the time for which a start waits for a control plane that
	// accepts the connection but does not answer. A control plane answers after 2 s if the Redis of
	// one of its regions does not answer. In the remaining second, 8 Mbit/s are enough for the
	// largest text. Most texts have a tenth of that size.
	callTime = 3 * time.Second
	// sharedFor is how long the result of a call answers further reads. This time is shorter than
	// the first pause after a failed look, so the next look makes a call.
	sharedFor = time.Second
	// dialTime bounds how long connecting to the control plane may take, and the TLS handshake.
	dialTime = 2 * time.Second
	// tagBytesMax bounds an ETag that Origin sends back to the control plane.
	tagBytesMax = 256
	// detailBytesMax bounds how many bytes of an error's body are read.
	detailBytesMax = 4 << 10
)

// Options configures an origin. All fields are required.
type Options struct {
	controlcall.Target
	Policy string
	Logger *slog.Logger
}

// Origin reads the text of one policy from the API of a control plane. It implements
// [follow.Origin].
type Origin struct {
	o     Options
	now   func() time.Time
	known atomic.Pointer[answer] // the text that was last read; nil before that
	away  atomic.Bool            // whether the log says that the control plane does not answer

	calling chan struct{} // a lock that guards last, held during a call
	last    result
}

// result is the result of a call, which later reads may share.
type result struct {
	ended time.Time
	text  []byte
	err   error
}

// answer is a text with its ETag.
type answer struct {
	text []byte
	tag  string
}

var _ follow.Origin = (*Origin)(nil)

// New returns an origin. New makes no call yet.
func New(o Options) (*Origin, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	if o.IsExposed() {
		o.Logger.Warn("the token of the control plane can be read by the network: write https:// in the URL", "policy", o.Policy, "url", o.URL)
	}
	return &Origin{o: o, now: time.Now, calling: make(chan struct{}, 1)}, nil
}

// String implements [follow.Origin].
func (o *Origin) String() string { return "http:" + o.o.Policy }

// Listen implements [follow.Origin]. The API announces nothing.
func (o *Origin) Listen(ctx context.Context, _ func()) { <-ctx.Done() }

// Read implements [follow.Origin]. The result can be that of a call which ended less than
// [sharedFor] ago.
func (o *Origin) Read(ctx context.Context) ([]byte, error) {
	select {
	case o.calling <- struct{}{}:
		defer func() { <-o.calling }()
	case <-ctx.Done():
		return nil, &follow.AwayError{Err: ctx.Err()}
	}
	if !o.last.ended.IsZero() && o.now().Sub(o.last.ended) < sharedFor {
		return o.last.text, o.last.err
	}
	bounded, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	text, err := o.ask(bounded)
	if ctx.Err() == nil { // else the error is that of a caller who left
		o.last = result{o.now(), text, err}
		o.logAway(err)
	}
	return text, err
}

// logAway logs when the control plane ceases to answer, and when it answers again.
func (o *Origin) logAway(err error) {
	_, away := errors.AsType[*follow.AwayError](err)
	switch was := o.away.Swap(away); {
	case away && !was:
		o.o.Logger.Warn("the control plane does not give the policy; the one in force stays", "policy", o.o.Policy, "error", err)
	case was && !away:
		o.o.Logger.Info("the control plane answers for the policy again", "policy", o.o.Policy)
	}
}

// client makes the calls of all origins of a process, so that they share connections.
var client = newClient()

func newClient() *http.Client {
	// As in package feed, a proxy of the environment is used. With http://, the proxy sees the
	// token; New warns about that.
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: dialTime}).DialContext
	transport.TLSHandshakeTimeout = dialTime
	transport.DisableCompression = true // the text is compressed, and its ETag is that of its bytes
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// Origin.ask requests the text from the control plane.
func (o *Origin) ask(ctx context.Context) ([]byte, error) {
	r, err := o.o.Request(ctx, http.MethodGet, "/v1/policies/"+url.PathEscape(o.o.Policy)+"/published", nil)
	if err != nil {
		return nil, err
	}
	known := o.known.Load()
	if known != nil && known.tag != "" {
		r.Header.Set("If-None-Match", known.tag)
	}
	response, err := client.Do(r)
	if err != nil {
		return nil, &follow.AwayError{Err: fmt.Errorf("the control plane did not answer for the policy: %w", err)}
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode == http.StatusNotModified && known != nil:
		return known.text, nil
	case response.StatusCode != http.StatusOK:
		return nil, describe(response)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, published.TextBytesMax+1))
	if err != nil {
		return nil, &follow.AwayError{Err: fmt.Errorf("the published policy of the control plane is incomplete: %w", err)}
	}
	if len(text) > published.TextBytesMax {
		return nil, fmt.Errorf("the control plane at %s sends more than %d bytes for a policy: correct the URL", o.o.URL, published.TextBytesMax)
	}
	if published.Generation(text) == 0 { // a page of another server can differ each time
		return nil, &follow.DeniedError{Kind: "no policy", Err: fmt.Errorf("the answer of %s is not a published policy: correct the URL", o.o.URL)}
	}
	tag := response.Header.Get("ETag")
	if len(tag) > tagBytesMax {
		tag = ""
	}
	o.known.Store(&answer{text, tag})
	return text, nil
}

// describe converts an answer that has no text to an error. Errors for the same status have the
// same kind, because their details may differ from request to request.
func describe(response *http.Response) error {
	status := response.StatusCode
	detail := detailOf(response)
	err := fmt.Errorf("the control plane answered %d: %s", status, detail)
	switch {
	case status == http.StatusNotFound && detail != "":
		return follow.ErrNone
	case status == http.StatusNotFound:
		err = errors.New("the control plane answered 404, and not that no policy is published: correct the URL, or use a control plane of this release")
	case status >= 300 && status < 400:
		err = fmt.Errorf("the control plane answered %d and sends to %.200q: write the URL that answers itself", status, targetOf(response))
	case detail == "":
		err = fmt.Errorf("the control plane answered %d", status)
	}
	if status >= 500 || status == http.StatusTooManyRequests || status == http.StatusRequestTimeout {
		return &follow.AwayError{Err: err}
	}
	return &follow.DeniedError{Kind: strconv.Itoa(status), Err: err}
}

// targetOf returns the server to which a redirect leads, without the rest of the URL, which can
// hold secrets.
func targetOf(response *http.Response) string {
	to, err := response.Location()
	if err != nil {
		return ""
	}
	return to.Scheme + "://" + to.Host
}

// detailOf returns the detail of a problem document, or "" if the answer is not such a document.
func detailOf(response *http.Response) string {
	if !strings.HasPrefix(response.Header.Get("Content-Type"), "application/problem+json") {
		return ""
	}
	var problem struct{ Detail string }
	if json.NewDecoder(io.LimitReader(response.Body, detailBytesMax)).Decode(&problem) != nil {
		return ""
	}
	return problem.Detail
}
