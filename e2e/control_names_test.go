// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/eventually"
	"github.com/penstock/penstock/internal/test/pgtest"
	"github.com/penstock/penstock/internal/test/redistest"
)

// TestNoNameOfAClientSpoilsABatch tests that whatever a client puts into its name, path and method,
// usage and events of all clients are in PostgreSQL, each name apart.
func TestNoNameOfAClientSpoilsABatch(t *testing.T) {
	t.Parallel()
	control := startControl(t, pgtest.Start(t).URL(), redistest.Start(t).URL(), "")
	spool := filepath.Join(t.TempDir(), "spool")
	node := startCaddy(t, strings.NewReplacer("CONTROL", "http://"+control.address, "TOKEN", control.nodeToken(), "SPOOL", spool,
		"\t\tevents\n", "\t\tevents {\n\t\t\tpath full\n\t\t}\n\t\tidentify attr http.request.uri.query.user\n",
		"match path /api", "match path /api/**").Replace(tellingCaddyfile))
	names := map[string]string{ // as in the query of a URL, and as in the usage
		strings.Repeat("%FF", 100): strings.Repeat("\uFFFDff", 90), // and more
		"a%00b":                    "a\uFFFD00b",
		"a%FFb":                    "a\uFFFDffb",
		"%1B%5B2J%0A":              "\uFFFD1b[2J\uFFFD0a",
		"a%EF%BF%BDb":              "a\uFFFDef\uFFFDbf\uFFFDbdb",
		"%27%3B--":                 "';--",
		"ann":                      "ann",
	}
	for query := range names {
		node.ask(t.Context(), http.MethodGet, "/api/%00%ff%1b?user="+query)
	}
	for range 5 { // three are denied, each an event
		node.ask(t.Context(), "X"+strings.Repeat("!", 15), "/api/"+strings.Repeat("%FF%01", 300), "X-User", strings.Repeat("\xff", 255))
	}
	control.awaitUsage("api", usedRow{Admitted: len(names) + 2, Denied: 3, Units: 2 * (len(names) + 2)})
	rows := control.usage("rule=api")
	for query, name := range names {
		found := 0
		for _, row := range rows {
			kind, client, _ := strings.Cut(row.Client, ":")
			if kind != "header.x-user" && (client == name || len(name) > 300 && strings.HasPrefix(client, name)) {
				found += row.Admitted
			}
		}
		if found != 1 {
			t.Errorf("%s has %d requests as %q", query, found, name)
		}
	}
	eventually.Until(t, controlPatience, "the events of the denials are in the tables", func() bool {
		var events struct{ Events []eventLine }
		if _, text := control.send("GET", "/v1/events?kind=denied", ""); json.Unmarshal([]byte(text), &events) != nil {
			t.Fatal(text)
		}
		denied := 0
		for _, e := range events.Events {
			denied += e.Count
		}
		return denied == 3
	})
	if rejected, err := filepath.Glob(filepath.Join(spool, "*.rejected")); err != nil || len(rejected) > 0 {
		t.Errorf("%q are rejected, %v", rejected, err)
	}
}
