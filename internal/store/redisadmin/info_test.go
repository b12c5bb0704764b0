// SPDX-License-Identifier: Apache-2.0

package redisadmin

import "testing"

func TestParseInfoKnowsTheModeOfValkey(t *testing.T) {
	for _, reply := range []string{
		"# Server\r\nredis_version:7.0.15\r\nredis_mode:sentinel\r\n",
		"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:sentinel\r\n",
	} {
		if got := parseInfo(reply)["redis_mode"]; got != "sentinel" {
			t.Errorf("%q: mode %q, want sentinel", reply, got)
		}
	}
}
