// SPDX-License-Identifier: Apache-2.0

package penstockcaddy_test

import (
	"encoding/base64"
	"testing"
)

// TestLoginsOfBasicAuthAreUsers: a user who authenticates with a password counts as a user in rules
// and lists, if the policy names the source of users.
func TestLoginsOfBasicAuthAreUsers(t *testing.T) {
	s := start(t, `{
	order penstock after basic_auth
}
:PORT {
	basic_auth {
		ann $2a$04$QcujByXy8vS7jsteQ7ZEQ.5A7J9sEM4XzcIUhKlQHYstAt2UOU8lC
		root $2a$04$QcujByXy8vS7jsteQ7ZEQ.5A7J9sEM4XzcIUhKlQHYstAt2UOU8lC
	}
	penstock {
		identify attr http.auth.user.id
		identify ip
		user attr http.auth.user.id
		exempt user root
		rule person 1/1h {
			per user
		}
	}
	respond "{http.penstock.user}"
}`)
	login := func(name string) []string {
		return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":secret"))}
	}
	if got := s.statuses(2, "/", login("ann")...); got != "200 429" {
		t.Errorf("ann: %s", got)
	}
	if got := s.statuses(3, "/", login("root")...); got != "200 200 200" {
		t.Errorf("root, who is exempt: %s", got)
	}
	if got := s.get("/", login("root")...); got.body != "root" {
		t.Errorf("the placeholder of the user is %q", got.body)
	}
	if got := s.statuses(1, "/"); got != "401" {
		t.Errorf("nobody: %s", got)
	}
}
