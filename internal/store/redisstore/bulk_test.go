// SPDX-License-Identifier: Apache-2.0

package redisstore

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/test/redistest"
)

// TestValuesAreSet: values are set and removed by one MSET and one DEL. If the ACL user may not use
// MSET, or the server has no such command, there is a SET for each key.
func TestValuesAreSet(t *testing.T) {
	const count = 100
	keys, values := make([]string, count), make([][]byte, count)
	for i := range count {
		keys[i] = fmt.Sprintf("rl1:~v%d", i)
		if i%10 != 0 {
			values[i] = fmt.Appendf(nil, "value %d", i)
		}
	}
	for name, c := range map[string]struct {
		acl       []any
		arguments []string
		singly    bool
	}{
		"together":        {acl: []any{"+@all"}},
		"without a right": {acl: []any{"+@all", "-mset"}, singly: true},
		"without MSET":    {acl: []any{"+@all"}, arguments: []string{"--rename-command", "MSET", ""}, singly: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, c.arguments...)
			configure(t, server, append([]any{"acl", "setuser", "me", "on", ">secret", "~rl1:*"}, c.acl...)...)
			s := open(t, Options{URL: server.URL(), Username: "me", Password: "secret"})
			ready(t, s)
			for _, key := range keys {
				server.Client().Set(t.Context(), key, "old", 0)
			}
			for range 2 { // the second time, the store knows how to set values
				if err := s.SetValues(t.Context(), keys, values); err != nil {
					t.Fatal(err)
				}
			}
			for i, key := range keys {
				got, err := server.Client().Get(t.Context(), key).Result()
				if got != string(values[i]) || (err != nil) != (values[i] == nil) {
					t.Errorf("%s is %q, %v, want %q", key, got, err, values[i])
				}
			}
			stats, err := server.Client().Info(t.Context(), "commandstats").Result()
			if err != nil {
				t.Fatal(err)
			}
			// If the store makes no call of SET, only the 100 calls of the test are counted.
			if singly := !strings.Contains(stats, "cmdstat_set:calls=100,"); singly != c.singly {
				t.Errorf("set singly: %t, want %t\n%s", singly, c.singly, stats)
			}
		})
	}
}
