// SPDX-License-Identifier: Apache-2.0

package front

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/envoy/rlsimport"
)

const envoyRatelimit = `domain: shop
descriptors:
- {key: remote_address, rate_limit: {unit: month, requests_per_unit: 2}}
- {key: remote_address, value: 192.0.2.8, rate_limit: {unit: month, requests_per_unit: 0}}
- key: ":path"
  value: /api/*/items
  descriptors: [{key: api_key, rate_limit: {unit: month, requests_per_unit: 1}}]
`

// path is a host whose requests have one attribute, the path.
type path string

func (p path) Attribute(name string) (string, bool) { return string(p), name == "request.url_path" }

// TestServesImportedConfigurations tests imported configurations of envoyproxy/ratelimit. The
// module serves one whose keys are mapped to attributes of requests, and rejects one whose rules
// name descriptors.
func TestServesImportedConfigurations(t *testing.T) {
	files := []rlsimport.File{{Name: "config.yaml", Data: []byte(envoyRatelimit)}}
	sources, err := rlsimport.ParseSources([]string{"remote_address=ip", ":path=attr:request.url_path", "api_key=header:X-API-Key"})
	if err != nil {
		t.Fatal(err)
	}
	text, notes, err := rlsimport.Import("shop", files, sources)
	if err != nil || len(notes) > 0 {
		t.Fatal(err, notes)
	}
	f := openFront(t, string(text))
	for _, c := range []struct {
		peer, path, key string
		want            Verdict
		status          uint32
	}{
		{"192.0.2.8:1", "/", "", Respond, 429},
		{"192.0.2.7:1", "/", "", Continue, 0}, {"192.0.2.7:2", "/", "", Continue, 0}, {"192.0.2.7:3", "/", "", Respond, 429},
		{"192.0.2.1:1", "/api/v1/items", "a", Continue, 0}, {"192.0.2.1:1", "/api/v1/items", "a", Respond, 429},
		{"192.0.2.2:1", "/api/v1/items", "b", Continue, 0}, {"192.0.2.3:1", "/api/v1/other", "a", Continue, 0},
	} {
		s := f.NewStream()
		s.Headers = append(s.Headers, request(c.path)...)
		if c.key != "" {
			s.Headers = append(s.Headers, [2]string{"x-api-key", c.key})
		}
		if got := s.Decide(c.peer, path(c.path), newBell()); got != c.want || got == Respond && s.Response().Status != c.status {
			t.Errorf("%+v: verdict %d, status %d", c, got, s.Response().Status)
		}
		s.Release()
	}

	text, _, err = rlsimport.Import("shop", files, nil)
	if err != nil {
		t.Fatal(err)
	}
	settings, err := ReadSettings(text)
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewProcess(slog.New(slog.DiscardHandler)).Open(settings)
	if err == nil || !strings.Contains(err.Error(), "is an attribute that the module does not read") {
		t.Errorf("a policy for descriptors: %v", err)
	}
}
