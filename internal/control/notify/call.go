// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
)

const (
	// callTime bounds a call to a receiver.
	callTime = 10 * time.Second
	// answerBytesMax bounds how much of an answer's body is read; the body is not used.
	answerBytesMax = 64 << 10
	// secretPrefix is the prefix of a secret, as in Standard Webhooks.
	secretPrefix   = "whsec_"
	secretBytes    = 32
	secretBytesMin = 24
	secretBytesMax = 64
	secretsMax     = 4
)

// NewSecret returns a new secret.
func NewSecret() string {
	secret := make([]byte, secretBytes)
	_, _ = rand.Read(secret) // it never fails
	return secretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// ParseSecrets parses secrets, one on each line. Messages are signed with each of them.
func ParseSecrets(text string) (secrets [][]byte, err error) {
	for _, line := range strings.Fields(text) {
		digits, ok := strings.CutPrefix(line, secretPrefix)
		secret, wrong := base64.StdEncoding.DecodeString(digits)
		if !ok || wrong != nil || len(secret) < secretBytesMin || len(secret) > secretBytesMax {
			return nil, fmt.Errorf("the secret in line %d is not a secret: write %s and %d to %d bytes in base64, as penstock control threshold secret does",
				len(secrets)+1, secretPrefix, secretBytesMin, secretBytesMax)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 || len(secrets) > secretsMax {
		return nil, fmt.Errorf("there are %d secrets: write 1 to %d, each in a line", len(secrets), secretsMax)
	}
	return secrets, nil
}

// Caller calls receivers. Create one with [NewCaller].
type Caller struct {
	secrets [][]byte
	client  *http.Client
}

// NewCaller returns a Caller that signs messages with the secrets. It may also call receivers in
// the allowed networks, with or without TLS.
func NewCaller(secrets [][]byte, allowed []netip.Prefix) *Caller {
	transport := &http.Transport{DisableKeepAlives: true, TLSHandshakeTimeout: callTime, ResponseHeaderTimeout: callTime, MaxResponseHeaderBytes: answerBytesMax,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			dialer := &net.Dialer{Timeout: callTime, Control: func(_, address string, _ syscall.RawConn) error {
				return mayCall(ctx, address, allowed)
			}}
			return dialer.DialContext(ctx, network, address)
		}}
	return &Caller{secrets: secrets, client: &http.Client{Transport: transport, Timeout: callTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// plainKey is the context key of calls without TLS.
type plainKey struct{}

// errNetwork is the error for a receiver whose address may not be called.
var errNetwork = errors.New("the receiver may not be called")

// mayCall returns an error if the address to which a receiver's name has been resolved may not be
// called.
func mayCall(ctx context.Context, address string, allowed []netip.Prefix) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	addr := at.Addr().Unmap()
	for _, prefix := range allowed {
		if prefix.Contains(addr) {
			return nil
		}
	}
	switch {
	case ctx.Value(plainKey{}) != nil:
		return fmt.Errorf("%w: %s would be called without TLS; write https, or allow its network with --webhook-allow", errNetwork, addr)
	case !addr.IsGlobalUnicast() || addr.IsPrivate() || slices.ContainsFunc(reserved, func(p netip.Prefix) bool { return p.Contains(addr) }):
		return fmt.Errorf("%w: %s is not a public address; allow its network with --webhook-allow", errNetwork, addr)
	}
	return nil
}

// reserved holds networks that are not public, or through which such networks can be reached.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"),
	netip.MustParsePrefix("240.0.0.0/4"), netip.MustParsePrefix("64:ff9b::/96"), netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("fec0::/10"), netip.MustParsePrefix("2001::/32"),
}

// message is the body of a call to a receiver.
type message struct {
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"` // when the notice was made
	Data      data      `json:"data"`
}

type data struct {
	Threshold string      `json:"threshold"`
	Client    string      `json:"client"`
	Policy    string      `json:"policy"`
	Rule      string      `json:"rule"`
	Month     string      `json:"month"`
	Percent   int         `json:"percent"`
	Used      json.Number `json:"used"`
	Units     int64       `json:"units"`
}

// Caller.call sends a notice to its receiver, and returns nil if the receiver has answered 2xx.
func (c *Caller) call(ctx context.Context, o *notice, now time.Time) error {
	body, err := json.Marshal(message{Type: "usage.threshold", Timestamp: o.madeAt.UTC(), Data: data{Threshold: o.threshold, Client: o.client, Policy: o.policy,
		Rule: o.rule, Month: o.month, Percent: o.percent, Used: json.Number(o.used), Units: o.units}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if u, err := url.Parse(o.url); err == nil && u.Scheme == "http" {
		ctx = context.WithValue(ctx, plainKey{}, true)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, o.url, bytes.NewReader(body))
	if err != nil {
		return withoutURL(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "penstock-control")
	at := strconv.FormatInt(now.Unix(), 10)
	r.Header.Set("Webhook-Id", o.id)
	r.Header.Set("Webhook-Timestamp", at)
	r.Header.Set("Webhook-Signature", c.sign(o.id, at, body))
	answer, err := c.client.Do(r)
	if err != nil {
		return withoutURL(err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, answerBytesMax)) // only the status is used
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the receiver answered %d", answer.StatusCode)
	}
	return nil
}

// withoutURL returns an error of a call without the URL, because the path or the query may be
// secret.
func withoutURL(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

// Caller.sign returns the signatures of a message, one for each secret.
func (c *Caller) sign(id, at string, body []byte) string {
	var all []string
	for _, secret := range c.secrets {
		mac := hmac.New(sha256.New, secret)
		_, _ = fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	return strings.Join(all, " ")
}

// makeStorable replaces control characters, so that a row can contain the text and a terminal can
// show it.
func makeStorable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '\uFFFD'
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}
