// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"net/http"
	"time"
)

// Until its first accepted call, a connection costs the server work for callers that may have no
// token. The bounds are above what health checks need, which call without a token.
const (
	// An address may make tokenlessBurst requests at once on new connections, and then one in
	// tokenlessEvery. The answer to a further request is delayed by tokenlessDelay.
	tokenlessEvery = 10 * time.Millisecond
	tokenlessBurst = 100
	tokenlessDelay = 500 * time.Millisecond
	// A new connection over HTTP/2 may make streamsBurst requests at once, and then one in
	// streamsEvery. The connection is closed after a further request, because its streams are cheap
	// for a client that waits for no answer.
	streamsEvery = 100 * time.Millisecond
	streamsBurst = 20
)

// allowance is the instant at which all that was spent is available again.
type allowance time.Time

// allowance.spend permits one request, or returns false. Up to burst requests are permitted at
// once. After that, one further request is permitted in each interval named every.
func (a *allowance) spend(now time.Time, every time.Duration, burst int) bool {
	full := time.Time(*a)
	if full.Before(now) {
		full = now
	}
	if full.Sub(now) > every*time.Duration(burst-1) {
		return false
	}
	*a = allowance(full.Add(every))
	return true
}

// Restrain limits requests that do not establish their connection, such as those without a valid
// token. Otherwise a client without a token could keep the server so busy with such requests that
// calls of others are late. Over HTTP/1, each of them is answered, but if an address makes many,
// the answer comes later. Over HTTP/2, the connection is closed. Requests on established
// connections, and requests at a listener without a [Limit], are not limited.
func Restrain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		v, _ := r.Context().Value(visiting{}).(*Conn)
		switch {
		case v == nil || v.maySpend(r.ProtoMajor):
		case r.ProtoMajor > 1:
			_ = v.Close()
		default: // net/http sends the answer when the handler returns, unless the answer is long
			timer := time.NewTimer(tokenlessDelay)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-r.Context().Done():
			}
		}
	})
}

// maySpend reports whether the connection is established, or may make the request that it has made.
func (v *Conn) maySpend(protoMajor int) bool {
	if v.established.Load() {
		return true
	}
	now := time.Now()
	v.limit.mu.Lock()
	defer v.limit.mu.Unlock()
	switch from := v.limit.origins[v.from]; {
	case v.established.Load() || v.gone:
		return true
	case protoMajor > 1:
		return v.streams.spend(now, streamsEvery, streamsBurst)
	case !v.from.IsValid(): // over a Unix socket
		return true
	default:
		return from.tokenless.spend(now, tokenlessEvery, tokenlessBurst)
	}
}
