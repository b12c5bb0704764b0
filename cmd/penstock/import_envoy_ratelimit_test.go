// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"strings"
	"testing"
)

func TestImportEnvoyRatelimit(t *testing.T) {
	const plain = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 2}}]\n"
	lossy := file(t, "lossy.yaml", "domain: e\ndescriptors:\n- {key: k, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1}}\n")

	out, diagnostics, err := run(t, plain, "import-envoy-ratelimit", "--name", "edge", "--strict", "-")
	if err != nil || diagnostics != "" || !strings.HasPrefix(out, "name: edge\n") || !strings.Contains(out, "limit: 2/1m fixed_window\n") {
		t.Errorf("%v, %s\n%s", err, diagnostics, out)
	}
	policy := file(t, "policy.yaml", out)
	if out, _, err := run(t, "", "validate", "--strict", policy); err != nil {
		t.Errorf("%v: %s", err, out)
	}

	for _, strict := range []bool{false, true} {
		args := []string{"import-envoy-ratelimit", "-", lossy}
		if strict {
			args = append(args, "--strict")
		}
		out, diagnostics, err = run(t, plain, args...)
		if errors.Is(err, errSaid) != strict || !strings.Contains(out, "envoy.domain: d\n") || !strings.Contains(out, "envoy.domain: e\n") {
			t.Errorf("strict %t: %v\n%s", strict, err, out)
		}
		if want := "not carried over: lossy.yaml:3: descriptors[0].detailed_metric: "; !strings.HasPrefix(diagnostics, want) {
			t.Errorf("want %q:\n%s", want, diagnostics)
		}
	}

	out, diagnostics, err = run(t, "domain: d\ndescriptors: [{key: k, colour: red}]\n", "import-envoy-ratelimit", "-")
	if !errors.Is(err, errSaid) || out != "" || !strings.Contains(diagnostics, `error: -:2: descriptors[0]: "colour": is an unknown field`) {
		t.Errorf("%v, %s\n%s", err, diagnostics, out)
	}
	out, diagnostics, err = run(t, "domain: d\ndescriptors:\n- {key: a}\n- {key: \"b*\", rate_limit: {unit: day, requests_per_unit: 1}}\n", "import-envoy-ratelimit", "-")
	if want := "error: -:4: descriptors[1].key: \"b*\": is a pattern of keys, which policies do not have; write an entry for each key\n"; !errors.Is(err, errSaid) ||
		out != "" || diagnostics != want {
		t.Errorf("%v, %s\n%s", err, diagnostics, out)
	}
	out, _, err = run(t, "domain: d\ndescriptors: [{key: path, value: /api/*/action, rate_limit: {unit: day, requests_per_unit: 1}}]\n", "import-envoy-ratelimit", "--strict", "-")
	if err != nil || !strings.Contains(out, "path: \"/api/*/action\"\n") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{}, {file(t, "x", "") + ".missing"}} {
		if _, _, err := run(t, "", append([]string{"import-envoy-ratelimit"}, args...)...); err == nil || errors.Is(err, errSaid) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// TestImportEnvoyRatelimitForProxies: with --entry, the policy passes the checks of the fronts that
// see requests.
func TestImportEnvoyRatelimitForProxies(t *testing.T) {
	const config = "domain: d\ndescriptors:\n- key: generic_key\n  value: api\n  descriptors:\n" +
		"  - {key: remote_address, rate_limit: {unit: minute, requests_per_unit: 2}}\n" +
		"  - {key: api_key, rate_limit: {unit: minute, requests_per_unit: 5}}\n"
	args := []string{"import-envoy-ratelimit", "--name", "edge", "--strict", "--entry", "generic_key", "--entry", "remote_address=ip"}
	out, diagnostics, err := run(t, config, append(args, "--entry", "api_key=header:X-API-Key", "-")...)
	if err != nil || diagnostics != "" || !strings.Contains(out, "    per: [header:X-API-Key]\n") {
		t.Fatalf("%v, %s\n%s", err, diagnostics, out)
	}
	policy := file(t, "policy.yaml", out)
	for _, front := range []string{"caddy", "envoy"} {
		if out, _, err := run(t, "", "validate", "--front", front, policy); err != nil {
			t.Errorf("%s: %v: %s", front, err, out)
		}
	}
	out, diagnostics, err = run(t, config, append(args, "-")...)
	want := "error: -:7: descriptors[0].descriptors[1].key: \"api_key\": has no source, and a proxy sees no descriptors; " +
		"add --entry api_key=SOURCE, or --entry api_key if it always has its value\n"
	if !errors.Is(err, errSaid) || out != "" || diagnostics != want {
		t.Errorf("%v, %s\n%s", err, diagnostics, out)
	}
	if _, _, err := run(t, config, append(args, "--entry", "api_key=user", "-")...); err == nil || !strings.Contains(err.Error(), `"user" is not a source`) {
		t.Errorf("%v", err)
	}
}
