// SPDX-License-Identifier: Apache-2.0

package policy

import "encoding/json"

// Words is one word or a list of words. In a document one word may stand without its list, and is written so.
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

// Costs is what requests cost: a number, or a list of which the first entry that matches counts.
type Costs []Cost

// MarshalJSON writes one cost for every request as its number, and everything else as a list.
func (c Costs) MarshalJSON() ([]byte, error) {
	if len(c) == 1 && c[0].Match == nil {
		return json.Marshal(c[0].N)
	}
	if c == nil {
		c = Costs{}
	}
	return json.Marshal([]Cost(c))
}

// UnmarshalJSON reads a number or a list of costs.
func (c *Costs) UnmarshalJSON(data []byte) error { return unmarshal(data, c) }

// UnmarshalJSON reads a whole policy as strictly as a policy file is read. The error is [core.Problems]. A struct that
// embeds Document would inherit this method, and with it refuse its own words: give it a field instead.
func (d *Document) UnmarshalJSON(data []byte) error { return unmarshal(data, d) }

// UnmarshalJSON reads a rule as strictly as a policy file is read. The error is [core.Problems].
func (r *Rule) UnmarshalJSON(data []byte) error { return unmarshal(data, r) }

// UnmarshalJSON reads an entry of identify as strictly as a policy file is read. The error is [core.Problems].
func (i *Identify) UnmarshalJSON(data []byte) error { return unmarshal(data, i) }

// UnmarshalJSON reads a match as strictly as a policy file is read. The error is [core.Problems].
func (m *Match) UnmarshalJSON(data []byte) error { return unmarshal(data, m) }

// UnmarshalJSON reads who is exempt as strictly as a policy file is read. The error is [core.Problems].
func (e *Exempt) UnmarshalJSON(data []byte) error { return unmarshal(data, e) }

// unmarshal reads one JSON value into one of the document's types. Lines would be those of the value and not of the
// file it came from, so problems carry their path only.
func unmarshal(data []byte, into any) error {
	found := &report{}
	tree := parseJSON("", data, found)
	if tree != nil {
		decodeInto(tree, into, found)
	}
	if d, ok := into.(*Document); ok && tree != nil {
		d.tree = tree
		d.addFollowing(found)
	}
	return found.err()
}
