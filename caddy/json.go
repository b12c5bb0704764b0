// SPDX-License-Identifier: Apache-2.0

package penstockcaddy

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/policy"
)

// UnmarshalJSON reads the app's configuration. The error lists everything that is wrong.
func (a *App) UnmarshalJSON(data []byte) error {
	d, err := readWords(data, own{"store", &a.Store}, own{"policy", &a.Policy}, own{"shadow_policy", &a.ShadowPolicy})
	if err == nil {
		a.Name, a.PolicyWords = d.Name, wordsOf(d)
	}
	return err
}

// UnmarshalJSON reads the handler's configuration. The error lists everything that is wrong.
func (h *Handler) UnmarshalJSON(data []byte) error {
	d, err := readWords(data, own{"site", &h.Site}, own{"policy", &h.Policy}, own{"shadow_policy", &h.ShadowPolicy})
	if err == nil {
		h.Name, h.PolicyWords = d.Name, wordsOf(d)
	}
	return err
}

// own is a word of a module that is not a policy's, and where its value belongs.
type own struct {
	word string
	into any
}

// readWords reads a module's own words, and the others as a policy. Rules are read one by one: here, unlike in a file,
// they need no name.
func readWords(data []byte, owns ...own) (*policy.Document, error) {
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
	rules := make([]policy.Rule, len(texts))
	for i, text := range texts {
		problems = append(problems, within(fmt.Sprintf("rules[%d]", i), json.Unmarshal(text, &rules[i])))
	}
	rest, err := json.Marshal(words)
	if err != nil {
		return nil, err
	}
	d := new(policy.Document)
	problems = append(problems, json.Unmarshal(rest, d))
	if len(rules) > 0 {
		d.Rules = rules
	}
	return d, errors.Join(problems...)
}

// within puts the path of a part before those of the problems in it.
func within(path string, err error) error {
	var found core.Problems
	if !errors.As(err, &found) {
		return err
	}
	for i := range found {
		if found[i].Path == "policy" { // the part itself
			found[i].Path = path
		} else {
			found[i].Path = path + "." + found[i].Path
		}
	}
	return found
}
