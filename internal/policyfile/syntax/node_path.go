// SPDX-License-Identifier: Apache-2.0

package syntax

import "strings"

// PlaceOf returns the position of a path in the document, which is that of the deepest existing
// node on the path.
func (n *Node) PlaceOf(path string) string {
	if n == nil {
		return ""
	}
	place := n.Place
	for n != nil && path != "" {
		n, path = n.step(path)
		if n != nil && n.Place != "" {
			place = n.Place
		}
	}
	return place
}

// Node.step follows the first key or index of a path. A key may contain a dot, as header names may,
// so the longest key wins. The case of header names is ignored. A single value counts as a list
// with one item.
func (n *Node) step(path string) (next *Node, rest string) {
	path = strings.TrimPrefix(path, ".")
	if inner, ok := strings.CutPrefix(path, "["); ok {
		digits, rest, _ := strings.Cut(inner, "]")
		if n.Kind != KindList {
			return n, rest
		}
		at := 0
		for _, digit := range []byte(digits) {
			at = min(at*10+int(digit-'0'), len(n.Items))
		}
		if at < 0 || at >= len(n.Items) {
			return nil, ""
		}
		return n.Items[at], rest
	}
	best := -1
	for i := range n.Entries {
		key := n.Entries[i].Key
		if Within(path, key) && (best < 0 || len(key) > len(n.Entries[best].Key)) {
			best = i
		}
	}
	if best < 0 {
		return nil, ""
	}
	return n.Entries[best].Value, path[len(n.Entries[best].Key):]
}

// Root returns the first element of a path, with any index: of "rules[0].limit" it is "rules[0]".
func Root(path string) string {
	first, _, _ := strings.Cut(path, ".")
	return first
}
