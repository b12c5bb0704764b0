// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/redistest"
)

// asking is the HTTP client of tests with many simultaneous users. It keeps many idle connections.
var asking = &http.Client{
	Timeout:   30 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 128},
}

// process.ask sends a request with header fields. In the parameter fields, each name is followed by
// its value. Several goroutines may call ask at once. If there is no answer, the status is 0.
func (p *process) ask(ctx context.Context, method, path string, fields ...string) answer {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.address+path, nil)
	if err != nil {
		p.t.Error(err)
		return answer{}
	}
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	response, err := asking.Do(r)
	if err != nil {
		if ctx.Err() == nil {
			p.t.Error(err)
		}
		return answer{}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		p.t.Error(err)
		return answer{}
	}
	return answer{response.StatusCode, response.Header, string(body)}
}

// answer.number returns the value of a header field, or -1 if the value is not an integer.
func (a answer) number(field string) int64 {
	n, err := strconv.ParseInt(a.header.Get(field), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// process.metric returns the sum of the values of the series that begin with the given text.
func (p *process) metric(series string) float64 {
	p.t.Helper()
	return sumSeries(p.t, p.scrape(), series)
}

// sumSeries returns the sum of the values of the series in a text of metrics that begin with the
// given text.
func sumSeries(t testing.TB, metrics, series string) float64 {
	t.Helper()
	sum := 0.0
	for line := range strings.Lines(metrics) {
		if !strings.HasPrefix(line, series) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += n
	}
	return sum
}

// fleet starts n Caddys that count in one Redis.
func fleet(t testing.TB, n int, redis *redistest.Server, caddyfile string) []*process {
	t.Helper()
	var all []*process
	for range n {
		all = append(all, startCaddy(t, caddyfile, "PENSTOCK_REDIS="+redis.URL()))
	}
	return all
}

// shared is the beginning of a Caddyfile whose counters are in Redis. The deadline is long because
// these tests are not about outages, and the load runs on the same machine.
const shared = `{
	admin ADMIN
	penstock {
		name who
		store redis {env.PENSTOCK_REDIS} {
			timeout 5s
		}
		on_error deny
	}
}
`

// readUsed returns the used units of the counters whose keys match the pattern, by key.
func readUsed(t testing.TB, redis *redistest.Server, pattern string) map[string]int64 {
	t.Helper()
	keys, err := redis.Client().Keys(context.Background(), pattern).Result()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for _, key := range keys {
		if strings.HasPrefix(key, "rl1:~") {
			continue // a record of the fleet or of the directory
		}
		text, err := redis.Client().Get(context.Background(), key).Result()
		parts := strings.Fields(text) // AT USED AUX
		if err != nil || len(parts) != 3 {
			t.Fatalf("counter %s: %q, %v", key, text, err)
		}
		if all[key], err = strconv.ParseInt(parts[1], 10, 64); err != nil {
			t.Fatalf("counter %s: %v", key, err)
		}
	}
	return all
}

func sum(counters map[string]int64) (n int64) {
	for _, units := range counters {
		n += units
	}
	return n
}

// keysFile is a file of API keys that a test edits. The entries of the file are given as a map from
// the name of a key, as in keyOf, to the additional fields of that key.
type keysFile struct {
	t    testing.TB
	path string
}

func newKeysFile(t testing.TB, entries map[string]string) *keysFile {
	f := &keysFile{t, filepath.Join(t.TempDir(), "keys.toml")}
	f.edit(entries)
	return f
}

// keyOf returns the API key with the given name.
func keyOf(name string) string { return "pk_0123456789-abcdefghijklmnopqrstuvwxyz-" + name }

func (f *keysFile) edit(entries map[string]string) {
	f.t.Helper()
	var text strings.Builder
	for name, words := range entries {
		sum := sha256.Sum256([]byte(keyOf(name)))
		text.WriteString("[[keys]]\nid = \"" + name + "\"\nhash = \"sha256:" + hex.EncodeToString(sum[:]) + "\"\n" + words + "\n")
	}
	f.write(text.String())
}

// keysFile.write overwrites the file in place, as some editors do.
func (f *keysFile) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}
