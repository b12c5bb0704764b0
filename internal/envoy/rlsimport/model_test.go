// SPDX-License-Identifier: Apache-2.0

package rlsimport

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
)

// node is an entry of a configuration in the model. The configuration is written from the nodes and
// read by the importer, so the model shares no code with it.
type node struct {
	key, value         string
	limited, unlimited bool
	count, seconds     int64
	unit, name         string
	replaces           []string
	shadow, share      bool
	quota              bool
	children           []*node
}

// found is the result of the model's lookup: the entry, and the parts of the counter's name.
type found struct {
	*node
	counter string
}

// modelLookUp finds a descriptor's limit as envoyproxy/ratelimit documents it; nil for none.
func modelLookUp(tree []*node, pairs [][2]string) *found {
	counter := ""
	for i, pair := range pairs {
		n := modelChild(tree, pair)
		if n == nil {
			return nil
		}
		value := pair[1]
		if n.share {
			value = "the pattern " + n.value
		}
		counter += fmt.Sprintf("%q=%q ", pair[0], value)
		if i == len(pairs)-1 {
			if !n.limited {
				return nil
			}
			return &found{n, counter}
		}
		tree = n.children
	}
	return nil
}

// modelChild tries the value, then the patterns in their order, then the key alone.
func modelChild(tree []*node, pair [2]string) *node {
	for _, n := range tree {
		if n.key == pair[0] && n.value == pair[1] && n.value != "" {
			return n
		}
	}
	for _, n := range tree {
		pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(n.value), `\*`, ".*") + "$"
		if strings.Contains(n.value, "*") && n.key == pair[0] && regexp.MustCompile(pattern).MatchString(pair[1]) {
			return n
		}
	}
	for _, n := range tree {
		if n.key == pair[0] && n.value == "" {
			return n
		}
	}
	return nil
}

// model behaves like the service. It has limits by descriptor, and counters in windows counted from
// 1970.
type model struct {
	tree     []*node
	counters map[string]int64
	// If the field named always is true, the model also charges a counter that denies, as
	// envoyproxy/ratelimit does. If it is false, a request charges all its counters or none.
	always bool
}

// verdict is the model's answer for one descriptor.
type verdict struct {
	over      bool
	limit     *node // nil means no limit, or a limit without a counter
	remaining int64
}

// model.ask decides a request at a time in seconds.
func (m *model) ask(now int64, descriptors [][][2]string, hits int64) (over bool, verdicts []verdict) {
	limits := make([]*found, len(descriptors))
	replaced := map[string]bool{}
	for i, pairs := range descriptors {
		if limits[i] = modelLookUp(m.tree, pairs); limits[i] != nil {
			for _, name := range limits[i].replaces {
				replaced[name] = true
			}
		}
	}
	verdicts = make([]verdict, len(descriptors))
	charged := map[string]*node{}
	quotas, withRoom := 0, 0
	for i, f := range limits {
		if f == nil || f.unlimited || f.name != "" && replaced[f.name] {
			continue
		}
		key := fmt.Sprint(f.counter, now/f.seconds)
		charged[key] = f.node
		verdicts[i] = verdict{limit: f.node, over: !f.shadow && m.counters[key]+hits > f.count, remaining: -1}
		if !f.shadow {
			verdicts[i].remaining = max(0, f.count-m.counters[key])
		}
		switch v := verdicts[i]; {
		case f.quota && v.over:
			quotas++
		case f.quota:
			quotas, withRoom = quotas+1, withRoom+1
		default:
			over = over || v.over
		}
	}
	over = over || quotas > 0 && withRoom == 0
	for key, n := range charged {
		if m.always || !over && (!n.shadow && !n.quota || m.counters[key]+hits <= n.count) {
			m.counters[key] += hits
		}
	}
	for i := range verdicts {
		if v := &verdicts[i]; v.limit != nil && !over && !v.over && v.remaining >= 0 {
			v.remaining -= hits
		}
	}
	return over, verdicts
}

// maker makes random configurations and requests from a few words, so that requests often match
// entries.
type maker struct{ *rand.Rand }

func (m maker) one(of ...string) string { return of[m.IntN(len(of))] }

var modelUnits = map[string]int64{"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400}

func (m maker) nodes(depth int) (list []*node) {
	known := map[string]bool{}
	for range 1 + m.IntN(5) {
		n := &node{key: m.one("a", "b", "c"), value: m.one("", "", "x", "y", "xy", "x*", "*y", "x*y", "*", "x*x*y")}
		if known[n.key+"="+n.value] {
			continue
		}
		known[n.key+"="+n.value] = true
		n.share = strings.Contains(n.value, "*") && m.IntN(2) == 0
		n.shadow, n.quota = m.IntN(6) == 0, m.IntN(4) == 0
		if depth == 1 || m.IntN(2) == 0 {
			m.limit(n)
		}
		if depth > 1 && m.IntN(2) == 0 {
			n.children = m.nodes(depth - 1)
		}
		list = append(list, n)
	}
	return list
}

func (m maker) limit(n *node) {
	if n.limited = m.IntN(8) > 0; !n.limited {
		return
	}
	if m.IntN(3) == 0 {
		n.name = m.one("n", "m", "o")
	}
	for _, name := range []string{"n", "m", "o", "p"} {
		if name != n.name && m.IntN(8) == 0 {
			n.replaces = append(n.replaces, name)
		}
	}
	if n.unlimited = m.IntN(8) == 0; n.unlimited {
		return
	}
	n.unit = m.one("second", "minute", "hour", "day", "week", "month", "Minute")
	n.seconds = modelUnits[strings.ToLower(n.unit)]
	n.count = int64(m.IntN(7))
	if n.quota {
		n.count++ // the importer rejects 0
	}
}

// configuration writes the nodes as a configuration of the service.
func configuration(nodes []*node, indent string) string {
	var b strings.Builder
	for _, n := range nodes {
		fmt.Fprintf(&b, "%s- key: %s\n", indent, n.key)
		for _, line := range []struct {
			word    string
			present bool
		}{{fmt.Sprintf("value: %q", n.value), n.value != ""}, {"shadow_mode: true", n.shadow}, {"quota_mode: true", n.quota}, {"share_threshold: true", n.share}} {
			if line.present {
				fmt.Fprintf(&b, "%s  %s\n", indent, line.word)
			}
		}
		if n.limited {
			fmt.Fprintf(&b, "%s  rate_limit:\n", indent)
			if n.unlimited {
				fmt.Fprintf(&b, "%s    unlimited: true\n", indent)
			} else {
				fmt.Fprintf(&b, "%s    unit: %s\n%s    requests_per_unit: %d\n", indent, n.unit, indent, n.count)
			}
			if n.name != "" {
				fmt.Fprintf(&b, "%s    name: %s\n", indent, n.name)
			}
			if len(n.replaces) > 0 {
				fmt.Fprintf(&b, "%s    replaces: [{name: %s}]\n", indent, strings.Join(n.replaces, "}, {name: "))
			}
		}
		if len(n.children) > 0 {
			fmt.Fprintf(&b, "%s  descriptors:\n%s", indent, configuration(n.children, indent+"    "))
		}
	}
	return b.String()
}

// maker.request returns some descriptors, all different.
func (m maker) request() (descriptors [][][2]string) {
	known := map[string]bool{}
	for range 1 + m.IntN(3) {
		var pairs [][2]string
		for range 1 + m.IntN(3) {
			pairs = append(pairs, [2]string{m.one("a", "b", "c"), m.one("x", "y", "xy", "xxy", "xzxy", "z", "")})
		}
		if text := fmt.Sprint(pairs); !known[text] {
			known[text] = true
			descriptors = append(descriptors, pairs)
		}
	}
	return descriptors
}
