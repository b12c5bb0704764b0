// SPDX-License-Identifier: Apache-2.0

package policyfile

import (
	"encoding/json"

	"github.com/penstock/penstock/internal/policyfile/syntax"
)

// Words is a list of words. In a document, a single word can be written without a list; MarshalJSON
// writes it that way.
type Words []string

// MarshalJSON writes a single word as itself and everything else as a list.
func (w Words) MarshalJSON() ([]byte, error) {
	if len(w) == 1 {
		return json.Marshal(w[0])
	}
	if w == nil {
		w = Words{}
	}
	return json.Marshal([]string(w))
}

// UnmarshalJSON reads one word or a list of words.
func (w *Words) UnmarshalJSON(data []byte) error { return unmarshal(data, w) }

// Costs is the cost of requests: a number, or a list whose first matching entry counts.
type Costs []Cost

// MarshalJSON writes one cost for every request as its number, and everything else as a list.
func (c Costs) MarshalJSON() ([]byte, error) {
	if len(c) == 1 && c[0].Match == nil && c[0].Header == "" {
		return json.Marshal(c[0].N)
	}
	if c == nil {
		c = Costs{}
	}
	return json.Marshal([]Cost(c))
}

// UnmarshalJSON reads a number or a list of costs.
func (c *Costs) UnmarshalJSON(data []byte) error { return unmarshal(data, c) }

// Lists selects every client that at least one of its entries selects.
type Lists []Listed

// MarshalJSON writes a single entry as itself and everything else as a list.
func (l Lists) MarshalJSON() ([]byte, error) { return oneOrList(l) }

// UnmarshalJSON reads one entry or a list of entries.
func (l *Lists) UnmarshalJSON(data []byte) error { return unmarshal(data, l) }

// Sources are the origins of a user, a tenant or a tier, tried in order.
type Sources []Source

// MarshalJSON writes a single source as itself and everything else as a list.
func (s Sources) MarshalJSON() ([]byte, error) { return oneOrList(s) }

// UnmarshalJSON reads one source or a list of sources.
func (s *Sources) UnmarshalJSON(data []byte) error { return unmarshal(data, s) }

// Numbers is one whole number or a list of them.
type Numbers []int64

// MarshalJSON writes a single number as itself and everything else as a list.
func (n Numbers) MarshalJSON() ([]byte, error) { return oneOrList(n) }

// UnmarshalJSON reads one number or a list of numbers.
func (n *Numbers) UnmarshalJSON(data []byte) error { return unmarshal(data, n) }

func oneOrList[S ~[]T, T any](list S) ([]byte, error) {
	if len(list) == 1 {
		return json.Marshal(list[0])
	}
	if list == nil {
		list = S{}
	}
	return json.Marshal([]T(list))
}

// StatusWords are response statuses: numbers such as 401, and classes such as 5xx. In a document, a
// single status can be written without a list, and a number without quotes.
type StatusWords []string

// MarshalJSON writes a single status as itself and everything else as a list.
func (s StatusWords) MarshalJSON() ([]byte, error) { return Words(s).MarshalJSON() }

// UnmarshalJSON reads one status or a list of statuses.
func (s *StatusWords) UnmarshalJSON(data []byte) error { return unmarshal(data, s) }

// Tiers are limits by the name of a tier: one or several, or the word unlimited.
type Tiers map[string]Words

// UnmarshalJSON reads limits by tier as strictly as a policy file is read. The error is
// [policy.Problems].
func (t *Tiers) UnmarshalJSON(data []byte) error { return unmarshal(data, t) }

// Regions are the shares of regions, by name.
type Regions map[string]int64

// UnmarshalJSON reads shares by region as strictly as a policy file is read. The error is
// [policy.Problems].
func (r *Regions) UnmarshalJSON(data []byte) error { return unmarshal(data, r) }

// Date is an instant in the form of RFC 3339: 2026-12-01T00:00:00Z. TOML dates are read too.
type Date string

// UnmarshalJSON reads a whole policy as strictly as a policy file is read. The error is
// [policy.Problems]. A struct must not embed Document: it would inherit this method, which rejects
// the struct's own fields. Use a named field instead.
func (d *Document) UnmarshalJSON(data []byte) error { return unmarshal(data, d) }

// UnmarshalJSON reads a rule as strictly as a policy file is read. The error is [policy.Problems].
func (r *Rule) UnmarshalJSON(data []byte) error { return unmarshal(data, r) }

// UnmarshalJSON reads an entry of the list "identify" as strictly as a policy file is read. The
// error is [policy.Problems].
func (i *Identify) UnmarshalJSON(data []byte) error { return unmarshal(data, i) }

// UnmarshalJSON reads a match as strictly as a policy file is read. The error is [policy.Problems].
func (m *Match) UnmarshalJSON(data []byte) error { return unmarshal(data, m) }

// unmarshal reads one JSON value into one of the document's types. Problems have only a path,
// because line numbers would be relative to the value rather than to the file that contains it.
func unmarshal(data []byte, into any) error {
	found := &syntax.Report{}
	tree := syntax.ParseJSON("", data, found)
	if tree != nil {
		decodeInto(tree, into, found)
	}
	if d, ok := into.(*Document); ok && tree != nil {
		d.tree, found.Finish = tree, d.NameRules
		d.addFollowing(found)
	}
	return found.Err()
}
