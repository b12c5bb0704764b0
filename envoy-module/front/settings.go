// SPDX-License-Identifier: Apache-2.0

package front

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/envoy-module/console"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Settings are the configuration of the filter. Its fields are named as in the Caddy app.
type Settings struct {
	// The namespace of the counters, for a policy without a name. Required if the store is shared
	// and the policy has no name.
	Name string `json:"name,omitempty"`

	// Where counters are kept. Default: in memory.
	Store *Store `json:"store,omitempty"`

	// A directory of clients. Default: none.
	Directory *Directory `json:"directory,omitempty"`

	// The policy file (.yaml, .toml or .json), which is followed while Envoy runs. A relative path
	// is relative to the working directory of Envoy.
	Policy string `json:"policy,omitempty"`

	// The region of this Envoy, which must be one of the policy's regions. Required if the policy
	// has regions.
	Region string `json:"region,omitempty"`

	// A policy that a control plane publishes in Redis, in place of a file. Default: none.
	PolicyRedis *PublishedPolicy `json:"policy_redis,omitempty"`

	// A policy that a control plane publishes and that is read from its API, in place of a file.
	// Default: none.
	PolicyHTTP *HTTPPolicy `json:"policy_http,omitempty"`

	// A policy file that is tried out beside the policy in force, and followed in the same way. Its
	// decisions are counted but not enforced. Default: none.
	ShadowPolicy string `json:"shadow_policy,omitempty"`

	// Where operators and the scrapers of metrics are served. Default: nowhere.
	Admin *console.Settings `json:"admin,omitempty"`

	// Where the events that policies report are written: `stdout`, the path of a file (with a
	// slash), `syslog`, `syslog:udp://HOST:PORT`, `syslog:tcp://HOST:PORT`, or `none`. Default:
	// `stdout`.
	EventsTo string `json:"events_to,omitempty"`

	// A control plane to which events and the usage of each client are reported. Default: none.
	Control *Control `json:"control,omitempty"`

	// A collector of OpenTelemetry to which the metrics of the process are sent. Default: none.
	OTLP *Collector `json:"otlp,omitempty"`

	// The path at which a client sees its own limits. The filter itself answers a GET of this path
	// and charges nothing for it. Default: none.
	StatusPath string `json:"status_path,omitempty"`

	// Whether Envoy appends the address of the connection to X-Forwarded-For. Write false if Envoy
	// has skip_xff_append. Default: true.
	XFFAppended *bool `json:"xff_appended,omitempty"`

	// The soft limit of Go's memory in Envoy's process, such as 512MiB. Near the limit, garbage is
	// collected more often. If several filters set a limit, the greatest applies. Default:
	// GOMEMLIMIT, or 1GiB.
	MemoryLimit string `json:"memory_limit,omitempty"`

	// words holds the policy that the configuration itself contains, in place of a policy file. If
	// the policy comes from elsewhere, words holds at most on_error and lease, which apply if that
	// policy does not set them.
	words *policyfile.Document
}

// settingsNamed is the name of the configuration in messages.
const settingsNamed = "filter_config"

// ReadSettings decodes the configuration, which is YAML or JSON. The error lists every problem.
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

// ReadRouteSettings decodes the configuration of a route, which on this route replaces the
// configuration of the filter. It must name a store. Otherwise the route would get a store in
// memory by default, and share no counter with the filter.
func ReadRouteSettings(text []byte) (*Settings, error) {
	s, err := ReadSettings(text)
	if err == nil && s.Store == nil {
		err = errors.New("store is missing: write the store of the filter, whose counters the route then shares, or type: memory")
	}
	if err == nil && (s.Admin != nil || s.EventsTo != "" || s.Control != nil || s.OTLP != nil) {
		err = errors.New("admin, events_to, control and otlp are of the whole process: write them in the configuration of the filter")
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// split divides the document into the entries of Settings and the entries of a policy.
func split(tree *syntax.Node) (own, rest *syntax.Node) {
	if tree.Kind != syntax.KindMap {
		return tree, syntax.Map(tree.Place)
	}
	own, rest = syntax.Map(tree.Place), syntax.Map(tree.Place)
	for _, e := range tree.Entries {
		switch e.Key {
		case "name", "store", "directory", "policy", "policy_redis", "policy_http", "region", "admin", "events_to", "control", "otlp", "status_path",
			"shadow_policy", "xff_appended", "memory_limit":
			own.Entries = append(own.Entries, e)
		default:
			rest.Entries = append(rest.Entries, e)
		}
	}
	return own, rest
}

// check returns every problem of the settings, except for problems of the policy that they contain.
func (s *Settings) check() error {
	var problems []error
	switch p, word := s.published(); {
	case s.Policy != "" && p != nil:
		problems = append(problems, fmt.Errorf("policy %q and %s are both given: keep one", s.Policy, word))
	case s.Policy == "" && p == nil && len(s.words.Rules) == 0:
		problems = append(problems, errors.New("policy is missing: write the path of a policy file, or rules"))
	case s.Policy != "" || p != nil:
		problems = append(problems, s.checkBeside())
	}
	problems = append(problems, s.checkPublished())
	if s.StatusPath != "" && (s.StatusPath[0] != '/' || strings.ContainsAny(s.StatusPath, "?#*")) {
		problems = append(problems, fmt.Errorf("status_path %q is not a path: write one like /limits, without a query", s.StatusPath))
	}
	if s.Admin != nil {
		problems = append(problems, s.Admin.Check())
	}
	problems = append(problems, s.checkReports())
	if s.OTLP != nil {
		problems = append(problems, s.OTLP.check())
	}
	if s.Store != nil {
		problems = append(problems, s.Store.check()...)
	}
	if _, err := parseMemory(s.MemoryLimit); err != nil {
		problems = append(problems, err)
	}
	if s.Directory != nil && s.Directory.ClientsMax < 0 {
		problems = append(problems, fmt.Errorf("directory: clients_max %d is negative; leave it out for the default", s.Directory.ClientsMax))
	}
	return errors.Join(problems...)
}

// checkBeside returns the errors of a policy's settings in a configuration whose policy comes from
// elsewhere.
func (s *Settings) checkBeside() error {
	rest := *s.words
	rest.OnError, rest.Lease = "", ""
	if !reflect.ValueOf(rest).IsZero() {
		return fmt.Errorf("policy %q is given, and settings of a policy beside it: write the rules and all settings but on_error and "+
			"lease into the policy file", s.source())
	}
	_, err := s.words.Policy()
	return err
}

// source returns the name of the policy's source, or "" if the configuration itself contains the
// rules.
func (s *Settings) source() string {
	p, word := s.published()
	if p == nil {
		return s.Policy
	}
	return strings.TrimPrefix(word, "policy_") + ":" + p.Name
}

// isShared reports whether other processes count in the store.
func (s *Settings) isShared() bool { return s.Store != nil && s.Store.Type == storeRedis }

// appended reports whether Envoy appends to X-Forwarded-For.
func (s *Settings) appended() bool { return s.XFFAppended == nil || *s.XFFAppended }

var errNameMissing = errors.New("the policy has no name: others that count in the same store would share its counters by " +
	"accident; write name: shop, and the same name wherever the same counters are meant")

// unnamed is the namespace of a policy that has no name and counts only in memory.
const unnamed = "default"

// fillDefaults fills in the settings that a policy leaves to the configuration.
func (s *Settings) fillDefaults(d *policyfile.Document) error {
	d.Name, d.OnError, d.Lease = cmp.Or(d.Name, s.Name), cmp.Or(d.OnError, s.words.OnError), cmp.Or(d.Lease, s.words.Lease)
	if d.Name == "" && s.isShared() {
		return errNameMissing
	}
	d.Name = cmp.Or(d.Name, unnamed)
	if (d.Directory || d.KeysInDirectory()) && s.Directory == nil {
		return policy.Problems{{Path: "directory", Why: "is read by the policy, and this filter has none",
			Remedy: "write directory: {} in the configuration of the filter", Place: d.Place("directory")}}
	}
	d.Directory = s.Directory != nil
	return nil
}
