// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"

	"github.com/penstock/penstock/core"
)

// Advise returns what is right in a policy and probably not meant: warnings, each with its place, the value, why, and what
// to write instead. A warning holds nothing up. Words that mean nothing are left to [Document.Check]. It compares rules
// with each other, the first 1,000 of them.
func (d *Document) Advise() []core.Problem {
	a := adviser{converter: converter{tree: d.tree}, doc: d, replaced: map[string]bool{}}
	a.policy, _ = d.Policy()
	for i := range a.policy.Rules {
		for _, name := range a.policy.Rules[i].Replaces {
			a.replaced[name] = true
		}
	}
	a.identities()
	a.lists()
	for i := range d.Rules {
		a.rule(index("rules", i), &d.Rules[i], &a.policy.Rules[i])
	}
	a.zone()
	a.leases()
	a.shards()
	a.compareRules()
	a.sort()
	return a.problems
}

// warningsMax is how many warnings of a policy are logged: the rest are for `penstock validate`.
const warningsMax = 20

// Warn says once, when a policy comes into force, what [Document.Advise] returns, a line each and not more than some: `penstock
// validate` need not have been asked, and reads no Caddyfiles.
func (d *Document) Warn(say func(line string)) {
	for i, problem := range d.Advise() {
		if i == warningsMax {
			say("the policy has more warnings than are logged; penstock validate prints them all, of a policy file")
			return
		}
		say(problem.String())
	}
}

type adviser struct {
	converter
	doc    *Document
	policy core.Policy
	// replaced are the names of the rules that are out of play at times.
	replaced map[string]bool
}

// repeaters are Caddy's placeholders and Envoy's attributes, and the beginnings of such, whose value is what the client wrote.
var repeaters = []string{"http.request.header", "http.request.orig_header", "http.request.cookie", "http.request.uri",
	"http.request.uri_escaped", "http.request.orig_uri", "http.request.host", "http.request.hostport", "http.request.port",
	"http.request.method", "http.request.orig_method", "http.request.body", "http.request.body_base64",
	"http.request.tls.server_name", "http.regexp",
	"request.headers", "request.path", "request.url_path", "request.query", "request.host", "request.method", "request.scheme",
	"request.referer", "request.useragent", "connection.requested_server_name"}

// fleeting are placeholders and attributes that are another value at each request or connection.
var fleeting = []string{"http.request.uuid", "http.request.remote", "http.request.remote.port",
	"request.id", "request.time", "request.duration", "request.size", "request.total_size", "source.address", "source.port",
	"connection.id"}

// repeats reports whether an attribute only repeats what the client wrote.
func repeats(attr string) bool {
	attr = brackets.Replace(attr)
	return slices.ContainsFunc(repeaters, func(name string) bool { return within(attr, name) })
}

const (
	remedyInvented = "use jwt or api_key, or make sure that something in front sets or removes it"
	whyRepeated    = "only repeats what the client wrote"
	whyFleeting    = "is another one at each request or connection, so that each has a counter of its own"
	remedyFleeting = "use what stays the same, such as ip or http.auth.user.id"
)

// identities warns of clients that anyone can be.
func (a *adviser) identities() {
	for i := range a.doc.Identify {
		at, way := index("identify", i), &a.doc.Identify[i]
		switch {
		case way.Header != nil && way.Header.Unverified:
			a.problem(at+".header.name", way.Header.Name, "is a header that anyone can write, and so be anyone, or a new client "+
				"each time", remedyInvented)
		case way.Cookie != nil && way.Cookie.Unverified:
			a.problem(at+".cookie.name", way.Cookie.Name, "is a cookie that anyone can write, and so be anyone, or a new client "+
				"each time", remedyInvented)
		case way.Attr != "" && repeats(way.Attr):
			a.problem(at+".attr", way.Attr, whyRepeated+": anyone can be anyone", remedyInvented)
		case slices.Contains(fleeting, way.Attr):
			a.problem(at+".attr", way.Attr, whyFleeting, remedyFleeting)
		case way.JWT != nil:
			a.jwtWords(at+".jwt", way.JWT)
		}
	}
	a.sourcesOf("user", "any user", a.doc.User)
	a.sourcesOf("tenant", "of any tenant", a.doc.Tenant)
	a.sourcesOf("tier", "of any tier", a.doc.Tier)
}

func (a *adviser) jwtWords(at string, d *IdentifyJWT) {
	if _, fromEnvironment := environment(d.Secret); d.Secret != "" && !fromEnvironment {
		a.problem(at+".secret", "", "stands here for everybody who reads the policy, its history or its copies",
			`write secret_file, or "{env.NAME}", and take another secret`)
	}
	if from, err := url.Parse(d.JWKSURL); err == nil && from.User != nil {
		if _, given := from.User.Password(); given {
			a.problem(at+".jwks_url", "", "holds a password for everybody who reads the policy, its history or its copies, such as Caddy's /config/",
				`write "{env.NAME}", which is the whole URL, use jwks_file, or an issuer that publishes its keys`)
		}
	}
	if d.Issuer == "" && d.Secret == "" && d.SecretFile == "" {
		a.problem(at, "", "has no issuer: every token that one of these keys has signed is believed, whoever it is by",
			"write issuer: with what the claim iss says")
	}
	if len(d.Audience) == 0 {
		a.problem(at, "", "has no audience: a token that was made for another service is believed here as well",
			"write audience: with what the claim aud says of this service")
	}
}

func (a *adviser) sourcesOf(word, anyOne string, sources Sources) {
	for i := range sources {
		at, from := index(word, i), &sources[i]
		switch {
		case from.Header != nil && from.Header.Unverified:
			a.problem(at+".header.name", from.Header.Name, "is a header that anyone can write, and so be "+anyOne,
				remedyInvented)
		case from.Attr != "" && repeats(from.Attr):
			a.problem(at+".attr", from.Attr, whyRepeated+": anyone can be "+anyOne, remedyInvented)
		case from.HostLabel != nil && a.trustsHost(word):
			a.problem(at+".host_label", strconv.Itoa(*from.HostLabel), "is of the host as the client writes it, and so anyone can be "+
				anyOne, "match the hosts there are in each rule that goes by the "+word)
		}
	}
}

// trustsHost reports whether it matters what the host says of the user, tenant or tier: for an exemption, or for a rule
// that takes any host.
func (a *adviser) trustsHost(word string) bool {
	names := func(user, tenant, tier Words) bool {
		return len(map[string]Words{"user": user, "tenant": tenant, "tier": tier}[word]) > 0
	}
	return slices.ContainsFunc(a.doc.Exempt, func(l Listed) bool { return names(l.User, l.Tenant, l.Tier) }) ||
		slices.ContainsFunc(a.doc.Rules, func(r Rule) bool {
			m := Match{}
			if r.Match != nil {
				m = *r.Match
			}
			return len(m.Host) == 0 && (names(m.User, m.Tenant, m.Tier) || slices.Contains(dimensionsOf(&r), word) ||
				word == "tier" && len(r.Tiers) > 0)
		})
}

// inner are the ranges in which a proxy in front has its own address.
var inner = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fe80::/10"),
}

// lists warns of exemptions for addresses that a proxy in front may have: all its clients would be exempt.
func (a *adviser) lists() {
	if len(a.policy.TrustedProxies) > 0 || a.policy.TrustedHops > 0 {
		return
	}
	for i := range a.policy.Exempt {
		a.innerRange(index("exempt", i)+".ip", a.doc.Exempt[i].IP)
	}
	for i := range a.policy.Rules {
		if r := &a.policy.Rules[i]; r.Action == core.ActionAllow && a.doc.Rules[i].Match != nil {
			a.innerRange(index("rules", i)+".match.ip", a.doc.Rules[i].Match.IP)
		}
	}
}

// innerRange warns once for a list.
func (a *adviser) innerRange(at string, texts Words) {
	quiet := converter{}
	for i, text := range texts {
		prefix, ok := quiet.prefix(at, text)
		if !ok {
			continue
		}
		for _, r := range inner {
			if prefix.Overlaps(r) {
				a.problem(index(at, i), text, "is an address that a proxy in front of this one may have, and then an exemption "+
					"for everybody", "name the proxies in trusted_proxies, or leave out those addresses that proxies have")
				return
			}
		}
	}
}

// rule warns of what a rule says by itself.
func (a *adviser) rule(at string, d *Rule, r *core.Rule) {
	for i, dimension := range r.Per {
		place := index(at+".per", i)
		switch {
		case dimension.Kind == core.PerHeader:
			a.problem(place, (*d.Per)[i], "is a header that anyone can write, and so have a new counter each time", remedyInvented)
		case dimension.Kind == core.PerAttr && repeats(dimension.Name):
			a.problem(place, (*d.Per)[i], whyRepeated+": each made-up value is a new counter", remedyInvented)
		case dimension.Kind == core.PerAttr && slices.Contains(fleeting, dimension.Name):
			a.problem(place, (*d.Per)[i], whyFleeting, remedyFleeting)
		}
	}
	for i := range r.Cost {
		for k, prefix := range r.Cost[i].Trusted {
			if prefix.Bits() == 0 && len(d.Cost[i].Trusted) == len(r.Cost[i].Trusted) {
				a.problem(index(index(at+".cost", i)+".trusted", k), prefix.String(), "is everybody, so that each client writes its own price",
					"write the addresses of the proxies that set the header")
			}
		}
	}
	if c := r.CostAfter; c != nil && c.Max == 0 && c.Unread == 0 {
		a.problem(at+".cost_after", "", "says neither max nor unread, so that a client that leaves before the cost is told pays default",
			"write max: the most that a request can cost")
	}
	shown := !r.PerNone && r.Action != core.ActionLogOnly || r.Expose
	a.eachLimit(at, d, r, func(place, text string, l *core.Limit) {
		if shown && l.Calendar() == 0 && l.Window()%core.Second != 0 {
			a.problem(place, text, "has a window that header fields cannot say: they count in seconds",
				"write whole seconds, such as "+wholeSeconds(l))
		}
		if l.Algorithm() == core.SlidingLog && l.Count() >= core.LogCountMax/2 {
			a.problem(place, text, fmt.Sprintf("keeps up to %d entries for each counter, near the bound of %d", l.Count(),
				core.LogCountMax), "use sliding_window, or a smaller window")
		}
	})
	a.tierWindows(at, d)
}

// wholeSeconds writes about the same rate in whole seconds.
func wholeSeconds(l *core.Limit) string {
	window := (l.Window() + core.Second - 1) / core.Second * core.Second
	count := int64(float64(l.Count()) * float64(window) / float64(l.Window()))
	return fmt.Sprintf("%d/%s", count, spanText(window))
}

// eachLimit goes through the limits of a rule and of its tiers, as far as they can be read.
func (a *adviser) eachLimit(at string, d *Rule, r *core.Rule, do func(place, text string, l *core.Limit)) {
	for i := range r.Limits {
		if r.Limits[i].Algorithm() != 0 {
			do(index(at+".limit", i), d.Limit[i], &r.Limits[i])
		}
	}
	for _, tier := range tiersOf(d, d)[1:] {
		limits := r.Tiers[tier].Limits
		for i := range limits {
			if limits[i].Algorithm() != 0 {
				do(index(join(at+".tiers", tier), i), d.Tiers[tier][i], &limits[i])
			}
		}
	}
}

// tierWindows warns of tiers whose counters are others than those of the rule.
func (a *adviser) tierWindows(at string, d *Rule) {
	common := countersOf(d.Limit)
	for _, tier := range tiersOf(d, d)[1:] {
		own := countersOf(d.Tiers[tier])
		if lacks(common, own) && lacks(own, common) {
			a.problem(join(at+".tiers", tier), "", "has another window or algorithm than limit: a client that changes its tier "+
				"starts a new counter, and may use both up", "keep window and algorithm, and change the count")
		}
	}
}

// lacks reports whether one of the counters is not among the others.
func lacks(counters, others []shape) bool {
	return slices.ContainsFunc(counters, func(c shape) bool { return !has(others, c) })
}

// zone warns, once, of calendar windows in a time zone that nobody chose.
func (a *adviser) zone() {
	if a.doc.Timezone != "" {
		return
	}
	found := false
	for i := range a.doc.Rules {
		a.eachLimit(index("rules", i), &a.doc.Rules[i], &a.policy.Rules[i], func(place, text string, l *core.Limit) {
			if !found && l.Calendar() != 0 {
				found = true
				a.problem(place, text, "begins by the calendar of UTC, for there is no timezone",
					"write timezone: Europe/Berlin, or timezone: UTC if that is meant")
			}
		})
	}
}
