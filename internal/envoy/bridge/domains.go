// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
	"github.com/penstock/penstock/internal/enforce/live"
)

// attrDomain is the attribute by which rules match the domain of a request from Envoy's rate limit
// protocol.
const attrDomain = "envoy.domain"

// domains holds the domains that a version of the policy covers.
type domains struct {
	version *live.Version
	names   []string // sorted
	begin   []string // prefixes of further domains
}

// RulesetOf returns the policy in force, and reports whether the policy covers a domain. A policy
// covers the domain of its own name and the domains that its rules match.
func (o *Observer) RulesetOf(domain string) (rs *core.Ruleset, known bool) {
	now := o.b.policy.Current()
	d := o.domains.Load()
	if d == nil || d.version != now {
		d = domainsOf(now)
		o.domains.Store(d)
	}
	_, known = slices.BinarySearch(d.names, domain)
	known = known || slices.ContainsFunc(d.begin, func(beginning string) bool { return strings.HasPrefix(domain, beginning) })
	if !known {
		o.warnOfDomain(domain, d)
	}
	return now.Ruleset, known
}

// domainLogEvery is the least time between two log lines about unknown domains.
const domainLogEvery = time.Minute

// warnOfDomain logs at a bounded rate that requests of a domain are not limited. Envoy may be
// configured with a wrong domain, or with the policy's former name.
func (o *Observer) warnOfDomain(domain string, d *domains) {
	const bytesMax, namesMax = 100, 10
	now := time.Now().Unix()
	if last := o.domainLoggedAt.Load(); now-last < int64(domainLogEvery/time.Second) || !o.domainLoggedAt.CompareAndSwap(last, now) {
		return
	}
	o.b.logger.Warn("Envoy asks for a domain that the policy does not cover, so its requests are not limited: give the policy this name, or let its "+
		"rules match attr:envoy.domain", "domain", domain[:min(len(domain), bytesMax)], "known", d.names[:min(len(d.names), namesMax)])
}

func domainsOf(v *live.Version) *domains {
	d := &domains{version: v, names: []string{v.Ruleset.Name()}}
	source, err := v.Document.Policy()
	if err != nil { // this cannot happen, because the pattern has already been compiled
		return d
	}
	for i := range source.Rules {
		for _, match := range source.Rules[i].Match.Attr {
			if match.Name != attrDomain {
				continue
			}
			if len(match.Values) == 0 {
				d.begin = append(d.begin, "") // this pattern matches any domain
			}
			for _, value := range match.Values {
				if beginning, _, pattern := strings.Cut(value, "*"); pattern {
					d.begin = append(d.begin, beginning) // the rule itself checks the remaining part
				} else {
					d.names = append(d.names, value)
				}
			}
		}
	}
	slices.Sort(d.names)
	return d
}
