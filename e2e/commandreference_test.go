// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/redistest"
)

// list is a word of a policy that holds one value or several.
type list []string

func (l *list) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*l = list{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(l))
}

// first is what the first pattern of a list matches, or what there is without one.
func (l list) first(without string) string {
	if len(l) == 0 {
		return without
	}
	return strings.NewReplacer("**", "a/b", "*", "acme").Replace(l[0])
}

// rulesTold is what a test reads of the rules in force.
type rulesTold struct {
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

// meeting are requests for what the rules match.
func (told *rulesTold) meeting() (requests []request) {
	for _, p := range told.Policies {
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

// TestExplainOfTheReference edits a policy file to be each example of docs/policy.md, one after the other.
func TestExplainOfTheReference(t *testing.T) {
	text, err := os.ReadFile("../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	if len(examples) < 15 {
		t.Fatalf("%d examples", len(examples))
	}
	folder, redis := t.TempDir(), redistest.Start(t)
	issuer := newIssuer(t, newEC(t, "k1"))
	examplesFolder(t, folder, issuer)
	file := renamed(t, filepath.Join(folder, "edited.yaml"))
	if err := os.WriteFile(filepath.Join(folder, "keys.json"), []byte(*issuer.set.Load()), 0o600); err != nil {
		t.Fatal(err)
	}
	file.edit("rules: [{name: first, limit: 1/1s}]\n")
	e := &explained{startCaddy(t, "{\n"+explainedHead+"\tpenstock {\n\t\tname examples\n\t\tstore redis "+redis.URL()+"\n\t\tpolicy "+
		file.path+"\n\t}\n}\n:SITE {\n\tpenstock\n\trespond \"ok\"\n}\n", "TOKEN_SECRET="+tokenSecret), t, redis, false}
	keys := 0
	for _, example := range examples {
		// What is decided from units in hand leaves no key.
		unleased := strings.ReplaceAll(example[1], "lease: auto", "lease: off")
		file.edit(strings.Replace(unleased, "https://id.shop.example/keys", "http://"+issuer.address+"/keys", 1))
		name := "examples"
		if strings.Contains("\n"+example[1], "\nname:") {
			name = ""
		}
		var told rulesTold
		penstock(t, "reload", "--admin", e.admin).read(t, &told)
		for _, r := range told.meeting() {
			keys += e.agrees(name, r, file.path)
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
