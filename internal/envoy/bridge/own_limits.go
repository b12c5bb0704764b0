// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/enforce/live"
	"github.com/penstock/penstock/internal/envoy/wire"
	"github.com/penstock/penstock/internal/listen"
	"github.com/penstock/penstock/internal/status"
)

// StatusPath is the path at which clients can read their own limits, if Envoy routes their requests
// to the bridge.
const StatusPath = "/v1/status"

// The fields in which Envoy sends facts about a client's request that the request itself does not
// contain. Envoy must overwrite fields of these names that a client sends.
const (
	statusPeerField  = "X-Penstock-Peer"  // source.address
	statusTokenField = "X-Penstock-Token" // the filters' token; Authorization belongs to the client
	statusAttrField  = "X-Penstock-Attr"  // NAME=VALUE, any number of times
	originalPath     = "X-Envoy-Original-Path"
)

// attrsMax bounds the attributes that Envoy sends with a request for limits.
const attrsMax = 64

// fromEnvoy reports whether a request for a client's own limits comes from an Envoy, and not from a
// page in a browser or another program on the network. If the request comes from an Envoy, header
// fields that browsers set come from the client and are no reason to reject the request.
func (b *Bridge) fromEnvoy(r *http.Request) bool {
	if token := b.options.Token; token != "" {
		return subtle.ConstantTimeCompare([]byte(r.Header.Get(statusTokenField)), []byte(token)) == 1
	}
	return !listen.OverTCP(r) || r.TLS != nil && len(r.TLS.PeerCertificates) > 0
}

// serveStatus answers with the units that a client has left under its limits. serveStatus charges
// nothing.
func (b *Bridge) serveStatus(w http.ResponseWriter, r *http.Request) {
	if b.options.Token != "" && !b.fromEnvoy(r) {
		b.metrics.calls.WithLabelValues(callUnauthorized).Inc()
		http.Error(w, "this needs the token of the bridge, from Envoy: let the route set "+statusTokenField, http.StatusUnauthorized)
		return
	}
	b.options.Called(r.Context(), true)
	now := b.policy.Current()
	ask, err := statusRequest(r, &formOf(now).inputs)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if ok, busy := b.statuses.Enter(ask.Peer, time.Now()); !ok {
		w.Header().Set("Retry-After", "1")
		code := http.StatusTooManyRequests
		if busy {
			code = http.StatusServiceUnavailable
		}
		http.Error(w, "too many requests for limits: try again in a second", code)
		return
	}
	answer, err := b.limitsOf(now, ask)
	switch {
	case err != nil:
		w.Header().Set("Retry-After", "1")
		http.Error(w, "the limits cannot be read at present", http.StatusServiceUnavailable)
	case answer.Denied():
		w.Header().Set("WWW-Authenticate", status.Challenge)
		http.Error(w, "the credential was rejected", http.StatusUnauthorized)
	default:
		_ = answer.Write(w) // an answer can always be marshaled
	}
}

// limitsOf returns the limits of the client of a request. It frees the request's place before the
// answer is written, because a client that does not read its answer must not keep a place.
func (b *Bridge) limitsOf(now *live.Version, ask *wire.Ask) (answer status.Answer, err error) {
	defer b.statuses.Leave()
	form := formOf(now)
	look := &status.Looker{Store: b.options.Store, Directory: form.directory, Plan: new(core.Plan)}
	err = answer.Add(look, now.Ruleset, &wire.View{Ask: ask, Inputs: &form.inputs, At: micros(time.Now())})
	return answer, err
}

// statusRequest returns the request of a client as the filter would send it.
func statusRequest(r *http.Request, inputs *core.Inputs) (*wire.Ask, error) {
	for _, name := range []string{statusPeerField, statusTokenField} {
		if len(r.Header[name]) > 1 {
			return nil, fmt.Errorf("%s is set twice: let the route overwrite the client's, with append_action: OVERWRITE_IF_EXISTS_OR_ADD", name)
		}
	}
	source := r.Header[statusPeerField]
	if len(source) == 0 {
		return nil, errors.New("the address of the client is missing: let the route of Envoy set " + statusPeerField +
			": \"%DOWNSTREAM_REMOTE_ADDRESS%\"")
	}
	ask := &wire.Ask{Path: r.URL.Path, Query: r.URL.RawQuery, Method: r.Method, Host: r.Host}
	if path := r.Header.Get(originalPath); path != "" {
		ask.Path, ask.Query, _ = strings.Cut(path, "?")
	}
	for _, name := range inputs.Headers {
		values := r.Header[name]
		one := wire.Value{Given: len(values) > 0}
		if one.Given {
			one.Text = policy.JoinLines(name, values)
		}
		ask.Headers = append(ask.Headers, one)
	}
	ask.SetAddresses(inputs.Headers, source[0], true)
	attrs, err := statusAttrs(r.Header[statusAttrField])
	if err != nil {
		return nil, err
	}
	for _, name := range inputs.Attrs {
		value, ok := attrs[name]
		ask.Attrs = append(ask.Attrs, wire.Value{Text: value, Given: ok})
	}
	return ask, nil
}

// statusAttrs reads NAME=VALUE fields. Envoy writes "-" for a value that it does not have.
func statusAttrs(fields []string) (map[string]string, error) {
	if len(fields) > attrsMax {
		return nil, fmt.Errorf("%s is set %d times, and %d is the most", statusAttrField, len(fields), attrsMax)
	}
	attrs := map[string]string{}
	for _, field := range fields {
		name, value, ok := strings.Cut(field, "=")
		if _, twice := attrs[name]; !ok || twice {
			return nil, errors.New("a " + statusAttrField + " is not NAME=VALUE, or is set twice: let the first overwrite the client's, with " +
				"append_action: OVERWRITE_IF_EXISTS_OR_ADD")
		}
		if value != "" && value != "-" {
			attrs[name] = value
		}
	}
	return attrs, nil
}
