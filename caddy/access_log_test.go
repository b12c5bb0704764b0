// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock/penstock/internal/test/eventually"
)

// accessLogRecipe is the recipe of docs/guides/tiers-and-keys.md.
const accessLogRecipe = `format filter {
			request>headers>X-Api-Key delete
			request>uri query {
				delete api_key
			}
		}`

// TestKeysInTheAccessLog: Caddy warns that its access log shows a key. With the recipe of the
// guide, neither the access log nor the error log contains the key.
func TestKeysInTheAccessLog(t *testing.T) {
	const key = "pk_an_example_key_for_tests"
	guide, err := os.ReadFile("../docs/guides/tiers-and-keys.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(guide), accessLogRecipe) {
		t.Error("the guide does not have the recipe that is tested here")
	}
	for name, format := range map[string]string{"as it is": "", "with the recipe": accessLogRecipe} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			keys, log := filepath.Join(dir, "keys.toml"), filepath.Join(dir, "log")
			text := fmt.Appendf(nil, "[[keys]]\nid = \"acme\"\nhash = \"sha256:%x\"\n", sha256.Sum256([]byte(key)))
			if err := os.WriteFile(keys, text, 0o600); err != nil {
				t.Fatal(err)
			}
			s := start(t, `{
	log {
		output file `+log+`
		`+format+`
	}
}
:PORT {
	log
	penstock {
		identify api_key {
			keys_file `+keys+`
			header X-Api-Key
			query api_key
		}
		rule api 2/1m
	}
	respond /broken 500
	respond "ok"
}`)
			s.statuses(1, "/first", "X-Api-Key", key)
			s.statuses(1, "/broken?api_key="+key)
			logged := func() string {
				text, err := os.ReadFile(log)
				if err != nil {
					t.Fatal(err)
				}
				return string(text)
			}
			eventually.Until(t, 10*time.Second, "both requests are logged", func() bool {
				return strings.Contains(logged(), "/first") && strings.Contains(logged(), "/broken")
			})
			if shown := strings.Count(logged(), key); (shown > 0) != (format == "") {
				t.Errorf("the key is %d times in the log:\n%s", shown, logged())
			}
			for _, want := range []string{`"field":"request>headers>X-Api-Key"`, `"credential":"query api_key"`} {
				if strings.Count(logged(), want) != 1 {
					t.Errorf("the log warns of %s not once:\n%s", want, logged())
				}
			}
		})
	}
}
