// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"bytes"
	base64lib "encoding/base64"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock/penstock/core/counter"
)

// TestParseConfig parses the same settings as lines, and as JSON from Istio's pluginConfig.
func TestParseConfig(t *testing.T) {
	standard := Config{Cluster: "penstock", Host: "penstock", Deadline: 50 * counter.Millisecond, Poll: counter.Second, Appended: true}
	all := Config{Cluster: "outbound|8441||penstock.default.svc.cluster.local", Host: "penstock.default", Token: "0123456789abcdef",
		Deadline: 100 * counter.Millisecond, Deny: true, Policy: []byte("p\xff"), Poll: 2 * counter.Second}
	for name, c := range map[string]struct {
		text string
		want Config
	}{
		"nothing":        {"", standard},
		"blank lines":    {" \n\n# a comment\n", standard},
		"an empty":       {"{}", standard},
		"an empty, wide": {"{ }\n", standard},
		"lines": {"cluster: outbound|8441||penstock.default.svc.cluster.local\nhost: penstock.default\n" +
			"token: 0123456789abcdef\r\n  deadline:   100ms\non_error: \"deny\"\nxff_appended: false\npoll: 2s\npolicy: cP8=\n", all},
		"an object": {`{"cluster":"outbound|8441||penstock.default.svc.cluster.local","deadline":"100ms","host":"penstock.default",` +
			`"on_error":"deny","policy":"cP8=","poll":"2s","token":"0123456789abcdef","xff_appended":false}`, all},
		"an object, wide": {"{\n  \"cluster\": \"outbound|8441||penstock.default.svc.cluster.local\",\n  \"deadline\" : \"100ms\",\n" +
			"\t\"host\": \"penstock.default\", \"on_error\":\"deny\", \"policy\":\"cP8=\", \"poll\":\"2s\",\n" +
			"  \"token\": \"0123456789abcdef\", \"xff_appended\": false\n}\n", all},
	} {
		got, err := ParseConfig([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestParseConfigRejects: errors name the mistake and the remedy.
func TestParseConfigRejects(t *testing.T) {
	for text, want := range map[string]string{
		"cluster penstock":                    "line 1 is not \"name: value\"",
		"\x15\n\acluster\x12\n\x1a\bpenstock": "the configuration is no text; write it as a google.protobuf.StringValue",
		"\ncluster: a\nbridge: b":             `"bridge" is unknown; write cluster`,
		"cluster: a\ncluster: b":              "cluster is listed twice; leave one out",
		"cluster:":                            "cluster is empty; leave it out",
		"deadline: 50":                        `deadline: "50" is no duration`,
		"deadline: 0ms":                       `deadline: "0ms" is no duration`,
		"deadline: 11s":                       `deadline: "11s" is no duration`,
		"deadline: 50ms # a comment":          `deadline: "50ms # a comment" is no duration`,
		"poll: 10ms":                          `poll: "10ms" is no duration`,
		"on_error: local":                     `on_error: "local" is neither allow nor deny`,
		"xff_appended: yes":                   `xff_appended: "yes" is neither false nor true`,
		"policy: %%%":                         "policy is not in base64",
		`{"cluster": {"name": "a"}}`:          "not a flat object",
		`{"cluster": ["a"]}`:                  "not a flat object",
		`{"cluster": "a", "token": null}`:     "without null",
		`{"cluster": "a",}`:                   "not a flat object",
		`{"cluster" "a"}`:                     "not a flat object",
		`{"cluster": "a"`:                     "not a flat object",
		`{"cluster": "a"} {"cluster":"b"`:     "not a flat object",
		`{"clu\u0073ter": "a"}`:               "not a flat object",
		`{"deadline": 50}`:                    `deadline: "50" is no duration`,
		`{"cluster":"a","cluster":"b"}`:       "cluster is listed twice",
		// a second mistake is reported in addition to the first
		"deadline: 0\npoll: 0": `poll: "0" is no duration`,
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParseConfig: no text causes a panic, and accepted values are within their bounds.
func FuzzParseConfig(f *testing.F) {
	for _, text := range []string{"cluster: a\ndeadline: 1s", `{"cluster":"a","poll":"1s"}`, "{", `{"`, `{"a":`, "policy: cP8="} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err == nil && (c.Cluster == "" || c.Host == "" || c.Deadline < deadlineMin || c.Deadline > deadlineMax || c.Poll < pollMin ||
			c.Poll > pollMax) {
			t.Errorf("%q: %+v", data, c)
		}
	})
}

// TestBase64: text that the library encodes is decoded, and text that the library rejects is
// rejected.
func TestBase64(t *testing.T) {
	for n := range 300 {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i*7 + n)
		}
		text := base64lib.StdEncoding.EncodeToString(data)
		if got, ok := base64(text); !ok || !bytes.Equal(got, data) {
			t.Fatalf("%q: %q %v", text, got, ok)
		}
	}
	for _, text := range []string{"A", "AA", "AAA", "A===", "====", "AA=A", "AAA-", "AAAA=", "A AA", "AAA\n"} {
		if got, ok := base64(text); ok {
			t.Errorf("%q: %q", text, got)
		}
	}
}
