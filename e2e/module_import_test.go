// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// recorded is the folder with recorded answers of envoyproxy/ratelimit. They were recorded with
// example configurations of that project.
const recorded = "../internal/envoy/rlsimport/testdata/service"

// importedSites lists recorded configurations. For each of them, a sequence was recorded whose
// requests have all descriptors of the configuration. The field entries maps the keys of the
// descriptors to parts of requests.
var importedSites = []struct {
	domain, sequence string
	requests         int
	entries          []string
}{
	{"edge_proxy_per_ip", "3", 14, []string{"remote_address=ip"}},
	{"internal", "5", 107, []string{"ldap=header:X-Ldap", "azure=header:X-Azure"}},
	{"example6", "6", 35, []string{"service=host", "user=header:X-User"}},
	{"example7", "7", 12, []string{"key_1=header:X-Key-1", "key_2=header:X-Key-2", "user=header:X-User"}},
	{"example7", "7: one replaces the other", 17, []string{"key_1=header:X-Key-1", "key_2=header:X-Key-2", "user=header:X-User"}},
	{"example8", "8", 34, []string{"key1=header:X-Key"}},
	{"example9", "9", 25, []string{"key1=header:X-Key"}},
	{"example10", "10", 64, []string{"route=header:X-Route", "http_method=method", "subject_id=header:X-Subject"}},
}

// recordedRequest is a request to the service, from a recording.
type recordedRequest struct {
	domain, text string
	entries      map[string]string
	hits         int
	admitted     bool // by the service
}

var (
	recordedUnit  = regexp.MustCompile(`unit: (second|minute|hour|day)`)
	recordedEntry = regexp.MustCompile(`([a-z0-9_]+)=([^\s\]]+)`)
	recordedHits  = regexp.MustCompile(`\] hits ([0-9]+)$`)
)

// readRecorded returns the requests of a recorded sequence that precede its first wait.
func readRecorded(t *testing.T, name string) (all []recordedRequest) {
	t.Helper()
	_, text, found := strings.Cut(readFile(t, filepath.Join(recorded, "readme.txt")), "\n== "+name+"\n")
	if !found {
		t.Fatalf("no sequence %q is recorded", name)
	}
	text, _, _ = strings.Cut(text, "\n== ")
	text, _, _ = strings.Cut(text, "\nwait ")
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if answer, isAnswer := strings.CutPrefix(line, "  there "); isAnswer {
			all[len(all)-1].admitted = strings.HasPrefix(answer, "OK:")
			continue
		}
		domain, descriptors, isRequest := strings.Cut(line, " [")
		if !isRequest || strings.HasPrefix(line, " ") {
			continue
		}
		r := recordedRequest{domain: domain, text: line, entries: map[string]string{}, hits: 1}
		for _, entry := range recordedEntry.FindAllStringSubmatch(descriptors, -1) {
			r.entries[entry[1]] = entry[2]
		}
		if hits := recordedHits.FindStringSubmatch(line); hits != nil {
			r.hits, _ = strconv.Atoi(hits[1])
		}
		all = append(all, r)
	}
	return all
}

// recordedRequest.request returns an HTTP request with the values of the recorded descriptors.
func (r *recordedRequest) request(t *testing.T, address string, entries []string) *http.Request {
	t.Helper()
	request, err := http.NewRequest("GET", "http://"+address+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		key, from, _ := strings.Cut(entry, "=")
		value, given := r.entries[key]
		kind, header, _ := strings.Cut(from, ":")
		switch {
		case !given:
		case kind == "ip":
			request.Header.Set("X-Forwarded-For", value)
		case kind == "host":
			request.Host = value
		case kind == "method":
			request.Method = value
		default:
			request.Header.Set(header, value)
		}
	}
	return request
}

// importPolicy returns the policy that "penstock import-envoy-ratelimit" writes for a recorded
// configuration.
func importPolicy(t *testing.T, name, domain string, entries []string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), domain+".yaml")
	text := recordedUnit.ReplaceAllString(readFile(t, filepath.Join(recorded, "readme", domain+".yaml")), "unit: month")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"import-envoy-ratelimit", "--name", name}
	for _, entry := range entries {
		args = append(args, "--entry", entry)
	}
	got := penstock(t, append(args, file)...)
	if got.status != 0 {
		t.Fatalf("%s: the import ends with %d: %s", domain, got.status, got.diagnostics)
	}
	return got.out
}

// TestModuleServesImportedConfigurations tests that the module decides like envoyproxy/ratelimit.
// The module has imported configurations of that service, and receives requests for which the
// answers of the service are recorded. Every window is a month long, so that no answer depends on
// the time.
func TestModuleServesImportedConfigurations(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t)
	var sites []*site
	for i, c := range importedSites {
		policy := importPolicy(t, "sequence-"+strconv.Itoa(i), c.domain, c.entries)
		sites = append(sites, &site{filter: moduleFilter(policy + "on_error: deny\n" + inRedis(redis)),
			manager: "use_remote_address: true, xff_num_trusted_hops: 1"})
	}
	startEnvoyIn(t, []string{modulePath(t)}, "", nil, sites...)
	for i, c := range importedSites {
		asked := 0
		for _, r := range readRecorded(t, c.sequence) {
			if r.domain != c.domain {
				continue
			}
			for range r.hits {
				asked++
				response, err := http.DefaultClient.Do(r.request(t, sites[i].address, c.entries))
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
				want := map[bool]int{true: http.StatusOK, false: http.StatusTooManyRequests}[r.admitted]
				if response.StatusCode != want {
					t.Errorf("%s: request %d, %s: status %d, want %d", c.domain, asked, r.text, response.StatusCode, want)
				}
			}
		}
		if asked != c.requests {
			t.Errorf("%s: %d requests were asked, want %d", c.domain, asked, c.requests)
		}
	}
}
