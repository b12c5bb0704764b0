// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bufio"
	"github.com/penstock/penstock/internal/test/limittest"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/penstock/penstock/core/counter"
	"github.com/penstock/penstock/core/policy"
)

// precedence holds the state of a story while the lines of testdata/precedence.txt are
// executed.
type precedence struct {
	t      *testing.T
	line   int
	policy policy.Policy
	who    knownClient
	rs     *Ruleset // nil until the first request
	asked  int
}

// knownClient is a verifier that returns one client for every credential.
type knownClient struct {
	identity *policy.Identity
	state    policy.CredentialState
}

func (k *knownClient) Verify(string) (*policy.Identity, policy.CredentialState) {
	return k.identity, k.state
}

// TestPrecedence runs the stories in testdata/precedence.txt, which state which rule wins.
func TestPrecedence(t *testing.T) {
	file, err := os.Open("testdata/precedence.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	stories, asked := 0, 0
	var story *precedence
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		text := strings.TrimSpace(lines.Text())
		switch name, isStory := strings.CutPrefix(text, "story "); {
		case text == "" || text[0] == '#':
		case isStory:
			if story != nil && story.asked == 0 {
				t.Fatalf("line %d: the story before asks nothing", number)
			}
			story = &precedence{t: t}
			story.policy.Name = strings.ReplaceAll(name, " ", "-")[:min(len(name), policy.NameBytesMax)]
			story.policy.Name = strings.Map(nameRune, story.policy.Name)
			story.policy.Identify = []policy.Identify{{Kind: policy.IdentifyJWT, Verifier: &story.who}, {Kind: policy.IdentifyAPIKey,
				Verifier: &story.who, From: []policy.CredentialSource{{Kind: policy.FromHeader, Name: "X-API-Key"}}}, {Kind: policy.IdentifyIP}}
			stories++
		default:
			story.line = number
			story.tellLine(text)
			asked++
		}
	}
	if err := lines.Err(); err != nil || stories < 40 {
		t.Fatalf("%d stories, %d lines: %v", stories, asked, err)
	}
}

func nameRune(r rune) rune {
	if policy.NotNameRune(r) {
		return '-'
	}
	return r
}

func (p *precedence) fatal(format string, args ...any) {
	p.t.Helper()
	p.t.Fatalf("testdata/precedence.txt:"+strconv.Itoa(p.line)+": "+format, args...)
}

// tellLine executes one line of a story.
func (p *precedence) tellLine(text string) {
	words := strings.Fields(text)
	switch words[0] {
	case "enforce":
		p.policy.Enforce = policy.EnforceFirst
	case "rule":
		p.policy.Rules = append(p.policy.Rules, p.rule(words[1], words[2:]))
	case "exempt":
		p.policy.Exempt = append(p.policy.Exempt, p.parseListed(words[1:]))
	case "block":
		p.policy.Block = append(p.policy.Block, p.parseListed(words[1:]))
	default:
		request, answer, found := strings.Cut(text, " -> ")
		if !found {
			p.fatal("%q is none of the words", words[0])
		}
		p.ask(strings.Fields(request), answer)
		return
	}
	if p.rs != nil {
		p.fatal("a policy ends where the requests begin")
	}
}

func (p *precedence) rule(name string, words []string) policy.Rule {
	r := policy.Rule{Name: name}
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		list := strings.Split(value, ",")
		tier, isTier := strings.CutPrefix(key, "tiers.")
		switch {
		case isTier:
			if r.Tiers == nil {
				r.Tiers = map[string]policy.LimitSet{}
			}
			r.Tiers[tier] = p.set(value)
		case key == "group":
			r.Group = value
		case key == "priority":
			r.Priority = p.number(value)
		case key == "disabled":
			r.Disabled = true
		case key == "action":
			r.Action = map[string]policy.Action{"allow": policy.ActionAllow, "block": policy.ActionBlock, "log_only": policy.ActionLogOnly}[value]
		case key == "missing":
			r.Missing = map[string]policy.Missing{"skip": policy.MissingSkip, "deny": policy.MissingDeny, "share": policy.MissingShare}[value]
		case key == "per":
			p.per(&r, value)
		case key == "limit":
			r.Limits = p.set(value).Limits
		default:
			p.match(&r.Match, key, list)
		}
	}
	if len(r.Limits) == 0 && r.Action != policy.ActionAllow && r.Action != policy.ActionBlock {
		r.Limits = p.set("100/1m").Limits
	}
	return r
}

func (p *precedence) match(m *policy.Match, key string, list []string) {
	switch key {
	case "path":
		m.Path = list
	case "method":
		m.Method = list
	case "host":
		m.Host = list
	case "header":
		m.Header = []policy.HeaderMatch{{Name: list[0]}}
	case "ip":
		m.IP = []netip.Prefix{netip.MustParsePrefix(list[0])}
	case "tier":
		m.Tier = list
	case "user":
		m.User = list
	case "api_key":
		m.APIKey = list
	case "tenant":
		m.Tenant = list
	default:
		p.fatal("%q is no word of a rule", key)
	}
}

func (p *precedence) per(r *policy.Rule, value string) {
	if r.PerNone = value == ""; r.PerNone {
		return
	}
	for _, name := range strings.Split(value, ",") {
		kind := -1
		for k, label := range policy.DimensionLabels {
			if label == name {
				kind = k
			}
		}
		if kind < 0 {
			p.fatal("%q is no dimension", name)
		}
		r.Per = append(r.Per, policy.Dimension{Kind: policy.DimensionKind(kind)})
	}
}

func (p *precedence) set(value string) policy.LimitSet {
	if value == "unlimited" {
		return policy.LimitSet{Unlimited: true}
	}
	return policy.LimitSet{Limits: limittest.All(p.t, strings.Split(value, ",")...)}
}

func (p *precedence) number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		p.fatal("%v", err)
	}
	return n
}

func (p *precedence) parseListed(words []string) (e policy.Listed) {
	for _, word := range words {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "ip":
			prefix, err := netip.ParsePrefix(value)
			if err != nil {
				addr := netip.MustParseAddr(value)
				prefix = netip.PrefixFrom(addr, addr.BitLen())
			}
			e.IP = []netip.Prefix{prefix}
		case "user":
			e.User = []string{value}
		case "api_key":
			e.APIKey = []string{value}
		case "tier":
			e.Tier = []string{value}
		case "tenant":
			e.Tenant = []string{value}
		case "reason":
			e.Reason = value
		case "until":
			e.Until = counter.Micros(p.number(value)) * counter.Second
		default:
			p.fatal("%q is no word of a list", key)
		}
	}
	return e
}
