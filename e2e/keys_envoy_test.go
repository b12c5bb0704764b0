// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
)

// keyedEnvoyPolicy is a policy that takes API keys from the directory. A client of the tier free
// has no limit, so the filter itself decides the client's requests.
const keyedEnvoyPolicy = `name: shop
identify: [{api_key: {keys: directory, on_invalid: deny}}]
rules:
  - {name: api, match: {path: /api}, limit: 1000/31d fixed_window, tiers: {gold: 100000/31d fixed_window, free: unlimited}}
`

// TestKeysBehindEnvoy tests keys behind Envoy, with the filter and with the rate limit service. A
// new key is valid, and its client and tier apply. After it is revoked, it is denied.
func TestKeysBehindEnvoy(t *testing.T) {
	t.Parallel()
	filtered, served := newDirectedEnvoy(t, false, "x-api-key", http.StatusUnauthorized), newDirectedEnvoy(t, true, "x-api-key", 0)
	useEnvoy(t, nil, filtered.site, served.site)
	for name, d := range map[string]*directedEnvoy{"filter": filtered, "service": served} {
		warm := d.key(t, "create", "--client", "api_key:warm").Key
		d.start(t, keyedEnvoyPolicy, warm)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d.keysHold(t)
		})
	}
}

// key runs "penstock key", which changes keys in the directory.
func (d *directedEnvoy) key(t *testing.T, args ...string) (shown keysMade) {
	t.Helper()
	args = append(append([]string{"key"}, args...), "--json", "--reason", "a test", "--redis", d.redis.URL())
	penstock(t, args...).read(t, &shown)
	return shown
}

// awaitLimit waits until a request with the key is admitted and the response shows the given limit.
func (d *directedEnvoy) awaitLimit(t *testing.T, what, key, limit string) {
	t.Helper()
	eventually.Until(t, patience, what, func() bool {
		a, err := d.askOnNewConnection("/api", key)
		return err == nil && a.status == http.StatusOK && a.header.Get("X-RateLimit-Limit") == limit
	})
}

// keysHold creates, rotates, disables and revokes keys, and checks each time whether they are
// valid. At the end it kills Redis.
func (d *directedEnvoy) keysHold(t *testing.T) {
	d.awaitStatus(t, "a key that does not exist is denied", "/api", keyOf("nobody"), d.denied)
	gold := d.key(t, "create", "--client", "api_key:acme", "--tier", "gold").Key
	d.awaitStatus(t, "a new key is valid", "/api", gold, 200)
	d.awaitLimit(t, "it has the limit of its tier", gold, "100000")
	d.edit(t, "set-limit", "api_key:acme", "api", "70000/31d fixed_window")
	d.awaitLimit(t, "it has the limit of its client", gold, "70000")

	next := d.key(t, "rotate", "acme", "--overlap", "24h").Key
	d.awaitStatus(t, "the next key is valid", "/api", next, 200)
	d.awaitStatus(t, "the key before is valid during the overlap", "/api", gold, 200)
	last := d.key(t, "rotate", "acme", "--overlap", "0s").Key
	d.awaitStatus(t, "a key without an overlap has ended", "/api", next, d.denied)
	d.awaitStatus(t, "so has the first one", "/api", gold, d.denied)
	d.awaitStatus(t, "the last one is valid", "/api", last, 200)

	free := d.key(t, "create", "--client", "user:ann", "--tier", "free").Key
	d.awaitStatus(t, "a key without a limit is valid", "/api", free, 200)
	d.key(t, "disable", "ann")
	d.awaitStatus(t, "a key that is switched off is denied", "/api", free, d.denied)
	d.key(t, "enable", "ann")
	d.awaitStatus(t, "a key that is switched on is valid", "/api", free, 200)
	d.key(t, "revoke", "ann")
	d.awaitStatus(t, "a revoked key is denied", "/api", free, d.denied)

	unseen := d.key(t, "create", "--client", "api_key:unseen").Key
	d.redis.Kill()
	d.awaitStatus(t, "a key that was read is valid without Redis", "/api", last, 200)
	d.awaitStatus(t, "a revoked key is denied without Redis", "/api", free, d.denied)
	d.awaitStatus(t, "a key that was not read is denied without Redis", "/api", unseen, d.denied)
	if log := d.bridge.log.String() + d.metric(t, "penstock"); strings.Contains(log, free) || strings.Contains(log, last) {
		t.Errorf("a key is in %s", log)
	}
}
