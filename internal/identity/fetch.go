// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"
)

// pace is how often a URL is asked.
type pace struct {
	timeout  time.Duration // of one attempt
	retryMin time.Duration // after the first failure; it doubles up to the refresh
	unknown  time.Duration // the least between two looks that tokens of unknown keys cause
}

// fetchPace is the pace of production. Anybody can write a token of an unknown key, so that the issuer is asked at most
// six times a minute for it.
var fetchPace = pace{timeout: 10 * time.Second, retryMin: time.Second, unknown: 10 * time.Second}

const (
	redirectsMax    = 3
	headerBytesMax  = 64 << 10
	jitterPart      = 10 // nodes spread over a tenth of the refresh, so that they do not ask in step
	fetcherNameSent = "penstock"
)

// fetcher keeps a key set that is published at a URL. It asks in a goroutine of its own, whoever wants to know: the clients
// of keyfunc and jwkset ask in that of the request when a key is unknown. When the URL fails, the last good set stays.
type fetcher struct {
	url     string
	client  *http.Client
	refresh time.Duration
	pace    pace
	load    func(data []byte) error
	notices *notices
	want    chan struct{} // a token is by a key that is not there
}

func newFetcher(o *JWTOptions, pace pace, notices *notices, load func([]byte) error) *fetcher {
	transport := o.Transport
	if transport == nil {
		own := &http.Transport{Proxy: http.ProxyFromEnvironment}
		if usual, ok := http.DefaultTransport.(*http.Transport); ok { // plugins put others in its place
			own = usual.Clone()
		}
		own.DisableKeepAlives = true // it is asked every few minutes
		own.MaxResponseHeaderBytes = headerBytesMax
		transport = own
	}
	client := &http.Client{Transport: transport, Timeout: pace.timeout, CheckRedirect: sameHost}
	return &fetcher{url: o.JWKSURL, client: client, refresh: o.Refresh, pace: pace, load: load, notices: notices,
		want: make(chan struct{}, 1)}
}

// sameHost refuses redirects that lead to somebody else: whoever can bend one would choose the keys.
func sameHost(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	switch {
	case next.URL.Host != first.Host || next.URL.Scheme != first.Scheme:
		return fmt.Errorf("redirect to %s://%s is refused: write the URL that it leads to", next.URL.Scheme, cut(next.URL.Host))
	case len(before) > redirectsMax:
		return fmt.Errorf("more than %d redirects", redirectsMax)
	}
	return nil
}

// wanted asks for a look before its time. It never waits.
func (f *fetcher) wanted() {
	select {
	case f.want <- struct{}{}:
	default:
	}
}

func (f *fetcher) run(ctx context.Context) {
	retry := f.pace.retryMin
	for ctx.Err() == nil {
		pause := f.refresh
		err := f.fetch(ctx)
		switch {
		case err == nil:
			retry = f.pace.retryMin
			f.notices.mended("the key set can be fetched again", "url", redact(f.url))
		case ctx.Err() == nil:
			f.notices.failing("the key set cannot be fetched, the last one stays: "+cut(err.Error()), "url", redact(f.url))
			pause, retry = min(retry, f.refresh), min(2*retry, f.refresh)
		}
		if !f.wait(ctx, pause-rand.N(pause/jitterPart+1)) {
			return
		}
	}
}

// wait waits for the next look, or for one that is wanted, which comes no sooner than its pace. It returns false when the
// fetcher is to stop.
func (f *fetcher) wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(min(pause, f.pace.unknown))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	if pause <= f.pace.unknown {
		return true
	}
	timer.Reset(pause - f.pace.unknown)
	select {
	case <-ctx.Done():
		return false
	case <-f.want:
	case <-timer.C:
	}
	return true
}

// fetch asks once.
func (f *fetcher) fetch(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, f.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", fetcherNameSent)
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := f.client.Do(request)
	if err != nil {
		var wrapped *url.Error // repeats the URL, which the log line has already
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("it answers %s", cut(response.Status))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, setBytesMax+1))
	switch {
	case err != nil:
		return err
	case len(data) > setBytesMax:
		return fmt.Errorf("it answers more than %d bytes", setBytesMax)
	}
	if err := f.load(data); err != nil {
		return fmt.Errorf("what it answers %w", err)
	}
	return nil
}
