// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// list is a field of a policy that has one value or several.
type list []string

func (l *list) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*l = list{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(l))
}

// list.first returns a text that matches the first pattern of the list, or the given default if the
// list is empty.
func (l list) first(otherwise string) string {
	if len(l) == 0 {
		return otherwise
	}
	return strings.NewReplacer("**", "a/b", "*", "acme").Replace(l[0])
}

// rulesReport is the part of a report about the rules in force that the tests read.
type rulesReport struct {
	Policies []struct {
		Name, Version, Place, File string
		Policy                     struct {
			Rules []struct {
				Name  string
				Match struct {
					Path, Method, Host list
					Header             map[string]list
				}
			}
		}
	}
}

// matchingRequests returns a request for each rule, which matches that rule.
func (reported *rulesReport) matchingRequests() (requests []request) {
	for _, p := range reported.Policies {
		for _, rule := range p.Policy.Rules {
			m := rule.Match
			r := request{m.Method.first("GET"), m.Path.first("/"), m.Host.first("localhost"), "192.0.2.99", nil}
			for name, values := range m.Header {
				r.fields = append(r.fields, name, values.first("x"))
			}
			requests = append(requests, r)
		}
	}
	return requests
}

// reference returns the text of all pages in docs/reference.
func reference(t *testing.T) string {
	t.Helper()
	pages, err := filepath.Glob("../docs/reference/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("docs/reference has no pages: %v", err)
	}
	var text strings.Builder
	for _, page := range pages {
		content, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(content)
	}
	return text.String()
}

// TestExplainOfTheReference compares penstock explain with Caddy for each example in
// docs/reference.
func TestExplainOfTheReference(t *testing.T) {
	t.Parallel()
	examples := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(reference(t), -1)
	if len(examples) < 15 {
		t.Fatalf("%d examples", len(examples))
	}
	folder, redis := t.TempDir(), redistest.Start(t)
	issuer := newIssuer(t, newEC(t, "k1"))
	examplesFolder(t, folder, issuer)
	file := newRenamedFile(t, filepath.Join(folder, "edited.yaml"))
	if err := os.WriteFile(filepath.Join(folder, "keys.json"), []byte(*issuer.set.Load()), 0o600); err != nil {
		t.Fatal(err)
	}
	file.edit("rules: [{name: first, limit: 1/1s}]\n")
	e := &explainedCaddy{startCaddy(t, "{\n"+explainedHead+"\tpenstock {\n\t\tregion eu\n\t\tname examples\n\t\tstore redis "+redis.URL()+"\n\t\tpolicy "+
		file.path+"\n\t}\n}\n:SITE {\n\tpenstock\n\trespond \"ok\"\n}\n", "TOKEN_SECRET="+tokenSecret), t, redis, false, ""}
	keys := 0
	for _, example := range examples {
		// Decisions from leased units leave no key in Redis.
		unleased := strings.ReplaceAll(example[1], "lease: auto", "lease: off")
		file.edit(strings.Replace(unleased, "https://id.shop.example/keys", "http://"+issuer.address+"/keys", 1))
		name := "examples"
		if strings.Contains("\n"+example[1], "\nname:") {
			name = ""
		}
		e.region = ""
		if strings.Contains("\n"+example[1], "\nregions:") {
			e.region = "eu"
		}
		var reported rulesReport
		penstock(t, "reload", "--json", "--admin", e.admin).read(t, &reported)
		for _, r := range reported.matchingRequests() {
			keys += e.compare(name, r, file.path)
		}
		if t.Failed() {
			t.Fatalf("the example was\n%s", example[1])
		}
	}
	if keys < len(examples) {
		t.Errorf("%d keys were compared in %d examples", keys, len(examples))
	}
	t.Logf("%d keys in %d examples", keys, len(examples))
}
