// SPDX-License-Identifier: Apache-2.0

package front

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Settings are the configuration of the filter: the words of the Caddy app.
type Settings struct {
	// The namespace of the counters of a policy without a name. Required with a shared store unless
	// the policy has a name.
	Name string `json:"name,omitempty"`

	// Where counters are kept. Default: in memory.
	Store *Store `json:"store,omitempty"`

	// A directory of clients. Default: none.
	Directory *Directory `json:"directory,omitempty"`

	// The policy file (.yaml, .toml or .json), which is followed while Envoy runs. A relative path
	// is relative to the working directory of Envoy.
	Policy string `json:"policy,omitempty"`

	// The region of this Envoy: one of those in regions of the policy. Required if the policy has
	// regions.
	Region string `json:"region,omitempty"`

	// Whether Envoy appends the address of the connection to X-Forwarded-For. Write false with
	// skip_xff_append. Default: true.
	XFFAppended *bool `json:"xff_appended,omitempty"`

	// words are a policy that is written in place of a policy file.
	words *policyfile.Document
}

// settingsNamed is how messages name the configuration.
const settingsNamed = "filter_config"

// ReadSettings decodes the configuration, which is YAML or JSON. The error has every problem.
func ReadSettings(text []byte) (*Settings, error) {
	found := &syntax.Report{}
	tree, err := syntax.Parse(settingsNamed, syntax.YAML, text, found)
	if err != nil {
		return nil, err
	}
	s := &Settings{words: new(policyfile.Document)}
	if tree != nil {
		own, rest := split(tree)
		policyfile.DecodePart(own, s, found)
		policyfile.DecodePart(rest, s.words, found)
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	return s, s.check()
}

// split divides the document into the entries of Settings and those of a policy.
func split(tree *syntax.Node) (own, rest *syntax.Node) {
	if tree.Kind != syntax.KindMap {
		return tree, syntax.Map(tree.Place)
	}
	own, rest = syntax.Map(tree.Place), syntax.Map(tree.Place)
	for _, e := range tree.Entries {
		switch e.Key {
		case "name", "store", "directory", "policy", "region", "xff_appended":
			own.Entries = append(own.Entries, e)
		default:
			rest.Entries = append(rest.Entries, e)
		}
	}
	return own, rest
}

// check returns every problem of the settings besides those of a policy.
func (s *Settings) check() error {
	var problems []error
	switch {
	case s.Policy == "" && len(s.words.Rules) == 0:
		problems = append(problems, errors.New("policy is missing: write the path of a policy file, or rules"))
	case s.Policy != "" && !reflect.ValueOf(*s.words).IsZero():
		problems = append(problems, fmt.Errorf("policy %q is given, and settings of a policy beside it: write the rules and other "+
			"settings into the policy file", s.Policy))
	}
	if s.Store != nil {
		problems = append(problems, s.Store.check()...)
	}
	if s.Directory != nil && s.Directory.ClientsMax < 0 {
		problems = append(problems, fmt.Errorf("directory: clients_max %d is negative; leave it out for the default", s.Directory.ClientsMax))
	}
	return errors.Join(problems...)
}

// shared reports whether other processes count in the store.
func (s *Settings) shared() bool { return s.Store != nil && s.Store.Type == storeRedis }

// appended reports whether Envoy appends to X-Forwarded-For.
func (s *Settings) appended() bool { return s.XFFAppended == nil || *s.XFFAppended }

var errNameMissing = errors.New("the policy has no name: others that count in the same store would share its counters by " +
	"accident; write name: shop, and the same name wherever the same counters are meant")

// unnamed is the namespace of a policy without a name that counts only in memory.
const unnamed = "default"

// complete fills in what a policy leaves to the configuration.
func (s *Settings) complete(d *policyfile.Document) error {
	d.Name = cmp.Or(d.Name, s.Name)
	if d.Name == "" && s.shared() {
		return errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	if (d.Directory || d.KeysInDirectory()) && s.Directory == nil {
		return policy.Problems{{Path: "directory", Why: "is read by the policy, and this filter has none",
			Remedy: "write directory: {} in the configuration of the filter", Place: d.Place("directory")}}
	}
	if d.Events != nil {
		return policy.Problems{{Path: "events", Why: "is not supported by the module yet", Remedy: "leave it out, or use the " +
			"WebAssembly filter", Place: d.Place("events")}}
	}
	d.Directory = s.Directory != nil
	return nil
}
