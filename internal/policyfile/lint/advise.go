// SPDX-License-Identifier: Apache-2.0

package lint

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
	"github.com/penstock/penstock/internal/policyfile"
	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Advise returns warnings about settings that are valid but probably not intended, each with its
// position, value, reason and remedy. A warning does not prevent the use of the policy. Invalid
// values are reported by [policyfile.Document.Check] instead. Advise compares only the first 1,000
// rules with each other.
func Advise(d *policyfile.Document) []policy.Problem {
	a := adviser{doc: d, replaced: map[string]bool{}}
	a.policy, _ = d.Policy()
	for i := range a.policy.Rules {
		for _, name := range a.policy.Rules[i].Replaces {
			a.replaced[name] = true
		}
	}
	a.identities()
	a.lists()
	for i := range d.Rules {
		a.rule(policyfile.Index("rules", i), &d.Rules[i], &a.policy.Rules[i])
	}
	a.checkTimezone()
	a.leases()
	a.shards()
	a.compareRules()
	a.Sort()
	d.NameRules(a.Problems)
	return a.Problems
}

// warningsMax is the greatest number of warnings of a policy that are logged. `penstock validate`
// prints all of them.
const warningsMax = 20

// Warn reports the warnings of [Advise], one line each, up to a fixed number. Warn is called when a
// policy comes into force, because users might not run `penstock validate`, and because that
// command does not read Caddyfiles.
func Warn(d *policyfile.Document, say func(line string)) {
	for i, problem := range Advise(d) {
		if i == warningsMax {
			say("the policy has more warnings than are logged; penstock validate prints them all, of a policy file")
			return
		}
		say(problem.String())
	}
}

type adviser struct {
	syntax.Report
	doc    *policyfile.Document
	policy policy.Policy
	// the names of the rules that another rule replaces
	replaced map[string]bool
}

// adviser.problem adds a warning about a path of the document.
func (a *adviser) problem(path, value, why, remedy string) {
	a.Add(policy.Problem{Path: path, Value: value, Why: why, Remedy: remedy, Place: a.doc.Place(path)})
}

// repeaters lists Caddy placeholders and Envoy attributes, or prefixes of them, whose values the
// client chooses.
var repeaters = []string{"http.request.header", "http.request.orig_header", "http.request.cookie", "http.request.uri",
	"http.request.uri_escaped", "http.request.orig_uri", "http.request.host", "http.request.hostport", "http.request.port",
	"http.request.method", "http.request.orig_method", "http.request.body", "http.request.body_base64",
	"http.request.tls.server_name", "http.regexp",
	"request.headers", "request.path", "request.url_path", "request.query", "request.host", "request.method", "request.scheme",
	"request.referer", "request.useragent", "connection.requested_server_name"}

// fleeting lists placeholders and attributes whose value differs for each request or connection.
var fleeting = []string{"http.request.uuid", "http.request.remote", "http.request.remote.port",
	"http.request.duration", "http.request.duration_ms",
	"request.id", "request.time", "request.duration", "request.size", "request.total_size", "source.address", "source.port",
	"connection.id"}

// isChosenByClient reports whether the client chooses the value of an attribute.
func isChosenByClient(attr string) bool {
	attr = policyfile.Unbracketed(attr)
	return slices.ContainsFunc(repeaters, func(name string) bool { return syntax.Within(attr, name) })
}

const (
	remedyInvented = "use jwt or api_key, or make sure that something in front sets or removes it"
	whyRepeated    = "only repeats client input"
	whyFleeting    = "changes with each request or connection, so each has its own counter"
	remedyFleeting = "use a value that stays the same, such as ip or http.auth.user.id"
)

// adviser.identities warns of ways to identify a client by values that any client can forge.
func (a *adviser) identities() {
	for i := range a.doc.Identify {
		at, way := policyfile.Index("identify", i), &a.doc.Identify[i]
		switch {
		case way.Header != nil && way.Header.Unverified:
			a.problem(at+".header.name", way.Header.Name, "is a header that clients can set, so each can pose as any other, or as a new client "+
				"each time", remedyInvented)
		case way.Cookie != nil && way.Cookie.Unverified:
			a.problem(at+".cookie.name", way.Cookie.Name, "is a cookie that clients can set, so each can pose as any other, or as a new client "+
				"each time", remedyInvented)
		case way.Attr != "" && isChosenByClient(way.Attr):
			a.problem(at+".attr", way.Attr, whyRepeated+": each client can pose as any other", remedyInvented)
		case slices.Contains(fleeting, way.Attr):
			a.problem(at+".attr", way.Attr, whyFleeting, remedyFleeting)
		case way.JWT != nil:
			a.jwtWords(at+".jwt", way.JWT)
		}
	}
	a.sourcesOf("user", "of any user", a.doc.User)
	a.sourcesOf("tenant", "of any tenant", a.doc.Tenant)
	a.sourcesOf("tier", "of any tier", a.doc.Tier)
}

func (a *adviser) jwtWords(at string, d *policyfile.IdentifyJWT) {
	if _, fromEnvironment := policyfile.Environment(d.Secret); d.Secret != "" && !fromEnvironment {
		a.problem(at+".secret", "", "is visible to everyone that can read the policy, its history or its copies",
			`write secret_file, or "{env.NAME}", and take another secret`)
	}
	if from, err := url.Parse(d.JWKSURL); err == nil && from.User != nil {
		if _, given := from.User.Password(); given {
			a.problem(at+".jwks_url", "", "holds a password, visible to everyone that can read the policy, its history or its copies, such as Caddy's /config/",
				`write "{env.NAME}", which is the whole URL, use jwks_file, or an issuer that publishes its keys`)
		}
	}
	if d.Issuer == "" && d.Secret == "" && d.SecretFile == "" {
		a.problem(at, "", "has no issuer: every token signed with one of these keys is accepted, whatever its issuer",
			"write issuer: with the value of the claim iss")
	}
	if len(d.Audience) == 0 {
		a.problem(at, "", "has no audience: a token issued for another service is accepted here as well",
			"write audience: with the name of this service in the claim aud")
	}
}

func (a *adviser) sourcesOf(word, anyOne string, sources policyfile.Sources) {
	for i := range sources {
		at, from := policyfile.Index(word, i), &sources[i]
		switch {
		case from.Header != nil && from.Header.Unverified:
			a.problem(at+".header.name", from.Header.Name, "is a header that clients can set, so each can pose as one "+anyOne,
				remedyInvented)
		case from.Attr != "" && isChosenByClient(from.Attr):
			a.problem(at+".attr", from.Attr, whyRepeated+": each client can pose as one "+anyOne, remedyInvented)
		case from.HostLabel != nil && a.trustsHost(word):
			a.problem(at+".host_label", strconv.Itoa(*from.HostLabel), "is part of the host that the client sends, so each client can pose as one "+
				anyOne, "list the valid hosts in each rule that depends on the "+word)
		}
	}
}

// trustsHost reports whether a client could abuse a user, tenant or tier from the host. A client
// can if an exemption depends on that value, or if a rule that matches any host does.
func (a *adviser) trustsHost(word string) bool {
	names := func(user, tenant, tier policyfile.Words) bool {
		return len(map[string]policyfile.Words{"user": user, "tenant": tenant, "tier": tier}[word]) > 0
	}
	return slices.ContainsFunc(a.doc.Exempt, func(l policyfile.Listed) bool { return names(l.User, l.Tenant, l.Tier) }) ||
		slices.ContainsFunc(a.doc.Rules, func(r policyfile.Rule) bool {
			m := policyfile.Match{}
			if r.Match != nil {
				m = *r.Match
			}
			return len(m.Host) == 0 && (names(m.User, m.Tenant, m.Tier) || slices.Contains(dimensionsOf(&r), word) ||
				word == "tier" && len(r.Tiers) > 0)
		})
}

// inner lists the usual address ranges of proxies in front of this one.
var inner = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// adviser.lists warns of exemptions for addresses that a proxy in front of this one might have,
// because all clients of that proxy would be exempt.
func (a *adviser) lists() {
	if len(a.policy.TrustedProxies) > 0 || a.policy.TrustedHops > 0 {
		return
	}
	for i := range a.policy.Exempt {
		a.innerRange(policyfile.Index("exempt", i)+".ip", a.doc.Exempt[i].IP)
	}
	for i := range a.policy.Rules {
		if r := &a.policy.Rules[i]; r.Action == policy.ActionAllow && a.doc.Rules[i].Match != nil {
			a.innerRange(policyfile.Index("rules", i)+".match.ip", a.doc.Rules[i].Match.IP)
		}
	}
}

// innerRange warns of the first address in a list that is in one of the inner ranges.
func (a *adviser) innerRange(at string, texts policyfile.Words) {
	for i, text := range texts {
		prefix, why, _ := policyfile.ReadPrefix(text)
		if why != "" {
			continue
		}
		for _, r := range inner {
			if prefix.Overlaps(r) {
				a.problem(policyfile.Index(at, i), text, "may be the address of a proxy in front, and would then exempt "+
					"every client", "name the proxies in trusted_proxies, or leave their addresses out here")
				return
			}
		}
	}
}

// adviser.rule warns of the settings of a single rule.
func (a *adviser) rule(at string, d *policyfile.Rule, r *policy.Rule) {
	for i, dimension := range r.Per {
		place := policyfile.Index(at+".per", i)
		switch {
		case dimension.Kind == policy.PerHeader:
			a.problem(place, (*d.Per)[i], "is a header that clients can set, so each request can have a new counter", remedyInvented)
		case dimension.Kind == policy.PerAttr && isChosenByClient(dimension.Name):
			a.problem(place, (*d.Per)[i], whyRepeated+": each invented value is a new counter", remedyInvented)
		case dimension.Kind == policy.PerAttr && slices.Contains(fleeting, dimension.Name):
			a.problem(place, (*d.Per)[i], whyFleeting, remedyFleeting)
		}
	}
	for i := range r.Cost {
		for k, prefix := range r.Cost[i].Trusted {
			if prefix.Bits() == 0 && len(d.Cost[i].Trusted) == len(r.Cost[i].Trusted) {
				a.problem(policyfile.Index(policyfile.Index(at+".cost", i)+".trusted", k), prefix.String(), "includes every client, so each can set its own cost",
					"write the addresses of the proxies that set the header")
			}
		}
	}
	a.statuses(at+".count_if.status", r)
	if c := r.CostAfter; c != nil {
		a.unnamedCosts(at+".cost_after", c)
		a.lowEstimate(at+".cost_after.estimate", c)
	}
	shown := !r.PerNone && r.Action != policy.ActionLogOnly || r.Expose
	a.eachLimit(at, d, r, func(place, text string, l *counter.Limit) {
		if shown && l.Calendar() == 0 && l.Window()%counter.Second != 0 {
			a.problem(place, text, "has a window that header fields cannot express: they count in seconds",
				"write whole seconds, such as "+limitInSeconds(l))
		}
		if l.Algorithm() == counter.SlidingLog && l.Count() >= counter.LogCountMax/2 {
			a.problem(place, text, fmt.Sprintf("keeps up to %d entries for each counter, near the bound of %d", l.Count(),
				counter.LogCountMax), "use sliding_window, or a smaller window")
		}
	})
	a.tierWindows(at, d)
}

// statuses warns of a rule that counts successful responses, but not those to requests for a range.
func (a *adviser) statuses(at string, r *policy.Rule) {
	if policy.Covers(r.CountIf, http.StatusOK) && !policy.Covers(r.CountIf, http.StatusPartialContent) {
		a.problem(at, "200", "does not include 206, so a request with a Range is not counted", "write 2xx")
	}
}

// unnamedCosts warns of a default that a client can choose in place of a higher cost.
func (a *adviser) unnamedCosts(at string, c *policy.CostAfter) {
	usual, most := cmp.Or(c.Default, c.Estimate), cmp.Or(c.Max, c.Unread)
	switch {
	case c.Max == 0 && c.Unread == 0:
		a.problem(at, "", "has neither max nor unread, so a client that leaves before the cost is known pays default",
			"write max: the most that a request can cost")
	case c.JSON != "" && most > usual:
		a.problem(at, "", fmt.Sprintf("charges default, %d, for a response without its cost, which a client may be able to ask for, "+
			"such as a stream without include_usage", usual), fmt.Sprintf("make the upstream name the cost always, or write default: %d", most))
	}
}

// lowEstimateFactor is the smallest ratio of max to estimate that causes a warning.
const lowEstimateFactor = 100

// lowEstimate warns of an estimate so low that a burst uses far more than the limit. All requests
// of a burst are admitted by their estimates. The debt that their costs then cause is at most the
// count of one window, so the counter forgets the rest of these costs.
func (a *adviser) lowEstimate(at string, c *policy.CostAfter) {
	if c.Max/lowEstimateFactor >= c.Estimate {
		a.problem(at, strconv.FormatInt(c.Estimate, 10), fmt.Sprintf("is charged before a request that may cost %d, so requests sent "+
			"at once can use many times the limit, of which the next windows make up only one", c.Max),
			"write what a request usually costs, or lower max")
	}
}

// limitInSeconds returns a limit with about the same rate and a window of whole seconds.
func limitInSeconds(l *counter.Limit) string {
	window := (l.Window() + counter.Second - 1) / counter.Second * counter.Second
	count := int64(float64(l.Count()) * float64(window) / float64(l.Window()))
	return fmt.Sprintf("%d/%s", count, policyfile.SpanText(window))
}

// eachLimit calls do(...) for each valid limit of a rule and of its tiers.
func (a *adviser) eachLimit(at string, d *policyfile.Rule, r *policy.Rule, do func(place, text string, l *counter.Limit)) {
	for i := range r.Limits {
		if r.Limits[i].Algorithm() != 0 {
			do(policyfile.Index(at+".limit", i), d.Limit[i], &r.Limits[i])
		}
	}
	for _, tier := range tiersOf(d, d)[1:] {
		limits := r.Tiers[tier].Limits
		for i := range limits {
			if limits[i].Algorithm() != 0 {
				do(policyfile.Index(policyfile.Join(at+".tiers", tier), i), d.Tiers[tier][i], &limits[i])
			}
		}
	}
}

// tierWindows warns of tiers that use counters different from the rule's.
func (a *adviser) tierWindows(at string, d *policyfile.Rule) {
	common := countersOf(d.Limit)
	for _, tier := range tiersOf(d, d)[1:] {
		own := countersOf(d.Tiers[tier])
		if anyMissing(common, own) && anyMissing(own, common) {
			a.problem(policyfile.Join(at+".tiers", tier), "", "has another window or algorithm than limit: a client that changes its tier "+
				"starts a new counter, and may use both up", "keep window and algorithm, and change the count")
		}
	}
}

// anyMissing reports whether the list others lacks one of the counters.
func anyMissing(counters, others []shape) bool {
	return slices.ContainsFunc(counters, func(c shape) bool { return !containsCounter(others, c) })
}

// checkTimezone warns, once, of calendar windows in a policy without a time zone.
func (a *adviser) checkTimezone() {
	if a.doc.Timezone != "" {
		return
	}
	found := false
	for i := range a.doc.Rules {
		a.eachLimit(policyfile.Index("rules", i), &a.doc.Rules[i], &a.policy.Rules[i], func(place, text string, l *counter.Limit) {
			if !found && l.Calendar() != 0 {
				found = true
				a.problem(place, text, "begins by the UTC calendar, because timezone is missing",
					"write timezone: Europe/Berlin, or timezone: UTC if that is meant")
			}
		})
	}
}
