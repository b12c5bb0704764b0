// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/penstock/penstock/internal/policyfile"
)

// pace is the timing of fetches.
type pace struct {
	timeout  time.Duration // the timeout of one attempt
	retryMin time.Duration // the pause after the first failure; each further failure doubles it, up to refresh
	unknown  time.Duration // the least time between two fetches caused by tokens with unknown keys
}

// fetchPace is the pace in production. Anyone can create a token with an unknown key, so such
// tokens cause at most six fetches a minute.
var fetchPace = pace{timeout: 10 * time.Second, retryMin: time.Second, unknown: 10 * time.Second}

const (
	redirectsMax   = 3
	headerBytesMax = 64 << 10
	// nodes spread their fetches over a tenth of the interval, so that they do not fetch at the
	// same time
	jitterPart      = 10
	fetcherNameSent = "penstock"
)

// fetcher keeps a key set that is published at a URL. A fetcher fetches in its own goroutine. The
// clients of keyfunc and jwkset are not used, because they fetch in the request's goroutine when a
// key is unknown. If the URL fails, the last good set remains in force.
type fetcher struct {
	url     string // of the key set, or of the issuer
	issuer  string // if it is not "", the issuer's discovery document names the URL of the set
	client  *http.Client
	refresh time.Duration
	pace    pace
	load    func(data []byte, from string) error
	notices *notices
	want    chan struct{} // a channel that receives a value when a token names an unknown key
}

// newFetcher returns a fetcher that is not running yet. A running fetcher passes each key set that
// it has fetched to the function named load.
func newFetcher(o *JWTOptions, pace pace, notices *notices, load func(data []byte, from string) error) *fetcher {
	transport := o.Transport
	if transport == nil {
		own := &http.Transport{Proxy: http.ProxyFromEnvironment}
		// A plugin might have replaced the default transport.
		if usual, ok := http.DefaultTransport.(*http.Transport); ok {
			own = usual.Clone()
		}
		own.DisableKeepAlives = true // fetches are minutes apart
		own.MaxResponseHeaderBytes = headerBytesMax
		transport = own
	}
	client := &http.Client{Transport: transport, Timeout: pace.timeout, CheckRedirect: sameHost}
	return &fetcher{url: valueOr(o.IssuerURL, o.JWKSURL), issuer: o.IssuerURL, client: client, refresh: o.Refresh, pace: pace, load: load, notices: notices,
		want: make(chan struct{}, 1)}
}

// sameHost rejects a redirect to another host or scheme, because another host could then choose the
// keys. It also rejects more than redirectsMax redirects.
func sameHost(next *http.Request, before []*http.Request) error {
	first := before[0].URL
	switch {
	case next.URL.Host != first.Host || next.URL.Scheme != first.Scheme:
		return fmt.Errorf("redirect to %s://%s is rejected: configure the URL that it leads to", next.URL.Scheme, cut(next.URL.Host))
	case len(before) > redirectsMax:
		return fmt.Errorf("more than %d redirects", redirectsMax)
	}
	return nil
}

// fetcher.wanted requests an early fetch. It never blocks.
func (f *fetcher) wanted() {
	select {
	case f.want <- struct{}{}:
	default:
	}
}

// fetcher.run fetches the key set periodically until ctx is done.
func (f *fetcher) run(ctx context.Context) {
	retry := f.pace.retryMin
	for ctx.Err() == nil {
		pause := f.refresh
		err := recoverPanic(func() error { return f.fetch(ctx) })
		var panicked *policyfile.PanicError
		switch {
		case err == nil:
			retry = f.pace.retryMin
			f.notices.logRecovery("the key set can be fetched again", "url", redact(f.url))
		case errors.As(err, &panicked):
			f.notices.panicked("loading a key set panicked, the last one stays in force", err, "url", redact(f.url))
			pause, retry = min(retry, f.refresh), min(2*retry, f.refresh)
		case ctx.Err() == nil:
			f.notices.logFailure("the key set cannot be fetched, the last one stays: "+cut(err.Error()), "url", redact(f.url))
			pause, retry = min(retry, f.refresh), min(2*retry, f.refresh)
		}
		if !f.wait(ctx, pause-rand.N(pause/jitterPart+1)) {
			return
		}
	}
}

// fetcher.wait waits until the next periodic fetch is due, or until an earlier fetch is requested
// and f.pace allows it. It returns false if ctx is done.
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

// fetcher.fetch fetches the key set once.
func (f *fetcher) fetch(ctx context.Context) error {
	from := f.url
	if f.issuer != "" {
		var err error
		if from, err = f.discover(ctx); err != nil {
			return fmt.Errorf("its discovery document: %w", err)
		}
	}
	data, err := f.get(ctx, from)
	if err != nil {
		return err
	}
	if err := f.load(data, from); err != nil {
		return fmt.Errorf("what it answers %w", err)
	}
	return nil
}

// fetcher.discover returns the URL of the issuer's key set. It reads the issuer's document at each
// fetch, because an issuer may move its keys.
func (f *fetcher) discover(ctx context.Context) (string, error) {
	data, err := f.get(ctx, strings.TrimSuffix(f.issuer, "/")+"/.well-known/openid-configuration")
	if err != nil {
		return "", err
	}
	var document struct {
		Issuer  string `json:"issuer"`
		JWKSURI string `json:"jwks_uri"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return "", fmt.Errorf("what it answers is not JSON: %s", cut(err.Error()))
	}
	if document.Issuer != f.issuer {
		return "", fmt.Errorf("it is the document of the issuer %q: configure that name if it is the one in tokens", cut(document.Issuer))
	}
	return document.JWKSURI, validateURL("jwks_uri", document.JWKSURI)
}

// fetcher.get fetches a document of at most setBytesMax bytes.
func (f *fetcher) get(ctx context.Context, from string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", fetcherNameSent)
	request.Header.Set("Accept", "application/jwk-set+json, application/json")
	response, err := f.client.Do(request)
	if err != nil {
		var wrapped *url.Error // the error repeats the URL, which is already in the log line
		if errors.As(err, &wrapped) {
			err = wrapped.Err
		}
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers %s", cut(response.Status))
	}
	data, err := io.ReadAll(io.LimitReader(response.Body, setBytesMax+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > setBytesMax:
		return nil, fmt.Errorf("it answers more than %d bytes", setBytesMax)
	}
	return data, nil
}
