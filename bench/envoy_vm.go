// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/internal/policyfile"
)

// vmParts holds the parts of the filter's work for a request that needs the bridge. Each has its
// name in bench/vm, a description, and how often it happens for one request.
var vmParts = []struct {
	name  string
	what  string
	often float64
	own   bool // the filter's own work, not a call into Envoy
}{
	{"plan", "takes the request in and plans it", 1, true},
	{"ask", "writes the question", 1, true},
	{"decide", "reads the answer, decides, writes the fields", 1, true},
	{"tell", "merges the fields with the response's", 1, true},
	{"request-headers", "host: all headers of the request", 1, false},
	{"response-headers", "host: all headers of the response", 1, false},
	{"replace", "host: sets a field", 5, false},
	{"property", "host: the address of the peer", 1, false},
	{"clock", "host: the time", 1, false},
	{"count", "host: counts", 1, false},
	{"context", "host: goes over to the request that is resumed", 1, false},
	{"queue", "host: wakes the worker, of sixteen requests one", 1.0 / 16, false},
}

// hundredRules returns three rules that match / and 97 that do not.
func hundredRules() string {
	text := threeEnvoyRules
	for i := range 97 {
		text += fmt.Sprintf("  - {name: other-%d, match: {path: /other/%d/*, method: [GET]}, limit: 1000/1m}\n", i, i)
	}
	// Without these matches, the three rules would match every path.
	return strings.NewReplacer("{name: one,", "{name: one, match: {path: /},", "{name: two,", "{name: two, match: {path: /},", "path: /*", "path: /").Replace(text)
}

// compactOf returns a policy in the compact form that the filter's configuration contains.
func compactOf(rules string) (string, error) {
	document, err := policyfile.Decode("policy.yaml", policyfile.YAML, fmt.Appendf(nil, benchPolicy, rules))
	if err != nil {
		return "", err
	}
	source, err := document.Policy()
	if err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(compact.AppendPolicy(nil, &source, document.Version())), nil
}

// envoyVM measures each part of the filter's work in Envoy's virtual machine under 100 rules. It
// also measures the cost of calling a filter that does nothing.
func envoyVM(o options, s *section) error {
	b, err := newBench(o)
	if err != nil {
		return err
	}
	defer b.close()
	compact, err := compactOf(hundredRules())
	if err != nil {
		return err
	}
	parts, err := b.envoy("parts", envoySetting{route: routeDirect, filter: filterWasm(vmWasm, compact)})
	if err != nil {
		return err
	}
	if err := parts.processes[0].until(10*time.Second, "answers", func() bool { return answers(parts.url) }); err != nil {
		return err
	}
	seen := map[string][]float64{}
	for range 20 * o.rounds {
		if err := readParts(parts.url, seen); err != nil {
			return err
		}
	}
	calls, err := b.callsOfNothing()
	if err != nil {
		return err
	}
	type row struct {
		what   string
		micros float64
	}
	rows := []row{{"Envoy calls into a filter that does nothing", calls}}
	sum := calls
	for _, p := range vmParts {
		micros := median(seen["bench-"+p.name]) / 1e3 * p.often
		rows, sum = append(rows, row{p.what, micros}), sum+micros
	}
	slices.SortFunc(rows, func(a, b row) int { return int(1e3 * (b.micros - a.micros)) })
	s.table("100 rules, of which three match", "µs/request", "")
	for _, r := range rows {
		s.row(r.what, fmt.Sprintf("%.2f", r.micros), fmt.Sprintf("%.0f %%", 100*r.micros/sum))
	}
	s.say("| together | %.1f | |\n\nA request that no rule is for: %.2f µs of the filter's own.\n", sum, median(seen["bench-unmatched"])/1e3)
	return nil
}

// readParts sends a request, and adds the times in the answer of bench/vm to those already seen.
func readParts(url string, seen map[string][]float64) error {
	response, err := http.Get(url)
	if err != nil {
		return err
	}
	response.Body.Close()
	for name, values := range response.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "bench-") {
			nanos, err := strconv.ParseFloat(values[0], 64)
			if err != nil {
				return err
			}
			seen[name] = append(seen[name], nanos)
		}
	}
	if len(seen) == 0 {
		return fmt.Errorf("there are no figures in %v", response.Header)
	}
	return nil
}

// callsOfNothing returns how many microseconds a filter adds to a request if it does nothing.
func (b *bench) callsOfNothing() (float64, error) {
	none, err := b.envoy("no filter", envoySetting{route: routeDirect})
	if err != nil {
		return 0, err
	}
	nothing, err := b.envoy("a filter that does nothing", envoySetting{route: routeDirect, filter: filterWasm(vmWasm, "nothing")})
	if err != nil {
		return 0, err
	}
	if err := interleaved(b.options, []*system{none, nothing}, callers); err != nil {
		return 0, err
	}
	return of(nothing.seen, totalCPU) - of(none.seen, totalCPU), nil
}
