// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
)

// UnmarshalJSON reads the app's configuration. The error lists all problems.
func (a *App) UnmarshalJSON(data []byte) error {
	d, err := readWords(data, ownSetting{"store", &a.Store}, ownSetting{"directory", &a.Directory}, ownSetting{"events_to", &a.EventsTo}, ownSetting{"control", &a.Control}, ownSetting{"policy", &a.Policy},
		ownSetting{"policy_redis", &a.PolicyRedis}, ownSetting{"policy_http", &a.PolicyHTTP}, ownSetting{"shadow_policy", &a.ShadowPolicy}, ownSetting{"region", &a.Region})
	if err == nil {
		a.Name, a.PolicyWords = d.Name, wordsOf(d)
	}
	return err
}

// UnmarshalJSON reads the handler's configuration. The error lists all problems.
func (h *Handler) UnmarshalJSON(data []byte) error {
	d, err := readWords(data, ownSetting{"site", &h.Site}, ownSetting{"policy", &h.Policy}, ownSetting{"policy_redis", &h.PolicyRedis},
		ownSetting{"policy_http", &h.PolicyHTTP}, ownSetting{"shadow_policy", &h.ShadowPolicy})
	if err == nil {
		h.Name, h.PolicyWords = d.Name, wordsOf(d)
	}
	return err
}

// ownSetting is a setting of the module itself, not of a policy, with the variable that receives
// its value.
type ownSetting struct {
	word string
	into any
}

// readWords reads the settings that owns lists into their variables, and all other settings as a
// policy. It reads the rules one by one because here, unlike in a policy file, a rule needs no
// name.
func readWords(data []byte, owns ...ownSetting) (*policyfile.Document, error) {
	var words map[string]json.RawMessage
	if err := json.Unmarshal(data, &words); err != nil {
		return nil, err
	}
	var problems []error
	take := func(word string, into any) {
		if text, ok := words[word]; ok {
			if err := caddy.StrictUnmarshalJSON(text, into); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", word, err))
			}
		}
		delete(words, word)
	}
	for _, o := range owns {
		take(o.word, o.into)
	}
	var texts []json.RawMessage
	take("rules", &texts)
	rules := make([]policyfile.Rule, len(texts))
	for i, text := range texts {
		problems = append(problems, withinPath(fmt.Sprintf("rules[%d]", i), json.Unmarshal(text, &rules[i])))
	}
	rest, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	d := new(policyfile.Document)
	problems = append(problems, json.Unmarshal(rest, d))
	if len(rules) > 0 {
		d.Rules = rules
	}
	return d, errors.Join(problems...)
}

// withinPath prefixes the paths of problems in a part with the path of that part.
func withinPath(path string, err error) error {
	var found policy.Problems
	if !errors.As(err, &found) {
		return err
	}
	for i := range found {
		if found[i].Path == "policy" { // this is the problem of the part as a whole
			found[i].Path = path
		} else {
			found[i].Path = path + "." + found[i].Path
		}
	}
	return found
}
