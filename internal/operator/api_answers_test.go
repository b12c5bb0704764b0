// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/penstock/penstock/internal/policyfile"
)

func TestAPolicyIsShownWithoutSecrets(t *testing.T) {
	d := &policyfile.Document{Identify: []policyfile.Identify{{JWT: &policyfile.IdentifyJWT{Secret: "hunter2"}},
		{JWT: &policyfile.IdentifyJWT{JWKSURL: "https://bob:hunter2@issuer.example/keys?a=b"}}}}
	text, err := json.Marshal(withoutSecrets(d))
	if err != nil || strings.Contains(string(text), "hunter2") || !strings.Contains(string(text), "@issuer.example/keys?a=b") {
		t.Errorf("%s: %v", text, err)
	}
	if d.Identify[0].JWT.Secret != "hunter2" || !strings.Contains(d.Identify[1].JWT.JWKSURL, "hunter2") {
		t.Error("the policy itself was changed")
	}
}
