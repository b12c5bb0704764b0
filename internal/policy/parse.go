// SPDX-License-Identifier: Apache-2.0

package policy

// ParseYAML reads a YAML document that is no policy into nodes, as strictly as a policy is read: without anchors, within the
// same bounds; name is how its places call it. The node is nil for a document without content. The error is [core.Problems].
func ParseYAML(name string, data []byte) (*Node, error) {
	found := &report{}
	tree, err := parse(name, YAML, data, found)
	if err != nil {
		return nil, err
	}
	return tree, found.err()
}
