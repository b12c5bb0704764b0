// SPDX-License-Identifier: Apache-2.0

package ruletable

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

// document returns a policy without rules.
func document(t testing.TB) *policyfile.Document {
	t.Helper()
	d, err := policyfile.Decode("base", policyfile.YAML, []byte("name: shop\nidentify: [{api_key: {keys_file: keys.toml}}, ip]\n"))
	if err != nil {
		t.Fatal(err)
	}
	copied := new(policyfile.Document)
	text, err := json.Marshal(d)
	if err == nil {
		err = json.Unmarshal(text, copied)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// TestTablesBecomeRules tests that each form of a table becomes the rules that its columns
// describe, in the order of its priorities, and that the rules are valid.
func TestTablesBecomeRules(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		table string
		o     Options
		want  string
		notes int
	}{
		"limit_count": {
			table: "id,name,key_pattern,scope,algorithm,limit_count,window_seconds,burst_limit,refill_rate,plan_tiers,endpoints,action,priority,enabled,created_at\n" +
				`1,Search of free plans,user:{user_id},user,sliding_window,100,3600,,,{free},{/api/search},reject,20,t,2026-01-01` + "\n" +
				`2,bucket,tenant:{api_key},tenant,token_bucket,1000,60,1200,16.67,{},"{/api/*,/v2/*}",throttle,10,t,` + "\n" +
				`3,slow,x,global,token_bucket,10,1,,0.5,{},{},log_only,,f,` + "\n",
			want: `{"name":"bucket","match":{"path":["/api/*","/v2/*"]},"per":"api_key","limit":"1000/1m burst 1200 token_bucket"},` +
				`{"name":"Search-of-free-plans","match":{"path":"/api/search","tier":"free"},"per":"user","limit":"100/1h sliding_window"},` +
				`{"name":"slow","per":[],"limit":"1/2s burst 10 token_bucket","enabled":false,"action":"log_only"}`,
			notes: 1,
		},
		"requests_per": {
			table: "rule_name,priority,user_tier,endpoint_pattern,http_method,ip_range,algorithm,requests_per_second,requests_per_minute,requests_per_hour,requests_per_day," +
				"burst_size,action,response_status,response_message,retry_after_seconds,enabled\n" +
				"api_v1_limit,600,,/api/v1/*,,,sliding_window,100,,,,,throttle,429,,,true\n" +
				"free_tier_limit,700,free,,POST,192.0.2.0/24,token_bucket,,,1000,5000,20,throttle,503,Upgrade.,30,true\n" +
				"office,900,,,,198.51.100.0/24,token_bucket,,,,,,allow,429,,,true\n" +
				"scrapers,800,,,,203.0.113.0/24,token_bucket,,,,,,block,429,,,true\n",
			o: Options{First: true, MaxDelay: "2s"},
			want: `{"name":"office","match":{"ip":"198.51.100.0/24"},"action":"allow"},` +
				`{"name":"scrapers","match":{"ip":"203.0.113.0/24"},"action":"block"},` +
				`{"name":"free_tier_limit","match":{"method":"POST","ip":"192.0.2.0/24","tier":"free"},"limit":["1000/1h burst 20 token_bucket","5000/1d token_bucket"],` +
				`"priority":200,"action":"throttle","throttle":{"max_delay":"2s"},"response":{"status":503,"message":"Upgrade."},"retry_after":"30s"},` +
				`{"name":"api_v1_limit","match":{"path":"/api/v1/*"},"limit":"100/1s sliding_window","priority":300,"action":"throttle","throttle":{"max_delay":"2s"}}`,
			notes: 1, // scrapers are blocked even if they are in the office
		},
		"limit and window": {
			table: "rule_id,name,resource,subject_type,limit,window,algorithm,tier,action,response_code,response_message,priority,enabled\n" +
				"rule_003,Global-Limit,*,ip,100000,60,fixed_window,NULL,log,429,,2,true\n" +
				"rule_001,Free Tier - Search API,/api/search,user,100,3600,sliding_window_counter,free,reject,429,Rate limit exceeded. Upgrade to Premium.,1,true\n" +
				`rule_002,Free Tier - Search API,/api/search,api_key,10000,3600,sliding_window,premium,reject,429,\N,1,true` + "\n",
			want: `{"name":"Free-Tier-Search-API","match":{"path":"/api/search","tier":"free"},"per":"user","limit":"100/1h sliding_window",` +
				`"response":{"message":"Rate limit exceeded. Upgrade to Premium."}},` +
				`{"name":"Free-Tier-Search-API-2","match":{"path":"/api/search","tier":"premium"},"per":"api_key","limit":"10000/1h sliding_window"},` +
				`{"name":"Global-Limit","per":"ip","limit":"100000/1m fixed_window","action":"log_only"}`,
		},
	} {
		d := document(t)
		notes, err := Import(d, strings.NewReader(c.table), c.o)
		if err != nil || len(notes) != c.notes {
			t.Errorf("%s: %q, %v", name, notes, err)
			continue
		}
		text, err := json.Marshal(d.Rules)
		if err != nil || string(text) != "["+c.want+"]" {
			t.Errorf("%s: the rules are\n%s\nwant\n[%s]", name, text, c.want)
		}
		if err := d.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestTablesThatAreNot tests that an unknown column or value is an error with its line, and that
// all errors are shown.
func TestTablesThatAreNot(t *testing.T) {
	t.Parallel()
	for table, wants := range map[string][]string{
		"":                    {"the header cannot be read"},
		"a,b\n":               {"those of no table that is known"},
		"limit_count,quota\n": {`the column "quota" appears twice or is unknown`, "window_seconds"},
		"resource,resource\n": {"twice"},
		"resource,limit,window,algorithm,enabled,action,subject_type,priority\n*,ten,60,leaky,maybe,drop,cat,high\n": {`line 2: limit "ten" is no whole number`,
			`algorithm "leaky"`, `enabled "maybe"`, `action "drop"`, `subject_type "cat"`, `priority "high"`},
		"resource,limit,window\n/a,10\n":                                            {"wrong number of fields"},
		"resource,limit,window\n/a,10,\n":                                           {"window", "is missing"},
		"resource,limit,window\n/a,,60\n":                                           {"line 2: the rule has no limit"},
		"requests_per_hour,action\n5,allow\n":                                       {"give --enforce first"},
		"limit_count,window_seconds,plan_tiers\n5,60,free\n":                        {"is no array"},
		"limit_count,window_seconds,key_pattern\n5,60,x:{shoe}\n":                   {"{shoe}, which is unknown"},
		"limit_count,window_seconds,algorithm,refill_rate\n5,60,token_bucket,1e9\n": {"refill_rate"},
		"resource,limit,window\n" + strings.Repeat("/a,1,60\n", rowsMax+1):          {"more rules"},
	} {
		_, err := Import(document(t), strings.NewReader(table), Options{})
		for _, want := range wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%.80q: %.300v; want %q", table, err, want)
			}
		}
	}
}

// TestWhatATableMeans tests the cells that are easily misread: a star beside other paths, arrays
// with NULL and backslashes, keys that count nothing, and settings that have no effect.
func TestWhatATableMeans(t *testing.T) {
	t.Parallel()
	const columns = "name,key_pattern,scope,algorithm,limit_count,window_seconds,refill_rate,plan_tiers,endpoints,action,priority\n"
	for name, c := range map[string]struct {
		rows, want, note, err string
		first                 bool
	}{
		"a star beside a path":    {rows: `a,,user,,5,60,,{free},"{/api,*}",,`, want: `"match":{"tier":"free"}`},
		"a star for all paths":    {rows: `a,,user,,5,60,,"{free,*}","{/*,/api}",,`, want: `{"name":"a","per":"user"`},
		"NULL in an array":        {rows: `a,,user,,5,60,,"{free,NULL}",,,`, err: `plan_tiers "{free,NULL}" contains NULL`},
		"a tier that is named so": {rows: `a,,user,,5,60,,"{free,""NULL""}",,,`, want: `"tier":["free","NULL"]`},
		"a backslash":             {rows: `a,,user,,5,60,,"{""a\\b""}",,,`, err: "has a backslash"},
		"a quote":                 {rows: `a,,user,,5,60,,"{""a\""b""}",,,`, want: `"tier":"a\"b"`},
		"no placeholder":          {rows: `a,rate:all,,,5,60,,,,,`, err: `key_pattern "rate:all" has no placeholder, and there is no scope`},
		"only a scope":            {rows: `a,rate:all,global,,5,60,,,,,`, want: `"per":[]`},
		"a scope that agrees":     {rows: `a,t:{api_key},tenant,,5,60,,,,,`, want: `"per":"api_key"`},
		"a scope that does not":   {rows: `a,t:{user_id},ip,,5,60,,,,,`, want: `"per":"user"`, note: `scope "ip" contradicts key_pattern "t:{user_id}"`},
		"an unknown scope":        {rows: `a,t:{user_id},shoe,,5,60,,,,,`, err: `scope "shoe" is unknown`},
		"a rate of a window":      {rows: `a,,user,fixed_window,5,60,0.1,,,,`, want: `5/1m fixed_window`, note: "refill_rate"},
		"a block that is later":   {rows: "a,,user,,5,60,,,,,1\nb,,,,,,,,{/x},block,2", first: true, note: `line 3: action "block" comes before all other rules here`},
		"a block that is first":   {rows: "a,,user,,5,60,,,,,2\nb,,,,,,,,{/x},block,1", first: true},
		"all rules count":         {rows: "a,,user,,5,60,,,,,1\nb,,,,,,,,{/x},block,2"},
	} {
		d := document(t)
		notes, err := Import(d, strings.NewReader(columns+c.rows+"\n"), Options{First: c.first})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v; want %s", name, err, c.err)
			}
			continue
		}
		text, wrong := json.Marshal(d.Rules)
		if err != nil || wrong != nil || !strings.Contains(string(text), c.want) || (len(notes) > 0) != (c.note != "") || !strings.Contains(strings.Join(notes, "\n"), c.note) {
			t.Errorf("%s: the rules are %s, the notes %q, %v; want %s and %q", name, text, notes, err, c.want, c.note)
		}
	}
}

// FuzzImport tests that no table makes the import panic, and that the rules that it returns can be
// checked.
func FuzzImport(f *testing.F) {
	f.Add("limit_count,window_seconds,plan_tiers,refill_rate,algorithm\n5,60,\"{a,\"\"b\"\"}\",0.1,token_bucket\n", true)
	f.Add("rule_name,requests_per_day,burst_size\nx,9223372036854775807,-1\n", false)
	f.Add("resource,limit,window,priority\n/,1,0,-9223372036854775808\n/,1,1,9223372036854775807\n", true)
	f.Fuzz(func(t *testing.T, table string, first bool) {
		d := document(t)
		if _, err := Import(d, strings.NewReader(table), Options{First: first}); err == nil {
			_ = d.Check()
		}
	})
}
