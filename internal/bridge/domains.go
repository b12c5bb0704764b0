// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"
	"strings"
	"time"

	"github.com/penstock/penstock/core"
)

// attrDomain is what rules match the domain of a request by that comes over Envoy's rate limit protocol.
const attrDomain = "envoy.domain"

// domains are those that an edition of the policy is for.
type domains struct {
	edition *edition
	names   []string // sorted
	begin   []string // what others begin with
}

// RulesetOf returns the policy in force, and whether its rules are for a domain: that of its own name, and those that they
// match by, as a policy for several domains does.
func (o *Observer) RulesetOf(domain string) (rs *core.Ruleset, known bool) {
	now := o.b.editions.inForce()
	d := o.domains.Load()
	if d == nil || d.edition != now {
		d = domainsOf(now)
		o.domains.Store(d)
	}
	_, known = slices.BinarySearch(d.names, domain)
	known = known || slices.ContainsFunc(d.begin, func(beginning string) bool { return strings.HasPrefix(domain, beginning) })
	if !known {
		o.warnOfDomain(domain, d)
	}
	return now.ruleset, known
}

// domainLogEvery is the least time between two lines of the log about a domain for which there is no policy.
const domainLogEvery = time.Minute

// warnOfDomain logs, now and then, that nothing is limited for a domain: it is what Envoy is set up to send, and may be the
// former name of the policy.
func (o *Observer) warnOfDomain(domain string, d *domains) {
	const bytesMax, namesMax = 100, 10
	now := time.Now().Unix()
	if last := o.domainTold.Load(); now-last < int64(domainLogEvery/time.Second) || !o.domainTold.CompareAndSwap(last, now) {
		return
	}
	o.b.logger.Warn("Envoy asks for a domain that the policy is not for, so nothing is limited there: name the policy so, or let its "+
		"rules match attr:envoy.domain", "domain", domain[:min(len(domain), bytesMax)], "known", d.names[:min(len(d.names), namesMax)])
}

func domainsOf(e *edition) *domains {
	d := &domains{edition: e, names: []string{e.ruleset.Name()}}
	source, err := e.document.Policy()
	if err != nil { // it was compiled before
		return d
	}
	for i := range source.Rules {
		for _, match := range source.Rules[i].Match.Attr {
			if match.Name != attrDomain {
				continue
			}
			if len(match.Values) == 0 {
				d.begin = append(d.begin, "") // any
			}
			for _, value := range match.Values {
				if beginning, _, pattern := strings.Cut(value, "*"); pattern {
					d.begin = append(d.begin, beginning) // the rule itself looks at the rest
				} else {
					d.names = append(d.names, value)
				}
			}
		}
	}
	slices.Sort(d.names)
	return d
}
