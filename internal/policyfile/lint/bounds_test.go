// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
	"github.com/penstock/penstock/internal/test/racescale"
)

// TestTenThousandRulesFit: a policy of ten thousand ordinary rules is within the size limit in
// every format.
func TestTenThousandRulesFit(t *testing.T) {
	for format, text := range tenThousandRules() {
		if len(text) > syntax.SizeMax {
			t.Errorf("%s: %d bytes, more than %d", [...]string{"yaml", "toml", "json"}[format], len(text), syntax.SizeMax)
		}
		d, err := policyfile.Decode("big", policyfile.Format(format), []byte(text))
		if err != nil {
			t.Fatalf("%s: %v", [...]string{"yaml", "toml", "json"}[format], err)
		}
		if n := racescale.Fewer(10_000); len(d.Rules) != n || d.Rules[n-1].Limit[1] != "5000/1d" {
			t.Errorf("%s: %d rules, want %d", [...]string{"yaml", "toml", "json"}[format], len(d.Rules), n)
		}
	}
}

func tenThousandRules() [3]string {
	var y, o, j strings.Builder
	y.WriteString("rules:\n")
	j.WriteString(`{"rules": [`)
	for i := range racescale.Fewer(10_000) {
		fmt.Fprintf(&y, "  - name: rule-%d\n    match:\n      path: /api/v1/service-%d/*\n      method: [GET, POST]\n"+
			"    per: [client, host]\n    limit: [100/1m, 5000/1d]\n    group: service\n    priority: %d\n", i, i, i)
		fmt.Fprintf(&o, "[[rules]]\nname = \"rule-%d\"\nmatch.path = \"/api/v1/service-%d/*\"\nmatch.method = [\"GET\", \"POST\"]\n"+
			"per = [\"client\", \"host\"]\nlimit = [\"100/1m\", \"5000/1d\"]\ngroup = \"service\"\npriority = %d\n\n", i, i, i)
		if i > 0 {
			j.WriteString(",")
		}
		fmt.Fprintf(&j, "\n\t\t{\n\t\t\t\"name\": \"rule-%d\",\n\t\t\t\"match\": {\"path\": \"/api/v1/service-%d/*\", \"method\": [\"GET\", \"POST\"]},\n"+
			"\t\t\t\"per\": [\"client\", \"host\"],\n\t\t\t\"limit\": [\"100/1m\", \"5000/1d\"],\n\t\t\t\"group\": \"service\",\n\t\t\t\"priority\": %d\n\t\t}", i, i, i)
	}
	j.WriteString("\n]}")
	return [3]string{y.String(), o.String(), j.String()}
}

// TestAdviceOnTenThousandRulesIsSoon: advice is computed at each load of a policy, so computing it
// must not take longer than the rest of the load. It takes about 0.1 s of processor time.
func TestAdviceOnTenThousandRulesIsSoon(t *testing.T) {
	var text strings.Builder
	text.WriteString("rules:\n")
	for i := range racescale.Fewer(10_000) {
		fmt.Fprintf(&text, "  - {name: rule-%d, match: {path: /rule/%d/*}, limit: 100/1m}\n", i, i)
	}
	d, err := policyfile.Decode("big", policyfile.YAML, []byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	Advise(d)
	const most = 20 * time.Second // the bound is generous, because the machine might be busy
	if took := time.Since(begun); took > most {
		t.Errorf("advice took %v", took)
	}
}

// TestManyRulesInBracketsFit: flow collections that span several lines, with keys in every item,
// are not rejected as a block that is too wide.
func TestManyRulesInBracketsFit(t *testing.T) {
	for _, format := range []string{"  {\n    name: a%d,\n    limit: 1/1m,\n  },\n", "  {name: a%d,\n   limit: 1/1m},\n",
		"\t{\n\t\t\"name\": \"a%d\",\n\t\t\"limit\": \"1/1m\"\n\t},\n"} {
		text := "rules: [\n" + repeatFormat(format, 3000) + "]\n"
		if d, err := policyfile.Decode("p.yaml", policyfile.YAML, []byte(text)); err != nil || len(d.Rules) != 3000 {
			t.Errorf("%q: error %.200v", format, err)
		}
	}
}

// TestHostileDocuments: a hostile document is rejected in about the time that it takes to read it.
func TestHostileDocuments(t *testing.T) {
	many := 200_000
	for name, hostile := range map[string]struct {
		format policyfile.Format
		text   string
		want   string
	}{
		"yaml flow":      {policyfile.YAML, "rules: " + strings.Repeat("[", many), "nested deeper than 32"},
		"yaml braces":    {policyfile.YAML, strings.Repeat("{a: ", many), "nested deeper than 32"},
		"yaml dashes":    {policyfile.YAML, strings.Repeat("- ", many), "nested deeper than 32"},
		"yaml questions": {policyfile.YAML, strings.Repeat("? ", many), "nested deeper than 32"},
		"yaml closed":    {policyfile.YAML, "rules: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "nested deeper than 32"},
		"yaml bomb":      {policyfile.YAML, "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", "a policy may have none"},
		"json arrays":    {policyfile.JSON, strings.Repeat("[", many), "json"},
		"json closed":    {policyfile.JSON, strings.Repeat("[", 5000) + strings.Repeat("]", 5000), "nested deeper than 32"},
		"json objects":   {policyfile.JSON, strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000), "nested deeper than 32"},
		"toml arrays":    {policyfile.TOML, "a = " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "nested deeper than 32"},
		"toml tables":    {policyfile.TOML, "a = " + strings.Repeat("{a = ", 9000) + "1" + strings.Repeat("}", 9000), "nested deeper than 32"},
		"toml dots":      {policyfile.TOML, "a" + strings.Repeat(".a", many) + " = 1", "nested deeper than 32"},
		"toml header":    {policyfile.TOML, "[a" + strings.Repeat(".a", many) + "]", "nested deeper than 32"},
		"too large":      {policyfile.YAML, strings.Repeat("#", syntax.SizeMax+1), "is larger than"},
		"wide toml":      {policyfile.TOML, repeatFormat("k%d = 1\n", many), "more than 1000 keys in one block"},
		"wide json":      {policyfile.JSON, "{" + strings.TrimSuffix(repeatFormat("\"k%d\": 1,", many), ",") + "}", "more than 1000 keys in one block"},
		"wide yaml":      {policyfile.YAML, repeatFormat("k%d: 1\n", many), "more than 1000 keys in one block"},
		"wide yaml flow": {policyfile.YAML, "a: {" + repeatFormat("k%d: 1, ", many) + "}", "more than 1000 keys in one block"},
		"wide yaml list": {policyfile.YAML, "a: [" + strings.Repeat("x, ", many) + "]", "more than 10000 items in one pair of brackets"},
		"old line ends":  {policyfile.YAML, repeatFormat("k%d: 1\r", many), "more than 1000 keys in one block"},
		"wide yaml item": {policyfile.YAML, "a:\n- b: {}\n" + repeatFormat("  k%d: 1\n", many), "more than 1000 keys in one block"},
		"wide yaml odd":  {policyfile.YAML, "# [\n" + repeatFormat("k%d: 1\n", many), "more than 1000 keys in one block"},
		"wide yaml word": {policyfile.YAML, "a: \"[\"\n" + repeatFormat("k%d: 1\n", many), "more than 1000 keys in one block"},
		"wide yaml nest": {policyfile.YAML, "a: [" + repeatFormat("{k: %d}, ", 2000) + "]", "a: is an unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := policyfile.Decode("p", hostile.format, []byte(hostile.text))
			if err == nil || !strings.Contains(err.Error(), hostile.want) {
				t.Errorf("error %.200v, want %q", err, hostile.want)
			}
			if err != nil && len(err.Error()) > 50_000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func repeatFormat(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func BenchmarkDecodeTenThousandRules(b *testing.B) {
	for format, text := range tenThousandRules() {
		b.Run([...]string{"yaml", "toml", "json"}[format], func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := policyfile.Decode("big", policyfile.Format(format), []byte(text)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
