// SPDX-License-Identifier: Apache-2.0

package push

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Bounds of sending.
const (
	intervalDefault = time.Minute
	intervalMin     = 100 * time.Millisecond
	sendTime        = 10 * time.Second
	// closeTime is how long the last report may take.
	closeTime = 2 * time.Second
	// answerBytesMax bounds what is read of an answer.
	answerBytesMax = 4 << 10
)

// metricsPath is appended to the path of an endpoint.
const metricsPath = "v1/metrics"

// Options configure where and what is sent. Endpoint, Gatherer and Logger are required.
type Options struct {
	Endpoint string            // the URL of a collector, to whose path v1/metrics is appended
	Headers  map[string]string // of each report, such as one with a token
	Interval time.Duration     // between two reports; 0 is a minute
	Resource [][2]string       // attributes of the process: names and values
	Gatherer prometheus.Gatherer
	// Panicked is called during a panic while metrics are gathered.
	Panicked func(reason any)
	Logger   *slog.Logger
}

// Check returns what is wrong with the endpoint, the headers or the interval.
func (o *Options) Check() error {
	at, err := url.Parse(o.Endpoint)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "":
		return fmt.Errorf("endpoint %q: write a URL, as http://localhost:4318", o.Endpoint)
	case at.User != nil || at.RawQuery != "" || at.Fragment != "":
		return fmt.Errorf("endpoint %q has more than a host and a path: leave the rest out, and write headers for a password or a token", at.Redacted())
	case o.Interval != 0 && o.Interval < intervalMin:
		return fmt.Errorf("interval %v is too short: write %v or more, or leave it out for %v", o.Interval, intervalMin, intervalDefault)
	}
	_, err = o.request(context.Background(), nil)
	return err
}

// Options.request returns the request of a report.
func (o *Options) request(ctx context.Context, report []byte) (*http.Request, error) {
	at, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.JoinPath(metricsPath).String(), bytes.NewReader(report))
	if err != nil {
		return nil, err
	}
	for name, value := range o.Headers {
		if !isField(name, value) {
			return nil, fmt.Errorf("headers: %q is not a header field with a text: write a name like authorization, and a value of one line", name)
		}
		r.Header.Set(name, value)
	}
	r.Header.Set("Content-Type", "application/x-protobuf")
	return r, nil
}

// isField reports whether a name and a value are a header field.
func isField(name, value string) bool {
	for _, c := range []byte(name) {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return false
		}
	}
	for _, c := range []byte(value) {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return name != ""
}

// Sender sends metrics until it is closed.
type Sender struct {
	options Options
	began   time.Time
	client  http.Client
	end     context.CancelFunc
	running sync.WaitGroup
	failing bool // the last report failed
}

// Open begins to send. The caller closes the result.
func Open(o Options) (*Sender, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, MaxConnsPerHost: 1, MaxResponseHeaderBytes: 16 << 10,
		IdleConnTimeout: 2 * cmp.Or(o.Interval, intervalDefault)}
	s := &Sender{options: o, began: time.Now(), client: http.Client{Transport: transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	s.running.Go(func() { s.run(ctx) })
	o.Logger.Info("metrics are sent by OTLP", "endpoint", o.Endpoint)
	return s, nil
}

func (s *Sender) run(ctx context.Context) {
	every := time.NewTicker(cmp.Or(s.options.Interval, intervalDefault))
	defer every.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-every.C:
		}
		err := s.send(ctx, sendTime)
		if ctx.Err() == nil {
			s.logTrouble(err)
		}
	}
}

// logTrouble logs that the collector has stopped answering, or that it answers again.
func (s *Sender) logTrouble(err error) {
	switch failed := err != nil; {
	case failed && !s.failing:
		s.options.Logger.Warn("metrics could not be sent by OTLP; limits go on, and each later report has them all", "error", err)
	case !failed && s.failing:
		s.options.Logger.Info("metrics are sent by OTLP again")
	}
	s.failing = err != nil
}

// Sender.send sends one report.
func (s *Sender) send(ctx context.Context, most time.Duration) error {
	report, err := s.report(time.Now())
	if err != nil {
		return err
	}
	ctx, end := context.WithTimeout(ctx, most)
	defer end()
	r, err := s.options.request(ctx, report)
	if err != nil {
		return err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, answerBytesMax))
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("the collector answers %s: %q", answer.Status, text)
	}
	return err
}

// Sender.report gathers the metrics and encodes them.
func (s *Sender) report(now time.Time) (report []byte, err error) {
	defer func() {
		if reason := recover(); reason != nil {
			s.options.Panicked(reason)
			err = errors.New("a panic while metrics were gathered")
		}
	}()
	families, err := s.options.Gatherer.Gather()
	if err != nil {
		return nil, err
	}
	return encode(s.options.Resource, families, s.began, now), nil
}

// Close sends a last report, but gives up after two seconds.
func (s *Sender) Close() error {
	s.end()
	s.running.Wait()
	defer s.client.CloseIdleConnections()
	if err := s.send(context.Background(), closeTime); err != nil {
		return fmt.Errorf("the last metrics could not be sent by OTLP: %w", err)
	}
	return nil
}
