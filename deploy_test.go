// SPDX-License-Identifier: Apache-2.0

package penstock_test

import (
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestAlertsHaveARunbook checks that each alert has a summary, a link to its entry in the runbook,
// and a unit test. The test also checks that every entry of the runbook belongs to an alert.
func TestAlertsHaveARunbook(t *testing.T) {
	const page, runbook = "https://github.com/penstock/penstock/blob/main/", "docs/guides/runbook.md"
	text, err := os.ReadFile("deploy/prometheus/penstock.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert               string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	tests, entries, linked := readText(t, "deploy/prometheus/penstock.rules.test.yaml"), anchors(readText(t, runbook)), map[string]bool{"runbook": true}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			path, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
			if path != page+runbook || !entries[anchor] || !strings.Contains(anchor, strings.ToLower(rule.Alert)) {
				t.Errorf("%s links to %q, which is no entry of the runbook", rule.Alert, rule.Annotations["runbook_url"])
			}
			linked[anchor] = true
			if rule.Annotations["summary"] == "" || rule.Labels["severity"] != "critical" && rule.Labels["severity"] != "warning" {
				t.Errorf("%s has the summary %q and the severity %q", rule.Alert, rule.Annotations["summary"], rule.Labels["severity"])
			}
			if !strings.Contains(tests, rule.Alert) {
				t.Errorf("%s has no unit test", rule.Alert)
			}
		}
	}
	for entry := range entries {
		if !linked[entry] {
			t.Errorf("the runbook has an entry #%s, and no alert links to it", entry)
		}
	}
}
