// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"bytes"
	encoding "encoding/base64"
	"encoding/binary"
	"slices"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/compact"
	"github.com/penstock/penstock/core/slim"
	"github.com/penstock/penstock/internal/envoy/wire"
)

// laterPolicies returns compact policies that this release cannot read, although their checksums
// are valid. They have the head of a later or of an earlier release, an additional field, or a
// missing field.
func laterPolicies(t *testing.T) map[string][]byte {
	t.Helper()
	p := shopPolicy(t, "1000000/1m")
	known := compact.AppendPolicy(nil, &p, "v2")
	body := known[:len(known)-8]
	sealed := func(body []byte) []byte { return binary.BigEndian.AppendUint64(bytes.Clone(body), slim.FNV(body)) }
	return map[string][]byte{
		"later head":   sealed(bytes.Replace(body, []byte("policy 4\n"), []byte("policy 8\n"), 1)),
		"two digits":   sealed(bytes.Replace(body, []byte("policy 4\n"), []byte("policy 10\n"), 1)),
		"earlier head": sealed(bytes.Replace(body, []byte("policy 4\n"), []byte("policy 3\n"), 1)),
		"field more":   sealed(append(bytes.Clone(body), 1)),
		"field less":   sealed(body[:len(body)-1]),
		"empty":        {},
	}
}

// TestAPolicyOfALaterRelease: a filter that cannot read the policy of its bridge keeps its previous
// policy. If no bridge knows the filter's policy any more, requests are answered 503. No request is
// let through uncounted.
func TestAPolicyOfALaterRelease(t *testing.T) {
	const requests = 20
	for name, coded := range laterPolicies(t) {
		t.Run(name, func(t *testing.T) {
			e := newEnvoy(t)
			f := withPolicy(t, e, shopPolicy(t, "10/1m"))
			for round := range uint32(requests) {
				f.NewStream(round + 1).RequestHeaders(get("/api/x"))
				f.Flush()
				e.serveLater(f, coded, 40)
			}
			e.serveLater(f, coded, 1_000)
			counts := e.count()
			if f.policy.version != "v1" || counts["policy_refused"] == 0 || counts["panic"] > 0 {
				t.Errorf("version %q, %v", f.policy.version, counts)
			}
			if len(e.resumed) > 0 || len(e.responses) != requests {
				t.Errorf("%d requests are let through, %d answered, want %d: %v", len(e.resumed), len(e.responses), requests, counts)
			}
			for _, r := range e.responses {
				if r.Status != 503 {
					t.Errorf("answered %d", r.Status)
				}
			}
		})
	}
}

// serveLater answers calls as a bridge that has only the given policy would do, and lets time pass
// while there is no call.
func (e *fakeEnvoy) serveLater(f *Filter, coded []byte, steps int) {
	for range steps {
		switch {
		case len(e.calls) == 0:
			e.now += tickFast
			f.Tick()
			continue
		case e.calls[0].Path == policyPath:
			c := e.calls[0]
			e.calls = e.calls[1:]
			c.answer(Reply{Status: 200, ETag: `"v2"`, Body: coded})
		default:
			c, _, items := e.check()
			c.answer(replyWith(slices.Repeat([]wire.Answer{{Status: wire.StatusUnknown}}, len(items))...))
		}
		f.Flush()
	}
}

// TestAPolicyOfALaterReleaseInTheConfiguration: a filter does not start with a policy that it
// cannot read, so Envoy keeps its previous configuration.
func TestAPolicyOfALaterReleaseInTheConfiguration(t *testing.T) {
	for name, coded := range laterPolicies(t) {
		if len(coded) == 0 {
			continue // no policy is configured
		}
		f, err := New(newEnvoy(t), []byte("policy: "+encoding.StdEncoding.EncodeToString(coded)))
		if err == nil {
			err = f.Start()
		}
		if err == nil || !strings.Contains(err.Error(), "policy") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}
